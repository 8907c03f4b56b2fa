"""The reference simulator: one replica, step by step and token by token, as docs/semantics.md says it.

It is the oracle of the compiled decision core and shares nothing with it: plain objects and lists, loops that search,
nothing incremental. What a step costs is a function that is passed in. Its parts follow the page: arrivals (section 1)
in reference_arrivals.py; the decision (3) in reference_scheduler.py with reference_admission.py, reference_queue.py and
reference_rows.py; run-ahead, swapping, the link and speculation (3) in reference_run_ahead.py, reference_host.py,
reference_link.py and reference_speculation.py; blocks (5) in reference_pool.py, reference_runs.py and
reference_host_pool.py; prefix sharing, far history and compaction (5) in reference_prefix.py, reference_far_history.py
and reference_compaction.py; the plan (6) in reference_plan.py, memory (7) in reference_memory.py. The clock and the end
of a step (2, 4) are here. Every state is checked (reference_checks.py, reference_host_checks.py,
reference_contents.py).
Left out: what a step costs, windows and summaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tests.sim.reference_arrivals import request_of
from tests.sim.reference_checks import (
    check_decision,
    check_drained,
    check_finish,
    check_given_back,
    check_idle,
    check_progress,
    check_staging,
    check_state,
)
from tests.sim.reference_host import Host, LoadIsCheaper, SwapIsCheaper
from tests.sim.reference_memory import allocated_blocks, reserved_blocks, used_tokens
from tests.sim.reference_plan import GRAPH, Planned, Shape, plan_integers, transfer_groups
from tests.sim.reference_records import (
    Arrival,
    Event,
    ReferenceConfig,
    ReferenceInputError,
    ReferenceResult,
    Request,
    RequestRow,
    Step,
    StepNs,
    Table,
    TransferRow,
)
from tests.sim.reference_rows import move_rows, slot_of
from tests.sim.reference_run_ahead import Pipeline
from tests.sim.reference_scheduler import Scheduler
from tests.sim.reference_speculation import accepted_tokens

__all__ = ["Arrival", "ReferenceConfig", "ReferenceInputError", "ReferenceResult", "Step", "StepNs", "simulate"]


def always(*_: int) -> bool:
    """The answer of a configuration that is not asked: moving costs no more than computing."""
    return True


def simulate(
    config: ReferenceConfig,
    arrivals: Sequence[Arrival],
    step_ns: StepNs,
    *,
    swap_is_cheaper: SwapIsCheaper = always,
    load_is_cheaper: LoadIsCheaper = always,
    until_ns: int | None = None,
    tables: bool = False,
) -> ReferenceResult:
    """Replay ``arrivals`` (in file order, times not descending) and report everything.

    With ``until_ns`` whatever happens at or before it happens, decisions only before it; requests that had arrived and
    not ended are reported as unfinished, those that had not arrived are not reported. ``tables`` keeps the block
    tables of each step. ``swap_is_cheaper`` is asked with `preempt = auto`, ``load_is_cheaper`` with offload. Raises
    ReferenceInputError for a request that the configuration refuses, AssertionError when an invariant is broken.
    """
    replica = Replica(config, arrivals, step_ns, Host(config, swap_is_cheaper, load_is_cheaper), tables=tables)
    replica.run(until_ns)
    return replica.result()


class Replica:
    """One replica: its clock, the step in flight, and everything that happened."""

    def __init__(
        self, config: ReferenceConfig, arrivals: Sequence[Arrival], step_ns: StepNs, host: Host, *, tables: bool
    ) -> None:
        assert all(one.arrival_ns <= next_.arrival_ns for one, next_ in pairwise(arrivals)), "arrivals are not sorted"
        self.config = config
        self.step_ns = step_ns
        self.keep_tables = tables
        self.to_come = list(arrivals)
        self.requests: list[Request] = []  # all that arrived
        self.events: list[Event] = []
        self.pipeline = Pipeline(config)
        self.host = host
        self.scheduler = Scheduler(config, self.events, self.pipeline, host)
        self.unseen: list[Request] = []  # arrived, and no decision knows of them yet
        self.now_ns = 0
        self.in_flight: Planned = []
        self.steps: list[Step] = []
        self.itl_ns: list[int] = []
        self.accepted_tokens = 0
        self.captured: set[Shape] = set()  # shapes that have served a step

    def run(self, until_ns: int | None) -> None:
        """Advance to ``until_ns``, or until nothing is left to do.

        At one instant: the end of a step with its frees and finishes, then transfers that complete, then arrivals, then
        the decision.
        """
        while (time_ns := self._next_ns()) is not None:
            if until_ns is not None and time_ns > until_ns:
                self._arrive(before_ns=until_ns + 1)
                self.host.link.advance(until_ns)
                return
            self._arrive(before_ns=time_ns)
            self.now_ns = time_ns
            if self.in_flight:
                self._end_step()
            self.host.link.advance(time_ns)
            self._arrive(before_ns=time_ns + 1)
            if time_ns == until_ns:
                return
            self._start_step()
        check_drained(self)

    def _next_ns(self) -> int | None:
        """When something happens next that a decision follows: a step ends; idle, an arrival or a completion."""
        if self.in_flight:
            return self.steps[-1].end_ns
        arrival_ns = [self.to_come[0].arrival_ns] if self.to_come else []
        completion_ns = self.host.link.next_completion_ns()
        return min(arrival_ns + ([] if completion_ns is None else [completion_ns]), default=None)

    def _arrive(self, before_ns: int) -> None:
        """Arrivals in file order: they wait to be seen, or are rejected."""
        while self.to_come and self.to_come[0].arrival_ns < before_ns:
            request = request_of(self.config, self.to_come.pop(0), self.scheduler.pool)
            request.turn = len(self.requests)
            self.requests.append(request)
            self.events.append(Event(request.arrival_ns, "arrive", request.row))
            if request.outcome is None:
                self.unseen.append(request)
            else:
                self.events.append(Event(request.arrival_ns, "reject", request.row))

    def _decide(self) -> Planned:
        """Decision n, until it plans step n or there is nothing to decide again for."""
        again = False
        while True:
            self._begin_decision(everything=False)
            planned, preempted = self.scheduler.decide(self.now_ns, again=again)
            again = again or preempted
            check_state(self)
            check_decision(self, planned)
            if planned or not (self._empty_pipeline() or preempted):
                return planned

    def _begin_decision(self, *, everything: bool) -> bool:
        """Fences are lifted, transfers noticed, arrivals join the tail of waiting. Whether there was any of these."""
        lifted = self.scheduler.pager.lift_fences(everything=everything)
        horizon_ns = self.pipeline.horizon_ns(self.now_ns)
        noticed = self.scheduler.notice(horizon_ns, self.now_ns)
        seen = [r for r in self.unseen if r.arrival_ns <= horizon_ns]
        self.unseen = self.unseen[len(seen) :]
        self.scheduler.waiting += seen
        return lifted or noticed or seen != []

    def _empty_pipeline(self) -> bool:
        """Nothing was planned, so no step is in flight: all is noticed. Whether there was anything to notice."""
        ended = self._release(self.pipeline.due(everything=True))
        self.pipeline.empty()
        return self._begin_decision(everything=True) or ended

    def _start_step(self) -> None:
        scheduler = self.scheduler
        planned = self._decide()
        if not planned:
            check_idle(self)
            return  # idle until the next arrival, or until a transfer completes
        plan, launch = plan_integers(
            self.config,
            planned,
            live_rows=len(scheduler.running),
            captured=self.captured,
            moved={"follows": int(self.pipeline.follows)} | scheduler.take_counts(),
        )
        self.pipeline.step_planned(self.now_ns, [r for r, _ in planned])
        if launch.shape is not None:
            self.captured.add(launch.shape)
        row_moves = move_rows(self.config, scheduler.running, launch.batch) if launch.kind == GRAPH else 0
        self._stage(planned, is_decode=plan["prefill_rows"] == 0)
        duration_ns = self.step_ns(plan)
        assert duration_ns >= 0, f"a step of {duration_ns} ns"
        self.in_flight = planned
        self.steps.append(
            Step(
                start_ns=self.now_ns,
                end_ns=self.now_ns + duration_ns,
                planned=tuple((r.row, n) for r, n in planned),
                held_up=tuple(r.row for r in scheduler.held_up),
                plan=plan,
                off_ladder=launch.off_ladder,
                row_moves=row_moves,
                reserved_blocks=reserved_blocks(scheduler),
                allocated_blocks=allocated_blocks(scheduler),
                used_tokens=used_tokens(scheduler),
                cached_blocks=len(scheduler.pager.evictable),
                pending_blocks=len(scheduler.pager.pending_ids()),
                tables=self._tables() if self.keep_tables else None,
            )
        )

    def _stage(self, planned: Planned, *, is_decode: bool) -> None:
        """What the staging rows hold after this step, once what it moves is found to be what they lacked."""
        if self.config.read_what != "staged":
            return
        check_staging(self.config, planned, transfer_groups(self.config, planned, is_decode=is_decode))
        if self.config.staging == "full":
            return  # nothing stays valid
        for r, _ in planned:
            if is_decode and r.staged_blocks is None:
                r.staged_blocks = set(range(self.config.blocks(r.computed)))
            if r.staged_blocks is not None:
                size = self.config.block_size_tokens  # new tokens go to both
                r.staged_blocks |= {entry // size for entry in range(r.computed, r.computed + 1 + r.drafts)}

    def _end_step(self) -> None:
        planned, self.in_flight = self.in_flight, []
        block_size = self.config.block_size_tokens
        for r, n in planned:
            first = r.computed // block_size
            r.computed += n
            if not r.decoding:
                self.scheduler.pager.give_keys(r, first, r.computed // block_size)
                self.scheduler.drop_after_prefill(r)
        for r, _ in planned:
            if r.computed == r.known:
                accepted = accepted_tokens(self.config, r)
                r.computed += accepted
                self.accepted_tokens += accepted
                self._deliver(r, 1 + accepted)
        self.scheduler.give_back_drafts()
        self.scheduler.look()  # before anybody leaves what it has computed to others
        over = self.pipeline.due(everything=False)
        for r in sorted((r for r, _ in planned if r.delivered == r.output and not r.ended), key=slot_of):
            self._finish(r)
            if self.pipeline.runs_on(self.config, r):
                self.pipeline.run_on(r)
            else:
                over.append(r)
        self._release(over)
        check_state(self)
        check_given_back(self, planned)
        check_progress(self)

    def _deliver(self, r: Request, tokens: int) -> None:
        """So many tokens at once: one gap, then gaps of 0."""
        if r.ended:
            assert tokens == 1, f"row {r.row} has ended and drafts"
            r.overrun += 1  # made, and delivered to nobody
            return
        r.delivered += tokens
        r.decoding = True
        if r.last_token_ns is None:
            assert tokens == 1, f"row {r.row}: {tokens} tokens are the first"
            r.first_token_ns = self.now_ns
            self.events.append(Event(self.now_ns, "first_token", r.row))
        else:
            self.itl_ns += [self.now_ns - r.last_token_ns] + [0] * (tokens - 1)
        r.last_token_ns = self.now_ns

    def _finish(self, r: Request) -> None:
        check_finish(r)
        r.finish_ns = self.now_ns
        r.outcome = "truncated" if r.cut_by else "completed"
        r.reason = r.cut_by or "trace_end"
        self.events.append(Event(self.now_ns, "finish", r.row))

    def _release(self, rows: list[Request]) -> bool:
        """Rows of requests that have ended go, lowest batch row first. Whether there was any."""
        for r in sorted(rows, key=slot_of):
            self.scheduler.remove(r)
            if r.ended:
                self.events.append(Event(self.now_ns, "release_ended", r.row))
        return rows != []

    def _tables(self) -> dict[int, Table]:
        tables: dict[int, Table] = {}
        for r in self.scheduler.running:
            assert r.stage_row is not None
            tables[slot_of(r)] = Table(r.row, r.stage_row, tuple(r.blocks), r.dropped)
        return tables

    def result(self) -> ReferenceResult:
        """Everything that happened; requests without an outcome are unfinished."""
        rows = [
            RequestRow(
                row=r.row,
                outcome=r.outcome or "unfinished",
                reason=r.reason or "stopped",
                arrival_ns=r.arrival_ns,
                admitted_ns=r.admitted_ns,
                first_token_ns=r.first_token_ns,
                finish_ns=r.finish_ns,
                delivered=r.delivered,
                preemptions=r.preemptions,
                recomputed_tokens=r.recomputed_tokens,
                hit_tokens=r.hit_tokens,
            )
            for r in self.requests
        ]
        return ReferenceResult(
            requests=rows,
            steps=self.steps,
            itl_ns=self.itl_ns,
            events=self.events,
            free_blocks=self.scheduler.pager.free(),
            cached_blocks=len(self.scheduler.pager.evictable),
            accepted_tokens=self.accepted_tokens,
            preemptions=self.scheduler.preemptions,
            swaps=self.host.swaps,
            offloaded_blocks=self.host.offloaded_blocks,
            loaded_blocks=self.host.loaded_blocks,
            transfers=[
                TransferRow(
                    t.direction, t.row, t.blocks, t.groups, t.alone_ns, t.submitted_ns, t.completed_ns, t.noticed_ns
                )
                for t in self.host.link.all
            ],
            free_host_blocks=self.host.pool.free(),
            cached_host_blocks=len(self.host.pool.evictable),
        )

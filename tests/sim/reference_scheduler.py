"""The reference's decision: who runs in a step and in which blocks, literal from docs/semantics.md section 3."""

from __future__ import annotations

from tests.sim.reference_admission import INFINITE_TOKENS, Entry, enough_free, entry_of, has_run
from tests.sim.reference_compaction import Compaction
from tests.sim.reference_contents import Contents
from tests.sim.reference_far_history import growth_blocks
from tests.sim.reference_host import Host
from tests.sim.reference_link import OUT
from tests.sim.reference_plan import Planned
from tests.sim.reference_prefix import NO_HIT, Pager
from tests.sim.reference_queue import first_of, victim_of
from tests.sim.reference_records import Event, ReferenceConfig, Request
from tests.sim.reference_rows import lowest_free_slot
from tests.sim.reference_run_ahead import Pipeline
from tests.sim.reference_runs import new_store
from tests.sim.reference_speculation import drafts_of, give_back


class Scheduler:
    """Waiting, running, and the blocks, slots and stage rows that running requests hold."""

    def __init__(self, config: ReferenceConfig, events: list[Event], pipeline: Pipeline, host: Host) -> None:
        self.config = config
        self.events = events
        self.pipeline = pipeline
        self.host = host
        self.pool = new_store(config.placement, config.pool_blocks, config.extent_blocks)
        self.pager = Pager(config, self.pool, pipeline)
        if config.offload:
            self.pager.keep_evicted = host.keep
        self.contents = Contents(config, self.pager)
        self.compaction = Compaction(config, self.pager, self.contents)
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # in order of admission
        self.held_up: list[Request] = []  # running rows that wait for pending blocks, in the last decision
        self.waited = False  # there was one in it, if only until it was preempted itself
        self.now_ns = 0
        self.batch_open = False  # `refill = batch`: nobody in the batch has decoded yet
        self.preemptions = 0
        # Since the previous planned step; whoever starts a step sets them to zero.
        self.blocks_taken = 0
        self.copied_blocks = 0
        self.blocks_freed = 0

    def decide(self, now_ns: int, *, again: bool) -> tuple[Planned, bool]:
        """Plan a step, or nothing: once. Also whether anybody was preempted.

        ``again``: this decision has preempted before, and nothing was planned.
        """
        self.now_ns = now_ns
        self.compaction.check(self.running, self.host.ready, list(self.host.moving.values()))
        self.held_up, self.waited = [], False
        if not self.running:
            self.batch_open = True
        planned, preempted = (
            self._decide_separate(again) if self.config.prefill == "separate" else self._decide_chunked()
        )
        if any(r.decoding for r, _ in planned):
            self.batch_open = False
        return planned, preempted

    def _decide_chunked(self) -> tuple[Planned, bool]:
        """`chunked(budget)`, and `none`: the same with an infinite budget."""
        config = self.config
        budget = INFINITE_TOKENS if config.prefill == "none" else config.token_budget
        planned, left, preempted = self._serve_running(budget)
        while self.host.ready and left > 0 and not self.waited:
            r = self._join()
            n = min(r.known - r.computed, left)
            planned.append((r, n))
            left -= n
        if preempted or self.waited or not self._may_refill():
            return planned, preempted
        while self.waiting and left > 0 and self._has_slot():
            r = first_of(config, self.waiting)
            if r.leaving:
                break
            entry = entry_of(config, self.pager, self.host, r, left)
            if not self._fits(r, entry):
                break
            self._admit(r, entry)
            if not entry.moves:
                planned.append((r, entry.tokens))
                left -= entry.tokens
        return planned, preempted

    def _decide_separate(self, again: bool) -> tuple[Planned, bool]:
        """`separate`: a step of whole prefills, else a decode step.

        Who was swapped comes in before the running rows grow, and is no step by itself. So it does not come in
        ``again``: it would take what was freed for a running row, be preempted for it, and come in for ever.
        """
        config = self.config
        admitted = self._join_prefills()
        while self._may_refill() and self.waiting and self._has_slot():
            r = first_of(config, self.waiting)
            if r.leaving or (r.host_blocks and again and self.running):
                break
            entry = entry_of(config, self.pager, self.host, r, INFINITE_TOKENS)
            prefills = not entry.swapped and not entry.moves  # else nothing of it counts against the budget
            tokens = sum(n for _, n in admitted) + entry.tokens * prefills
            if (admitted and tokens > config.token_budget) or not self._fits(r, entry):
                break
            self._admit(r, entry)
            if prefills:
                admitted.append((r, entry.tokens))
        if admitted:
            return admitted, False
        planned, _, preempted = self._serve_running(INFINITE_TOKENS)
        return planned, preempted

    def _serve_running(self, budget: int) -> tuple[Planned, int, bool]:
        """Running rows first, in order: (planned, tokens left, preempted).

        Nobody is preempted for a row that can have what it needs once pending blocks are free: it waits.
        """
        planned: Planned = []
        left, preempted = budget, False
        for r in list(self.running):
            if left <= 0:
                break
            if r not in self.running:  # it was the victim of a row before it
                continue
            n = min(r.known - r.computed, left)
            r.drafts = drafts_of(self.config, r, self.pipeline.number)
            self._drop_before_growth(r, n)
            need = 0 if r.reservation_tokens is not None else growth_blocks(self.config, r, n + r.drafts)
            while r in self.running and need > self.pager.free() + len(self.pager.pending_ids()):
                victim = victim_of(self.config, self.running)
                self._preempt(victim)
                preempted = True
                left += sum(tokens for other, tokens in planned if other is victim)
                planned = [(other, tokens) for other, tokens in planned if other is not victim]
            if r in self.running and need > self.pager.free():
                self.held_up.append(r)
                self.waited = True
                r.drafts = 0  # it is not in the step
            elif r in self.running:
                self._take(r, max(need, 0))
                planned.append((r, n))
                left -= n
        return planned, left, preempted

    def _drop_before_growth(self, r: Request, n: int) -> None:
        """Far history: a decoding row with all that it keeps drops a block before it takes the next."""
        config = self.config
        if config.far_history and r.decoding and growth_blocks(config, r, n) > 0:
            assert n == 1, f"row {r.row} decodes {n} tokens"
            if len(r.blocks) >= config.kept_blocks:
                self._drop(r)

    def drop_after_prefill(self, r: Request) -> None:
        """Far history: what a row need not keep of what it has computed, at the end of a step."""
        config = self.config
        while config.far_history and config.blocks(r.computed) - r.dropped > config.kept_blocks:
            self._drop(r)

    def give_back_drafts(self) -> None:
        """Speculation: at the end of a step, once its tokens are delivered, nobody holds blocks for what is not."""
        for r in self.running:
            if r.drafts > 0:  # with none it has taken no more than it has written
                self.blocks_freed += give_back(self.config, self.pager, r)
            r.drafts = 0

    def _drop(self, r: Request) -> None:
        self.pager.drop(r)
        self.blocks_freed += 1

    def _may_refill(self) -> bool:
        return self.config.refill == "continuous" or self.batch_open

    def _has_slot(self) -> bool:
        """Whether there is room for one more; who moves or is ready holds a stage row and will need a batch row."""
        return len(self.running) + len(self.host.held_rows()) < self.config.slots

    def _fits(self, r: Request, entry: Entry) -> bool:
        margin = self.config.watermark_blocks if self.running or self.host.held_rows() else 0
        if not enough_free(self.pager, entry, margin):
            return False
        if r.reservation_tokens is None or has_run(self.config, self.pager, entry.want):
            return True
        return self.compaction.on_demand(self.running) and has_run(self.config, self.pager, entry.want)

    def _admit(self, r: Request, entry: Entry) -> None:
        self.waiting.remove(r)
        stage_rows = {other.stage_row for other in [*self.running, *self.host.held_rows()]}
        r.stage_row = min(row for row in range(self.config.slots) if row not in stage_rows)
        if not entry.moves:
            self._run(r)
        r.takes_all = entry.takes_all
        if r.reservation_tokens is None:
            self.pager.share(r, entry.hit)
            self.blocks_taken += len(entry.hit.blocks)
            self.host.pool.hold(entry.load)  # before anything is evicted to make room, on either side
            self._take(r, entry.want - len(entry.hit.blocks))
            self.copied_blocks += entry.hit.copies_tail
        else:
            assert entry.hit == NO_HIT, f"row {r.row} has a reservation and shares {entry.hit.blocks}"
            self.pager.reserve(r, self.config.blocks(r.reservation_tokens))
            assert len(r.blocks) == entry.want, f"row {r.row} wants {entry.want} blocks and was given {len(r.blocks)}"
            self.blocks_taken += entry.want
        r.computed = entry.computed
        hit_tokens = entry.computed
        if entry.swapped:
            r.decoding = True
            hit_tokens = 0
        elif self.config.prefill == "none":
            r.decoding = True
            if r.reservation_tokens is None:
                r.dropped = self.config.blocks(r.known) - entry.want  # far history: these never were
            hit_tokens = len(entry.hit.blocks) * self.config.block_size_tokens
            self.pager.give_keys(r, len(entry.hit.blocks), entry.computed // self.config.block_size_tokens)
        self._count_admission(r, hit_tokens)
        if entry.swapped or entry.load:
            self._bring_in(r, entry)

    def _bring_in(self, r: Request, entry: Entry) -> None:
        """What an admission copies from the host; with overlap it moves until that has been noticed."""
        self.events.append(Event(self.now_ns, "swap_in" if entry.swapped else "load", r.row))
        if entry.swapped:
            self.host.bring_in(r, self.now_ns)
        else:
            self.host.load(r, entry.load, self.now_ns)
        if not entry.moves:
            self._came_in(r)

    def _came_in(self, r: Request) -> None:
        """The copy is done: the host's blocks are given back, and what was loaded is found by its keys."""
        last = r.computed // self.config.block_size_tokens
        self.pager.give_keys(r, last - len(r.loading), last)
        self.host.came_in(r)

    def _join_prefills(self) -> Planned:
        """`separate`: who is ready joins; those that were loaded are prefills of the step, whole, within the budget."""
        admitted: Planned = []
        while self.host.ready:
            r = self.host.ready[0]
            tokens = sum(n for _, n in admitted) + r.known - r.computed
            if not r.decoding and admitted and tokens > self.config.token_budget:
                break  # it stays ready, and so do those behind it
            self._join()
            if not r.decoding:
                admitted.append((r, r.known - r.computed))
        return admitted

    def _join(self) -> Request:
        """The first of the ready requests joins running."""
        r = self.host.ready.pop(0)
        self._run(r)
        return r

    def _run(self, r: Request) -> None:
        r.slot = lowest_free_slot(self.config, self.running)
        r.joined_in = self.pipeline.number
        self.running.append(r)

    def notice(self, horizon_ns: int, now_ns: int) -> bool:
        """Who moved has left or come in, as far as the horizon shows. Whether there was anybody."""
        noticed = self.host.notice(horizon_ns, now_ns)
        for direction, r in noticed:
            if direction == OUT:
                r.leaving = False
                self.blocks_freed += len(r.blocks)
                self.pager.release(r, at_once=True)
                r.stage_row = None
            else:
                self._came_in(r)
                self.host.ready.append(r)
        return noticed != []

    def _count_admission(self, r: Request, hit_tokens: int) -> None:
        """Section 5, Counts: a first hit is a hit; a later one undoes part of what the last preemption lost."""
        self.events.append(Event(self.now_ns, "admit", r.row))
        if r.admitted_ns is None:
            r.admitted_ns = self.now_ns
            r.hit_tokens = hit_tokens
        else:
            r.recomputed_tokens -= min(hit_tokens, r.lost_tokens)

    def _take(self, r: Request, count: int) -> None:
        self.pager.take(r, count)
        self.blocks_taken += count

    def _preempt(self, victim: Request) -> None:
        self.preemptions += 1
        self.held_up = [r for r in self.held_up if r is not victim]
        if victim.ended:  # nothing of the request changes, and it does not wait again
            self.pipeline.drop(victim)
            self.remove(victim)
            self.events.append(Event(self.now_ns, "preempt_ended", victim.row))
            return
        victim.preemptions += 1
        self.events.append(Event(self.now_ns, "preempt", victim.row))
        if self.host.may_swap(victim):
            self._swap_out(victim)
        else:
            victim.recomputed_tokens += victim.computed
            victim.lost_tokens = victim.computed
            self.remove(victim)
        self.waiting.insert(0, victim)  # with an order, the place in the list means nothing

    def _swap_out(self, victim: Request) -> None:
        """Its entries go to the host. With overlap its blocks and its stage row stay until that has been noticed."""
        computed = victim.computed
        self.host.send_out(victim, self.now_ns)
        self.events.append(Event(self.now_ns, "swap_out", victim.row))
        if victim.leaving:
            self.running.remove(victim)
            victim.slot = victim.staged_blocks = None
            victim.decoding, victim.drafts = False, 0
        else:
            self.remove(victim)
        victim.computed = computed
        victim.lost_tokens = 0

    def remove(self, r: Request) -> None:
        """Out of running. Blocks, slot and stage row are returned; only blocks with a key keep what was in them."""
        self.running.remove(r)
        self.blocks_freed += len(r.blocks)
        if r.reservation_tokens is None:
            self.pager.release(r)
        else:
            self.pager.release_reservation(r)
        r.computed = r.dropped = r.drafts = 0
        r.decoding = r.takes_all = False
        r.slot = r.stage_row = r.staged_blocks = None

    def take_counts(self) -> dict[str, int]:
        """Integers of section 6 that count what was decided since the previous planned step; they begin anew."""
        counts = {
            "copied_blocks": self.copied_blocks,
            "blocks_taken": self.blocks_taken,
            "blocks_freed": self.blocks_freed,
            **self.host.take_counts(),
            **self.compaction.integers(),
        }
        self.copied_blocks = self.blocks_taken = self.blocks_freed = 0
        return counts

    def look(self) -> None:
        """Check what is in the blocks of who runs, and of who is ready, since what it has loaded has its keys."""
        self.contents.look([*self.running, *self.host.ready])

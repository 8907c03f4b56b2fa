"""The reference's decision: who runs in a step and in which blocks, literal from docs/semantics.md section 3."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.reference_far_history import growth_blocks
from tests.sim.reference_host import Host
from tests.sim.reference_link import OUT
from tests.sim.reference_plan import Planned
from tests.sim.reference_prefix import NO_HIT, Hit, Pager
from tests.sim.reference_records import Event, ReferenceConfig, Request
from tests.sim.reference_run_ahead import Pipeline
from tests.sim.reference_runs import RunStore, new_store

#: The budget of `prefill = none`, and of the decode steps of `separate`.
INFINITE_TOKENS = 1 << 60


@dataclass(frozen=True)
class Entry:
    """What the admission of a request would be now."""

    hit: Hit
    computed: int
    tokens: int  # n
    want: int  # blocks
    swapped: bool  # it comes in from the host
    moves: bool  # it is not in this step: it joins when its copy has been noticed


class Scheduler:
    """Waiting, running, and the blocks, slots and stage rows that running requests hold."""

    def __init__(self, config: ReferenceConfig, events: list[Event], pipeline: Pipeline, host: Host) -> None:
        self.config = config
        self.events = events
        self.pipeline = pipeline
        self.host = host
        self.pool = new_store(config.placement, config.pool_blocks, config.extent_blocks)
        self.pager = Pager(config, self.pool, pipeline)
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # in order of admission
        self.held_up: list[Request] = []  # running rows that wait for pending blocks, in the last decision
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
        self.held_up = []
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
        while self.host.ready and left > 0 and not self.held_up:
            r = self._join()
            n = min(r.known - r.computed, left)
            planned.append((r, n))
            left -= n
        if preempted or self.held_up or not self._may_refill():
            return planned, preempted
        while self.waiting and left > 0 and self._has_slot():
            r = self._first_waiting()
            if r.leaving:
                break
            entry = self._entry(r, left)
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
        if self._may_refill():
            admitted: Planned = []
            while self.host.ready:
                self._join()
            while self.waiting and self._has_slot():
                r = self._first_waiting()
                if r.leaving or (r.host_blocks and again and self.running):
                    break
                entry = self._entry(r, INFINITE_TOKENS)
                prefills = not entry.swapped  # who comes in decodes, so nothing of it counts against the budget
                tokens = sum(n for _, n in admitted) + entry.tokens * prefills
                if (admitted and tokens > self.config.token_budget) or not self._fits(r, entry):
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
            self._drop_before_growth(r, n)
            need = 0 if r.reservation_tokens is not None else growth_blocks(self.config, r, n)
            while r in self.running and need > self.pager.free() + len(self.pager.pending_ids()):
                victim = self._victim()
                self._preempt(victim)
                preempted = True
                left += sum(tokens for other, tokens in planned if other is victim)
                planned = [(other, tokens) for other, tokens in planned if other is not victim]
            if r in self.running and need > self.pager.free():
                self.held_up.append(r)
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

    def _drop(self, r: Request) -> None:
        self.pager.drop(r)
        self.blocks_freed += 1

    def _victim(self) -> Request:
        """The row to preempt: of equals the later in running."""
        worst = {
            "last": lambda index: index,
            "least_computed": lambda index: -self.running[index].computed,
            "largest": lambda index: len(self.running[index].blocks),
            "lowest_priority": lambda index: self.running[index].priority,
        }[self.config.victim]
        return self.running[max(range(len(self.running)), key=lambda index: (worst(index), index))]

    def _first_waiting(self) -> Request:
        """First of waiting: the head of the queue, or the least (score, turn)."""
        if self.config.order == "fcfs":
            return self.waiting[0]
        return min(self.waiting, key=self._score_and_turn)

    def _score_and_turn(self, r: Request) -> tuple[int, int]:
        assert r.turn is not None
        key = {"shortest_prompt": r.prompt, "shortest_total": r.prompt + r.output, "priority": r.priority}
        score = key[self.config.order]
        if self.config.aging_ns is not None:
            score = score * self.config.aging_ns + r.arrival_ns
        return score, r.turn

    def _may_refill(self) -> bool:
        return self.config.refill == "continuous" or self.batch_open

    def _has_slot(self) -> bool:
        """Whether there is room for one more; who moves or is ready holds a stage row and will need a batch row."""
        return len(self.running) + len(self.host.held_rows()) < self.config.slots

    def _entry(self, r: Request, left: int) -> Entry:
        """What an admission of ``r`` would be, with ``left`` tokens of the budget. Changes nothing."""
        config = self.config
        if r.host_blocks:
            return Entry(NO_HIT, r.computed, 1, config.blocks(r.known), swapped=True, moves=config.host_overlap)
        hit = self.pager.find(r)
        computed = r.known - 1 if config.prefill == "none" else hit.computed
        n = min(r.known - computed, left)
        return Entry(hit, computed, n, self._want(r, computed + n), swapped=False, moves=False)

    def _want(self, r: Request, first_chunk_end: int) -> int:
        """Blocks that an admission takes."""
        if r.reservation_tokens is not None:
            return self._runs().run_blocks(self.config.blocks(r.reservation_tokens))
        if self.config.admission == "first_chunk":
            return self.config.blocks(first_chunk_end)
        return self.config.most(r.known)

    def _fits(self, r: Request, entry: Entry) -> bool:
        margin = self.config.watermark_blocks if self.running or self.host.held_rows() else 0
        if entry.want - len(entry.hit.blocks) > self.pager.free() - entry.hit.evictable - margin:
            return False
        return r.reservation_tokens is None or self._has_run(entry.want)

    def _has_run(self, want: int) -> bool:
        """Whether one run of ``want`` blocks is free, found by looking at every free id.

        A run of a buddy store has to start at a multiple of its length.
        """
        free = set(self.pool.free_ids())
        step = want if self.config.placement == "buddy" else 1
        starts = range(1, self.config.pool_blocks + 1, step)
        return any(all(start + offset in free for offset in range(want)) for start in starts)

    def _admit(self, r: Request, entry: Entry) -> None:
        self.waiting.remove(r)
        stage_rows = {other.stage_row for other in [*self.running, *self.host.held_rows()]}
        r.stage_row = min(row for row in range(self.config.slots) if row not in stage_rows)
        if not entry.moves:
            r.slot = self.lowest_free_slot()
            self.running.append(r)
        if r.reservation_tokens is None:
            self.pager.share(r, entry.hit)
            self.blocks_taken += len(entry.hit.blocks)
            self._take(r, entry.want - len(entry.hit.blocks))
            self.copied_blocks += entry.hit.copies_tail
        else:
            assert entry.hit == NO_HIT, f"row {r.row} has a reservation and shares {entry.hit.blocks}"
            self.pager.reserve(r, self.config.blocks(r.reservation_tokens))
            assert len(r.blocks) == entry.want, f"row {r.row} wants {entry.want} blocks and was given {len(r.blocks)}"
            self.blocks_taken += entry.want
        r.computed = entry.computed
        if entry.swapped:
            r.decoding = True
            self._count_admission(r, 0)
            self.host.bring_in(r, self.now_ns)
            self.events.append(Event(self.now_ns, "swap_in", r.row))
            return
        hit_tokens = entry.computed
        if self.config.prefill == "none":
            r.decoding = True
            if r.reservation_tokens is None:
                r.dropped = self.config.blocks(r.known) - entry.want  # far history: these never were
            hit_tokens = len(entry.hit.blocks) * self.config.block_size_tokens
            self.pager.give_keys(r, len(entry.hit.blocks), entry.computed // self.config.block_size_tokens)
        self._count_admission(r, hit_tokens)

    def _join(self) -> Request:
        """The first of the ready requests joins running."""
        r = self.host.ready.pop(0)
        r.slot = self.lowest_free_slot()
        self.running.append(r)
        return r

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
                self.host.came_in(r)
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
            victim.decoding = False
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
        r.computed = r.dropped = 0
        r.decoding = False
        r.slot = r.stage_row = r.staged_blocks = None

    def take_counts(self) -> dict[str, int]:
        """Integers of section 6 that count what was decided since the previous planned step; they begin anew."""
        counts = {
            "copied_blocks": self.copied_blocks,
            "blocks_taken": self.blocks_taken,
            "blocks_freed": self.blocks_freed,
            **self.host.take_counts(),
        }
        self.copied_blocks = self.blocks_taken = self.blocks_freed = 0
        return counts

    def lowest_free_slot(self) -> int:
        """The lowest batch row that no running request has."""
        live = {r.slot for r in self.running}
        return min(slot for slot in range(self.config.slots) if slot not in live)

    def move_rows(self, batch: int) -> int:
        """Section 6: rows at or above the captured batch move into the holes below it. Returns the moves."""
        moves = 0
        while max(slot_of(r) for r in self.running) >= batch:
            highest = max(self.running, key=slot_of)
            highest.slot = self.lowest_free_slot()
            moves += 1
        return moves

    def _runs(self) -> RunStore:
        assert isinstance(self.pool, RunStore)
        return self.pool


def slot_of(r: Request) -> int:
    """The batch row of a running request."""
    assert r.slot is not None, f"row {r.row} does not run"
    return r.slot

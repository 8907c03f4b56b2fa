"""The reference's run-ahead: what a decision may know, and what the steps in flight still read.

Literal from docs/semantics.md section 3, "Run-ahead". Without it a decision knows the present and nothing is fenced.
Decision n plans step n, and whatever is decided before it plans anything; so while decision n is taken, and when step
n - 1 ends, n steps have been planned.
Left out: who is released and what joins the free store; the scheduler and the pager do that.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.reference_records import ReferenceConfig, Request


@dataclass(frozen=True)
class Fenced:
    """Blocks that were given back and may still be read: one block, or the run of a reservation."""

    lifted_in: int  # the number of the decision
    blocks: tuple[int, ...]
    is_run: bool


class Pipeline:
    """The steps that were planned, and which of them are in flight when the next one is decided."""

    def __init__(self, config: ReferenceConfig) -> None:
        self.depth = config.run_ahead
        self.starts_ns: list[int] = []  # of each step that was planned
        #: Which rows had which blocks in each step: the checks' own account of what is read in flight.
        self.readers: list[dict[int, set[int]]] = []
        self.first = 0  # f: the first step since the replica last planned nothing
        self.fences: list[Fenced] = []  # in the order in which the blocks were given back
        self.ended: list[tuple[int, Request]] = []  # rows that run on, and the step at whose end each is released

    @property
    def number(self) -> int:
        """n, of the decision that is taken now or next."""
        return len(self.starts_ns)

    @property
    def follows(self) -> bool:
        """Whether the step that is decided now is decided with the one before it in flight."""
        return self.depth > 0 and self.number > self.first

    def horizon_ns(self, now_ns: int) -> int:
        """Until when the decision at ``now_ns`` knows what happened."""
        return self.starts_ns[self._oldest()] if self.follows else now_ns

    def step_planned(self, start_ns: int, rows: list[Request]) -> None:
        """One more step, of these rows and their blocks."""
        readers: dict[int, set[int]] = {}
        for r in rows:
            for block in r.blocks:
                readers.setdefault(block, set()).add(r.row)
        self.starts_ns.append(start_ns)
        self.readers.append(readers)

    def fence(self, blocks: tuple[int, ...], *, is_run: bool) -> None:
        """Blocks that are given back now: pending until the beginning of decision n + d."""
        self.fences.append(Fenced(self.number + self.depth, blocks, is_run))

    def lifted(self, *, everything: bool) -> list[Fenced]:
        """Take out what is not fenced any more, in the order in which it was given back."""
        due = [fenced for fenced in self.fences if everything or fenced.lifted_in <= self.number]
        self.fences = [fenced for fenced in self.fences if fenced not in due]
        return due

    def fenced_blocks(self) -> set[int]:
        """All that is behind a fence."""
        return {block for fenced in self.fences for block in fenced.blocks}

    def runs_on(self, config: ReferenceConfig, r: Request) -> bool:
        """Whether the row of a request that has just ended runs on: there is room for what nobody has noticed yet."""
        if r.reservation_tokens is None:
            room = config.limit_tokens - (r.prompt + r.output)
        else:
            room = r.reservation_tokens - (r.prompt + r.output - 1)
        return room >= self.depth > 0

    def run_on(self, r: Request) -> None:
        """The last planned step has just ended and with it this request; its row is released d steps later."""
        r.ended = True
        self.ended.append((self.number - 1 + self.depth, r))

    def due(self, *, everything: bool) -> list[Request]:
        """Take out the ended rows that are released at the end of the last planned step."""
        due = [r for step, r in self.ended if everything or step <= self.number - 1]
        self.ended = [(step, r) for step, r in self.ended if r not in due]
        return due

    def drop(self, r: Request) -> None:
        """An ended row is gone before its time."""
        self.ended = [(step, other) for step, other in self.ended if other is not r]

    def empty(self) -> None:
        """The replica has planned nothing: no step is in flight."""
        self.first = self.number

    def in_flight_readers(self, block: int) -> set[int]:
        """Rows that have this block in a step that is in flight while step n is decided."""
        if not self.follows:
            return set()
        return {row for readers in self.readers[self._oldest() :] for row in readers.get(block, ())}

    def forget(self, block: int) -> None:
        """The page frees this block at once, whoever reads it in flight."""
        for readers in self.readers[self._oldest() :]:
            readers.pop(block, None)

    def _oldest(self) -> int:
        return max(self.number - self.depth, self.first)

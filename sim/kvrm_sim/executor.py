"""The seam between deciding and time passing (DESIGN section 4): an Executor runs what the core has planned.

The core stops after each decision; :func:`drive` hands the :class:`StepPlan` to an executor, and the time that it took
back to the core. ``CostModelExecutor`` takes the predicted time, ``RecordedExecutor`` the times of an earlier run; a
device's executor lives in ``gpu/``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.descriptor import CommitDescriptor
from kvrm_sim.errors import RunError
from kvrm_sim.feed import Chunk
from kvrm_sim.replica import Replica

#: Steps in one call while nothing has to be executed (arrivals, idle time).
_STEPS_A_CALL = 1 << 30


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens that one row computes in a step.

    ``table``: int64, the physical blocks of entries [0, start + tokens) (of a contiguous reservation too). ``known``:
    prompt and delivered tokens; the chunk that reaches it gives a token. ``admitted``: whether the row begins in this
    step, behind whatever is cached of its prompt. ``dropped_blocks``: blocks of its history that the row has given back
    (far history): `table` is without them.
    """

    row: int
    stage_row: int
    start: int
    tokens: int
    known: int
    table: NDArray[np.int64]
    admitted: bool
    dropped_blocks: int = 0

    @property
    def gives_token(self) -> bool:
        """Whether this chunk is the last of its prompt."""
        return self.start + self.tokens == self.known


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does. Valid until the next decision: the descriptor's buffers are reused.

    ``step``: the STEP record (counts and predicted times). ``decoding``: (stage row, the trace's row) of every decoding
    row that runs; ``ended``: the stage rows of those whose request has ended (run-ahead), whose tokens nobody gets.
    ``moves``: int64 [n, 3] = (kind, source, target), the blocks to be copied before the step, in this order
    (``moves.MOVE_KINDS``); empty unless the replica logs its moves.
    """

    number: int
    step: st.Record
    descriptor: CommitDescriptor
    chunks: tuple[PrefillChunk, ...]
    decoding: tuple[tuple[int, int], ...]
    ended: tuple[int, ...]
    moves: NDArray[np.int64]

    def digest(self) -> str:
        """A hash of every decision in this plan and of none of its times: equal plans, equal digests."""
        found = hashlib.blake2b(digest_size=16)
        d = self.descriptor
        for array in (d.block_tables, d.slot_mapping, d.lengths, d.positions, d.active, d.stage_rows, d.stage_offsets):
            found.update(array.tobytes())
        found.update(d.groups[: d.num_groups].tobytes())
        for chunk in self.chunks:
            which = (chunk.row, chunk.stage_row, chunk.start, chunk.tokens, chunk.known, chunk.admitted)
            found.update(repr((*which, chunk.dropped_blocks)).encode())
            found.update(chunk.table.tobytes())
        shape = (self.step.launch_kind, self.step.padded_rows, self.step.context_bucket, self.step.group_capacity)
        found.update(repr((self.decoding, self.ended, tuple(int(value) for value in shape))).encode())
        found.update(self.moves.tobytes())
        return found.hexdigest()


@dataclass(frozen=True, slots=True)
class StepTiming:
    """What a step took, in nanoseconds: the exposed part of each of ``state.PARTS``. They add up to the step."""

    exposed_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.exposed_ns) != len(st.PARTS) or min(self.exposed_ns) < 0:
            raise ValueError(f"exposed_ns = {self.exposed_ns}: should be {len(st.PARTS)} times, none negative")

    @property
    def duration_ns(self) -> int:
        """The whole step."""
        return sum(self.exposed_ns)

    @classmethod
    def predicted(cls, step: st.Record) -> StepTiming:
        """The times that the cost model gave the step."""
        return cls(tuple(int(step[f"{part}_exposed_ns"]) for part in st.PARTS))


class Executor(Protocol):
    """Makes time pass. Asynchronous, because fences and overlapped scheduling are."""

    def submit(self, plan: StepPlan) -> int:
        """Start a step; returns a ticket."""

    def wait(self, ticket: int) -> StepTiming:
        """What that step took, once it has ended."""

    def poll_transfers(self) -> Sequence[int]:
        """Tickets of transfers outside of steps that have ended since the last call."""


class CostModelExecutor:
    """The predicted time, at once."""

    def __init__(self) -> None:
        self._timing: dict[int, StepTiming] = {}

    def submit(self, plan: StepPlan) -> int:
        """Keep the step's predicted time."""
        self._timing[plan.number] = StepTiming.predicted(plan.step)
        return plan.number

    def wait(self, ticket: int) -> StepTiming:
        """The step's predicted time."""
        return self._timing.pop(ticket)

    def poll_transfers(self) -> Sequence[int]:
        """No transfer runs outside of a step."""
        return ()


class RecordedExecutor:
    """The times of an earlier run, step by step; raises RunError when this run has more steps than that one."""

    def __init__(self, timings: Iterable[StepTiming]) -> None:
        self._timings = list(timings)

    def submit(self, plan: StepPlan) -> int:
        """Look the step up by its number."""
        if plan.number >= len(self._timings):
            raise RunError(f"step {plan.number}: only {len(self._timings)} steps were recorded")
        return plan.number

    def wait(self, ticket: int) -> StepTiming:
        """The recorded time."""
        return self._timings[ticket]

    def poll_transfers(self) -> Sequence[int]:
        """No transfer runs outside of a step."""
        return ()


def drive(replica: Replica, feed: Iterator[Chunk], executor: Executor) -> Iterator[tuple[StepPlan, StepTiming]]:
    """Run a replica to its end, every step through an executor; yields each plan (valid until the next) and time."""
    descriptor = CommitDescriptor.for_parameters(replica.parameters.record)
    number = 0
    while True:
        reason = replica.advance(st.NEVER, max_steps=_STEPS_A_CALL, flags=st.STOP_AT_DECISIONS)
        if reason == st.NEED_ARRIVALS:
            chunk = next(feed)
            replica.supply(chunk.arrivals, known_until_ns=chunk.known_until_ns, ids=chunk.ids)
        elif reason == st.DECIDED:
            plan = plan_of(replica, descriptor, number)
            timing = executor.wait(executor.submit(plan))
            replica.set_timing(timing.exposed_ns)
            yield plan, timing
            number += 1
        elif reason != st.WORK:
            return


def plan_of(replica: Replica, descriptor: CommitDescriptor, number: int) -> StepPlan:
    """The plan of the step that a replica has just decided."""
    params, scalars, rows = replica.parameters.record, replica.scalars, replica.rows
    descriptor.fill(params, scalars, replica.steps, rows, replica.blocks, replica.keys, replica.table)
    chunks = tuple(_chunk(replica, int(row)) for row in rows["prefill"][: int(scalars[0].num_prefill)])
    live = np.flatnonzero(descriptor.active)
    stage_rows = descriptor.stage_rows[live].tolist()
    decoding = tuple((stage, int(replica.requests[rows[stage].request].row)) for stage in stage_rows)
    ended = tuple(stage for stage in stage_rows if rows[stage].ended)
    return StepPlan(number, replica.steps[0], descriptor, chunks, decoding, ended, replica.moves)


def _chunk(replica: Replica, stage_row: int) -> PrefillChunk:
    r = replica.rows[stage_row]
    q = replica.requests[r.request]
    p = replica.parameters.record[0]
    end = int(r.computed + r.planned)
    blocks = -(-end // int(p.block_size)) - int(r.dropped)
    if replica.parameters.paged:
        table = replica.table[stage_row, :blocks].copy()
    else:
        table = np.arange(r.run_start, r.run_start + blocks, dtype=np.int64)
    known = int(q.prompt_tokens + q.delivered)
    return PrefillChunk(
        row=int(q.row),
        stage_row=stage_row,
        start=int(r.computed),
        tokens=int(r.planned),
        known=known,
        table=table,
        admitted=bool(r.begun == 0),
        dropped_blocks=int(r.dropped),
    )

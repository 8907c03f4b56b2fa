"""Blocks that change place before a step: compaction, copied tails, swaps and what is kept on the host.

The plan lists them one by one in the order in which they were decided, and one may read what another wrote: so the
order is kept, and only neighbours that do not depend on each other are one move. Copies are ordered, block by block, by
events (block_order.py). With ``host.overlap`` swaps and loads run on a stream of their own, beside the steps; then the
steps say what they touch, too. Everything else runs on the steps' stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend, Stream
from kvrm_gpu.block_order import StreamClock, Touches
from kvrm_gpu.errors import DeviceError
from kvrm_gpu.kv_pool import HostPool
from kvrm_gpu.transfer import Groups, Space, TransferEngine
from kvrm_sim.executor import StepPlan
from kvrm_sim.moves import MOVE_COMPACT, MOVE_IN, MOVE_KINDS, MOVE_LOAD, MOVE_OFFLOAD, MOVE_OUT, MOVE_TAIL
from kvrm_sim.policy import Policy
from kvrm_sim.policy_parts import Host

#: Groups in one launch of the kernel that copies inside the pool; more take more launches.
GROUP_CAPACITY = 256
#: What a step's record counts of each kind.
_COUNTED = {
    MOVE_COMPACT: "compacted_blocks",
    MOVE_TAIL: "copied_blocks",
    MOVE_OUT: "host_out_blocks",
    MOVE_IN: "host_in_blocks",
    MOVE_OFFLOAD: "offload_blocks",
}


class BlockMoves:
    """Carries out a plan's moves between the blocks of ``pool`` and those of the host's pool, which it holds.

    ``stream``: the steps'. ``host_blocks``: of the host's pool, which has the layout of ``pool``, so that neighbours
    are one piece on both sides.
    """

    def __init__(
        self, backend: Backend, clock: StreamClock, pool: Space, stream: Stream, host: Host | None, host_blocks: int
    ) -> None:
        self._clock, self.pool, self._stream = clock, pool, stream
        inside = TransferEngine(backend, clock, stream, "kernel", GROUP_CAPACITY)
        #: What carries out each kind.
        self.engines = {MOVE_COMPACT: inside, MOVE_TAIL: inside}
        #: The blocks on the host, or None.
        self.host: Space | None = None
        self._merges = {MOVE_COMPACT: True, MOVE_TAIL: False}
        self._overlaps = host is not None and host.overlap
        if host is None:
            return
        self.host = Space(HostPool(backend, pool.pool.shape, host_blocks, pool.pool.layout), clock)
        link = backend.stream() if host.overlap else stream
        beside, own = (TransferEngine(backend, clock, on, host.submission) for on in (link, stream))
        self.engines |= {MOVE_OUT: beside, MOVE_IN: beside, MOVE_LOAD: beside, MOVE_OFFLOAD: own}
        self._merges |= dict.fromkeys((MOVE_OUT, MOVE_IN, MOVE_LOAD, MOVE_OFFLOAD), host.merge == "adjacent")

    @classmethod
    def needed_by(cls, policy: Policy) -> bool:
        """Whether a policy's plans have moves."""
        pager = policy.pager
        tails = pager.prefix_sharing and pager.partial_tail == "copy"
        return tails or pager.compaction != "none" or policy.host is not None

    def carry_out(self, plan: StepPlan) -> None:
        """Enqueue a step's moves. Raises DeviceError when the plan does not list what its step counts."""
        _require_all(plan)
        for kind, pairs in _by_kind(plan.moves):
            come, go = self._spaces(kind)
            for some in independent(pairs, within=come is go):
                self.engines[kind].move(come, go, grouped(some, merges=self._merges[kind]))

    def _spaces(self, kind: int) -> tuple[Space, Space]:
        if kind in (MOVE_COMPACT, MOVE_TAIL):
            return self.pool, self.pool
        if self.host is None:
            raise DeviceError(f"a move {MOVE_KINDS[kind]!r}, and the policy has no [host]")
        return (self.pool, self.host) if kind in (MOVE_OUT, MOVE_OFFLOAD) else (self.host, self.pool)

    def before_step(self, plan: StepPlan) -> Touches:
        """Hold the steps' stream until everything on the link that this step depends on is done. The caller launches
        the step and gives what this returned to :meth:`after_step`.
        """
        touches = self._touched(plan) if self._overlaps else Touches()
        touches.begin(self._clock, self._stream)
        return touches

    def after_step(self, touches: Touches) -> None:
        """The step is enqueued: whoever moves its blocks waits for it."""
        if self._overlaps:
            touches.end(self._clock, self._stream)

    def _touched(self, plan: StepPlan) -> Touches:
        """Blocks that a step reads (paged, as everything that swaps or shares) and those that it writes."""
        d, size = plan.descriptor, self.pool.pool.shape.block_size
        live = d.active != 0
        tables = d.block_tables[live]
        written = [d.slot_mapping[live] // size]
        written += [chunk.table[chunk.start // size - chunk.dropped_blocks :] for chunk in plan.chunks]
        read = [tables[tables != 0].astype(np.int64), *(chunk.table for chunk in plan.chunks)]
        order = self.pool.order
        return Touches(reads=((order, np.concatenate(read)),), writes=((order, np.concatenate(written)),))


def _require_all(plan: StepPlan) -> None:
    kinds = np.bincount(plan.moves[:, 0], minlength=len(MOVE_KINDS))
    kinds[MOVE_IN] += kinds[MOVE_LOAD]
    for kind, name in _COUNTED.items():
        if kinds[kind] != plan.step[name]:
            raise DeviceError(
                f"step {plan.number}: {kinds[kind]} moves {MOVE_KINDS[kind]!r} are listed, its record counts "
                f"{plan.step[name]}: the replica's parameters need log_moves"
            )


def _by_kind(moves: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(kind, pairs int64 [n, 2]) of each stretch of one kind, in order, without blocks that stay where they are.

    A row may be given the cached block itself whose tail it copies: nobody held it, and it was evicted for the row.
    """
    ends = [*(np.flatnonzero(np.diff(moves[:, 0])) + 1).tolist(), len(moves)]
    first = 0
    for end in ends:
        pairs = moves[first:end, 1:]
        if first < end:
            kind = int(moves[first, 0])
            yield kind, pairs[pairs[:, 0] != pairs[:, 1]] if kind == MOVE_TAIL else pairs
        first = end


def independent(pairs: NDArray[np.int64], *, within: bool) -> Iterator[NDArray[np.int64]]:
    """The pairs (source, target), in order, cut where one writes what was written before it and, ``within`` one pool,
    writes what was read or reads what was written.
    """
    come, go = pairs[:, 0], pairs[:, 1]
    if len(np.unique(go)) == len(go) and not (within and len(np.intersect1d(come, go))):
        if len(pairs):
            yield pairs
        return
    reads: set[int] = set()
    writes: set[int] = set()
    first = 0
    for at, (source, target) in enumerate(pairs.tolist()):
        if target in writes or (within and (source in writes or target in reads)):
            yield pairs[first:at]
            reads, writes, first = set(), set(), at
        reads.add(source)
        writes.add(target)
    yield pairs[first:]


def grouped(pairs: NDArray[np.int64], *, merges: bool) -> Groups:
    """Groups int64 [n, 3] of pairs; where it ``merges``, neighbours whose ids follow each other on both sides are
    one.
    """
    follows = (np.diff(pairs, axis=0) == 1).all(axis=1) & merges
    first = np.flatnonzero(np.concatenate(([True], ~follows)))
    counts = np.diff(np.concatenate((first, [len(pairs)])))
    return np.column_stack((pairs[first], counts))

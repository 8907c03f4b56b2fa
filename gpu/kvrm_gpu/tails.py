"""Partial tails: the last block of a prompt that is cached whole, copied into the row's own block before its step.

The cached block may go on being anybody's, and in the same decision it may be given to a later row, as that row's tail
too: so the order of the chunks is kept. Copies that do not depend on each other are one launch. They run on the stream
of the steps, and so after what wrote the cached block and before what writes either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kvrm_gpu.backend import Backend, Stream
from kvrm_gpu.transfer import Groups, Space, TransferEngine
from kvrm_sim.executor import PrefillChunk


class TailCopies:
    """Copies inside one pool. ``most``: rows that can begin in one step."""

    def __init__(self, backend: Backend, pool: Space, stream: Stream, most: int) -> None:
        self._pool = pool
        self._block_size = pool.pool.shape.block_size
        self.engine = TransferEngine(backend, pool.clock, stream, "kernel", group_capacity=most)

    def copy(self, chunks: Sequence[PrefillChunk]) -> None:
        """Enqueue the copies of a step's chunks, every layer of each block."""
        for groups in independent(tails_of(chunks, self._block_size)):
            self.engine.move(self._pool, self._pool, groups)


def tails_of(chunks: Sequence[PrefillChunk], block_size: int) -> list[tuple[int, int]]:
    """(cached block, the row's own block) of each tail, in the order of the plan.

    A row may be given the cached block itself, which nobody held and which was evicted for it: nothing is to be copied.
    """
    pairs = [
        (chunk.copied_from, int(chunk.table[chunk.start // block_size - chunk.dropped_blocks]))
        for chunk in chunks
        if chunk.copied_from
    ]
    return [(come, go) for come, go in pairs if come != go]


def independent(pairs: Sequence[tuple[int, int]]) -> Iterator[Groups]:
    """The pairs as groups int64 [n, 3], in order, cut where one writes what was read or written before it, or reads
    what was written.
    """
    reads: set[int] = set()
    writes: set[int] = set()
    groups: list[tuple[int, int, int]] = []
    for come, go in pairs:
        if come in writes or go in writes or go in reads:
            yield np.array(groups, np.int64)
            reads, writes, groups = set(), set(), []
        reads.add(come)
        writes.add(go)
        groups.append((come, go, 1))
    if groups:
        yield np.array(groups, np.int64)

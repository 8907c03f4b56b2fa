"""Far history, as a mask: which keys each token of a request saw when an executor computed it (docs/semantics.md
section 5), so that a forward pass without a cache can see the same.

What a query sees depends on where chunks end, so a preempted request has a mask an admission: keys and values are
computed anew each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

#: (start, tokens, known) of a chunk: known is prompt and delivered tokens when the row was admitted.
Prefill = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class FarView:
    """What rows keep: ``kept_blocks`` of ``block_size`` tokens, the first ``summary_blocks`` among them. ``prefills``:
    the chunks of each request row, in order (``DeviceExecutor.prefills``).
    """

    block_size: int
    kept_blocks: int
    summary_blocks: int
    prefills: Mapping[int, Sequence[Prefill]]

    def admissions(self, row: int, tokens: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """(first, end, the tokens of each chunk) of the admissions of a request that has ``tokens`` in the end: those
        that delivered its tokens [first, end).
        """
        chunks = list(self.prefills.get(row, ()))
        begins = [at for at, (start, _, _) in enumerate(chunks) if start == 0]
        for at, after in pairwise([*begins, len(chunks)]):
            known = chunks[at][2]
            end = chunks[after][2] if after < len(chunks) else tokens
            if known < end:
                yield known, end, tuple(count for _, count, _ in chunks[at:after])

    def mask(self, chunks: Sequence[int], tokens: int) -> NDArray[np.bool_]:
        """[queries, keys] of the first ``tokens`` tokens: computed by ``chunks``, then one by one."""
        mask = np.zeros((tokens, tokens), np.bool_)
        blocks: list[int] = []
        computed = 0
        for at in range(len(chunks) + tokens - sum(chunks)):
            decodes = at >= len(chunks)
            if decodes and computed % self.block_size == 0 and len(blocks) >= self.kept_blocks:
                del blocks[self.summary_blocks]
            end = computed + (1 if decodes else chunks[at])
            blocks += range(-(-computed // self.block_size), -(-end // self.block_size))
            for block in blocks:
                mask[computed:end, block * self.block_size : (block + 1) * self.block_size] = True
            if not decodes:
                del blocks[self.summary_blocks : self.summary_blocks + max(0, len(blocks) - self.kept_blocks)]
            computed = end
        return np.tril(mask)

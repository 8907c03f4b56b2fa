"""How much of the prompts repeats earlier prompts, by their prefix hashes: with a cache without end, with LRU caches,
and with caches that know the future (Belady's bound).
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.trace import Trace

#: Touches of blocks that the curves are drawn from; of more, the blocks of a sample, each with all of its touches.
MOST_TOUCHES = 1 << 21

#: Capacities of the LRU caches, in percent of the different blocks.
LRU_PERCENT = (1, 5, 10, 25, 50)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixReuse:
    """Shares of blocks and of prompt tokens that an earlier request had; ``lru_blocks`` and ``belady_blocks`` by
    percent of ``unique_blocks``.

    Blocks are touched one by one in the order of the rows and inserted on a miss. ``rows`` have hashes; others count
    nowhere. No cache of a size finds more blocks than ``belady_blocks``: it drops the block whose next use is furthest.
    ``curve_share``: of the different blocks, those that the two curves are drawn from, chosen by their ids alone, with
    as small a share of the capacity (1: all of them, and the curves are exact).
    """

    block_tokens: int
    rows: int
    touched_blocks: int
    unique_blocks: int
    infinite_blocks: float
    infinite_tokens: float
    curve_share: float
    lru_blocks: dict[int, float]
    belady_blocks: dict[int, float]


def prefix_reuse(trace: Trace, most_touches: int = MOST_TOUCHES) -> PrefixReuse | None:
    """The reuse of a trace; None when it has no hashes. Two passes: the first finds how many blocks there are.

    ``most_touches``: of blocks, that the curves are drawn from.
    """
    block_tokens = trace.info.hash_block_tokens
    if block_tokens is None:
        return None
    seen: set[int] = set()
    rows = touched = hits = tokens = hit_tokens = 0
    for batch in trace.batches(columns=("prompt_tokens", "prefix_hashes")):
        ids, counts, sizes = hashed_blocks(batch, block_tokens)
        new = _first_in(ids, seen)
        rows += int(np.count_nonzero(counts))
        touched += ids.size
        hits += int(np.count_nonzero(~new))
        tokens += int(sizes.sum())
        hit_tokens += int(sizes[~new].sum())
    if touched == 0:
        return None
    picked = _Picked(min(1.0, most_touches / touched))
    ids = picked.touches(trace)
    unique = picked.count(np.fromiter(seen, np.int64, len(seen)))
    capacities = {percent: unique * percent // 100 for percent in LRU_PERCENT}
    return PrefixReuse(
        block_tokens=block_tokens,
        rows=rows,
        touched_blocks=touched,
        unique_blocks=len(seen),
        infinite_blocks=hits / touched,
        infinite_tokens=hit_tokens / tokens,
        curve_share=unique / len(seen),
        lru_blocks=_at_most(hits / touched, _lru(ids, capacities)),
        belady_blocks=_at_most(hits / touched, _belady(ids, capacities)),
    )


def _at_most(ceiling: float, shares: dict[int, float]) -> dict[int, float]:
    """No cache finds more than one without end; what was counted on a sample of the blocks may say so."""
    return {percent: min(ceiling, share) for percent, share in shares.items()}


class _Picked:
    """A share of the blocks, chosen by a hash of their ids, so that a block is in with all of its touches or not at all
    (Waldspurger et al., SHARDS, 2015).
    """

    def __init__(self, share: float) -> None:
        self._below = np.uint64(round(share * 2**32))

    def _mask(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        return (mixed >> np.uint64(32)) < self._below

    def count(self, ids: npt.NDArray[np.int64]) -> int:
        """How many of these are picked."""
        return int(np.count_nonzero(self._mask(ids)))

    def touches(self, trace: Trace) -> npt.NDArray[np.int64]:
        """Every touch of a picked block, in order."""
        parts = []
        for batch in trace.batches(columns=("prefix_hashes",)):
            ids = np.asarray(batch.column(0).flatten().to_numpy(), np.int64)
            parts.append(ids[self._mask(ids)])
        return np.concatenate(parts)


def hashed_blocks(
    batch: pa.RecordBatch, block_tokens: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(ids, ids a row, prompt tokens an id) of a batch; a prompt's last block may not be full."""
    lists = batch.column("prefix_hashes")
    ids = lists.flatten().to_numpy()
    counts = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    starts = np.cumsum(counts) - counts
    index = np.arange(ids.size) - np.repeat(starts, counts)
    left = np.repeat(batch.column("prompt_tokens").to_numpy(), counts) - index * block_tokens
    return ids, counts, np.minimum(left, block_tokens)


def _first_in(ids: npt.NDArray[np.int64], seen: set[int]) -> npt.NDArray[np.bool_]:
    """Which ids were never seen before, neither in `seen` nor earlier here; `seen` grows by them."""
    unique, first = np.unique(ids, return_index=True)
    fresh = [at for value, at in zip(unique.tolist(), first.tolist(), strict=True) if value not in seen]
    seen.update(unique.tolist())
    new = np.zeros(ids.size, np.bool_)
    new[fresh] = True
    return new


def _lru(ids: npt.NDArray[np.int64], capacities: dict[int, int]) -> dict[int, float]:
    touches = ids.tolist()
    return {
        percent: _touch(OrderedDict(), capacity, touches) / max(1, ids.size) for percent, capacity in capacities.items()
    }


def _belady(ids: npt.NDArray[np.int64], capacities: dict[int, int]) -> dict[int, float]:
    touches, upcoming = ids.tolist(), next_uses(ids).tolist()
    return {
        percent: belady_hits(touches, upcoming, capacity) / max(1, ids.size) for percent, capacity in capacities.items()
    }


def next_uses(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each access's block is accessed next, int64 [n]; n where never again."""
    order = np.argsort(ids, kind="stable")
    upcoming = np.full(ids.size, ids.size, np.int64)
    same = ids[order][1:] == ids[order][:-1]
    upcoming[order[:-1][same]] = order[1:][same]
    return upcoming


def belady_hits(ids: list[int], upcoming: list[int], capacity: int) -> int:
    """Hits of the best cache of a size: on overflow it drops whatever is used again last, perhaps what was just read.

    ``upcoming``: of :func:`next_uses`.
    """
    kept: dict[int, int] = {}  # block -> its next use
    furthest: list[tuple[int, int]] = []  # (-next use, block); entries of an earlier use are stale
    hits = 0
    for block, next_use in zip(ids, upcoming, strict=True):
        hits += block in kept
        kept[block] = next_use
        heapq.heappush(furthest, (-next_use, block))
        while len(kept) > capacity:
            use, dropped = heapq.heappop(furthest)
            if kept.get(dropped) == -use:
                del kept[dropped]
    return hits


def _touch(cache: OrderedDict[int, None], capacity: int, ids: list[int]) -> int:
    hits = 0
    for block in ids:
        if block in cache:
            cache.move_to_end(block)
            hits += 1
        else:
            cache[block] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits

"""The reference's stores that also give contiguous reservations, and the store of each placement.

Literal from docs/semantics.md section 5, as reference_pool.py is.
"""

from __future__ import annotations

from abc import abstractmethod

from tests.sim.reference_pool import ExtentStore, FifoStore, LifoStore, LowestStore, Store


class RunStore(Store):
    """A store that gives contiguous reservations, too."""

    @abstractmethod
    def run_blocks(self, count: int) -> int:
        """Blocks that a reservation of ``count`` blocks takes."""

    @abstractmethod
    def largest_empty_run(self) -> int:
        """Blocks of the largest run of the empty pool."""

    @abstractmethod
    def reserve(self, count: int) -> list[int] | None:
        """A run of ``run_blocks(count)`` blocks, or None when no single run is found."""

    @abstractmethod
    def _put_run_back(self, blocks: list[int]) -> None:
        """A run that was reserved is free again."""

    def release_reservation(self, blocks: list[int]) -> None:
        """Give a reservation back, as one run."""
        self.came += len(blocks)
        self._put_run_back(blocks)


class ContiguousStore(RunStore):
    """Free extents; a request extends its last run, else takes the best fit.

    ``extents`` holds (start, blocks), most recent first over all sizes; so the first of a size is the most recent in
    that size's bin. An extent that changes size is removed and inserted anew.
    """

    def __init__(self, pool_blocks: int) -> None:
        super().__init__(pool_blocks)
        self.open_with(list(range(1, pool_blocks + 1)))

    def open_with(self, ids: list[int]) -> None:
        starts = [block for block in ids if block - 1 not in ids]
        ends = [block for block in ids if block + 1 not in ids]
        self.extents = [(start, end - start + 1) for start, end in zip(starts, ends, strict=True)]

    def free_ids(self) -> list[int]:
        return [block for start, size in self.extents for block in range(start, start + size)]

    def free(self) -> int:
        return sum(size for _, size in self.extents)

    def grow(self, last: int | None, count: int) -> list[int]:
        self._check_room(count)
        taken: list[int] = []
        while count > 0:
            follower = last + 1 if last is not None else None
            extent = next((e for e in self.extents if e[0] == follower), None)
            if extent is None:
                extent = self._best_fit(count) or self._largest()
            piece = self._take(extent, min(count, extent[1]))
            taken += piece
            count -= len(piece)
            last = piece[-1]
        return taken

    def take_one(self) -> int:
        return self.grow(None, 1)[0]

    def _put_back(self, block: int) -> None:
        self._give(block, 1)

    def run_blocks(self, count: int) -> int:
        return count

    def largest_empty_run(self) -> int:
        return self.pool_blocks

    def reserve(self, count: int) -> list[int] | None:
        extent = self._best_fit(count)
        return None if extent is None else self._take(extent, count)

    def _put_run_back(self, blocks: list[int]) -> None:
        self._give(blocks[0], len(blocks))

    def check(self) -> None:
        super().check()
        starts = {start for start, _ in self.extents}
        for start, size in self.extents:
            assert size > 0, f"empty extent at {start}"
            assert start + size not in starts, f"extents at {start} and {start + size} were not merged"

    def _best_fit(self, count: int) -> tuple[int, int] | None:
        """The smallest extent with at least ``count`` blocks; ``min`` keeps the first, the most recent, of equals."""
        return min((e for e in self.extents if e[1] >= count), key=lambda e: e[1], default=None)

    def _largest(self) -> tuple[int, int]:
        return max(self.extents, key=lambda e: e[1])

    def _take(self, extent: tuple[int, int], count: int) -> list[int]:
        start, size = extent
        self.extents.remove(extent)
        if size > count:
            self.extents.insert(0, (start + count, size - count))
        return list(range(start, start + count))

    def _give(self, start: int, size: int) -> None:
        before = next((e for e in self.extents if e[0] + e[1] == start), None)
        after = next((e for e in self.extents if e[0] == start + size), None)
        if before is not None:
            self.extents.remove(before)
            start, size = before[0], before[1] + size
        if after is not None:
            self.extents.remove(after)
            size += after[1]
        self.extents.insert(0, (start, size))


class BuddyStore(RunStore):
    """Power-of-two runs over index ``id - 1``; ``lists[k]``: indices of free runs of 2^k blocks, most recent first."""

    def __init__(self, pool_blocks: int) -> None:
        super().__init__(pool_blocks)
        self.top = pool_blocks.bit_length() - 1
        self.lists: list[list[int]] = [[] for _ in range(self.top + 1)]
        index = 0
        while index < pool_blocks:
            order = self.top
            while index % (1 << order) != 0 or index + (1 << order) > pool_blocks:
                order -= 1
            self.lists[order].insert(0, index)
            index += 1 << order

    def open_with(self, ids: list[int]) -> None:
        raise AssertionError(f"a buddy pool is never compacted, and opens with all of it free, not with {ids}")

    def free_ids(self) -> list[int]:
        return [
            index + offset + 1
            for order, indices in enumerate(self.lists)
            for index in indices
            for offset in range(1 << order)
        ]

    def free(self) -> int:
        return sum(len(indices) << order for order, indices in enumerate(self.lists))

    def take_one(self) -> int:
        index = self._take(0)
        assert index is not None
        return index + 1

    def _put_back(self, block: int) -> None:
        self._give(block - 1, 0)

    def run_blocks(self, count: int) -> int:
        return 1 << self._order(count)

    def largest_empty_run(self) -> int:
        return 1 << self.top

    def reserve(self, count: int) -> list[int] | None:
        order = self._order(count)
        index = self._take(order)
        return None if index is None else list(range(index + 1, index + 1 + (1 << order)))

    def _put_run_back(self, blocks: list[int]) -> None:
        self._give(blocks[0] - 1, self._order(len(blocks)))

    def check(self) -> None:
        super().check()
        for order, indices in enumerate(self.lists):
            for index in indices:
                assert index % (1 << order) == 0, f"run of order {order} at index {index} is not aligned"
                assert index ^ (1 << order) not in indices, f"buddies of order {order} at {index} were not merged"

    @staticmethod
    def _order(count: int) -> int:
        order = 0
        while 1 << order < count:
            order += 1
        return order

    def _take(self, order: int) -> int | None:
        j = order
        while j <= self.top and not self.lists[j]:
            j += 1
        if j > self.top:
            return None
        index = self.lists[j].pop(0)
        while j > order:
            j -= 1
            self.lists[j].insert(0, index + (1 << j))
        return index

    def _give(self, index: int, order: int) -> None:
        # A buddy outside the pool is in no list.
        while index ^ (1 << order) in self.lists[order]:
            buddy = index ^ (1 << order)
            self.lists[order].remove(buddy)
            index = min(index, buddy)
            order += 1
        self.lists[order].insert(0, index)


def new_store(placement: str, pool_blocks: int, extent_blocks: int) -> Store:
    """The store of a placement, all of it free; only ``extent`` looks at ``extent_blocks``."""
    if placement == "extent":
        return ExtentStore(pool_blocks, extent_blocks)
    stores: dict[str, type[LifoStore | FifoStore | LowestStore | ContiguousStore | BuddyStore]] = {
        "lifo": LifoStore,
        "fifo": FifoStore,
        "lowest": LowestStore,
        "contiguous": ContiguousStore,
        "buddy": BuddyStore,
    }
    return stores[placement](pool_blocks)

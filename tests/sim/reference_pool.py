"""The reference's physical blocks: free stores of single blocks, literal from docs/semantics.md section 5.

Stores that also give contiguous reservations are in reference_runs.py; who holds a block and which blocks can be found
again is reference_prefix.py's. Ids run from 1 to ``pool_blocks``; 0 is the null block and never in a store. Lists are
searched from end to end: this is the page made executable, not an allocator to use. Each store checks first and acts
then: what fails changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class PoolExhaustedError(Exception):
    """More blocks were asked for than are free. The store is unchanged."""


class Store(ABC):
    """What all stores answer. A subclass says where the free blocks are."""

    def __init__(self, pool_blocks: int) -> None:
        self.pool_blocks = pool_blocks
        self.came = 0  # blocks that have come to the store so far

    @abstractmethod
    def open_with(self, ids: list[int]) -> None:
        """Be as at the start, with these ascending ids free and no others."""

    @abstractmethod
    def free_ids(self) -> list[int]:
        """Every free id, in no particular order."""

    @abstractmethod
    def take_one(self) -> int:
        """One block, by the placement; at least one must be free."""

    @abstractmethod
    def _put_back(self, block: int) -> None:
        """One block is free again."""

    def release_one(self, block: int) -> None:
        """Give one block back."""
        self.came += 1
        self._put_back(block)

    def free(self) -> int:
        """Number of free blocks."""
        return len(self.free_ids())

    def grow(self, last: int | None, count: int) -> list[int]:
        """``count`` more blocks, in logical order, for a request whose last block is ``last`` (None: holds none)."""
        del last  # only the contiguous and the extent store look at it
        self._check_room(count)
        return [self.take_one() for _ in range(count)]

    def release(self, blocks: list[int], release_order: str = "reverse") -> None:
        """Give blocks of a paged request back, one by one: the last logical block first, or in the sorted order."""
        for block in self.in_order(blocks, release_order):
            self.release_one(block)

    def in_order(self, blocks: list[int], release_order: str) -> list[int]:
        """``blocks``, given in logical order, as they are given back."""
        return self.sorted_for_release(blocks) if release_order == "sorted" else blocks[::-1]

    def sorted_for_release(self, blocks: list[int]) -> list[int]:
        """``blocks`` so that, released in this order, they are next given out in ascending order of their ids."""
        raise AssertionError(f"{type(self).__name__} has no sorted release of {blocks}")

    def check(self) -> None:
        """Assert what this store promises about its free blocks."""
        ids = self.free_ids()
        assert len(ids) == len(set(ids)), f"a block is free twice: {sorted(ids)}"
        assert all(1 <= block <= self.pool_blocks for block in ids), f"a free block is not in the pool: {sorted(ids)}"

    def _check_room(self, count: int) -> None:
        free = self.free()
        if count > free:
            raise PoolExhaustedError(f"{count} blocks asked for, {free} of {self.pool_blocks} free")


class LifoStore(Store):
    """A stack. At the start it pops 1, 2, 3, …; a release pushes."""

    def __init__(self, pool_blocks: int) -> None:
        super().__init__(pool_blocks)
        self.open_with(list(range(1, pool_blocks + 1)))

    def open_with(self, ids: list[int]) -> None:
        self.stack = ids[::-1]

    def free_ids(self) -> list[int]:
        return list(self.stack)

    def take_one(self) -> int:
        return self.stack.pop()

    def _put_back(self, block: int) -> None:
        self.stack.append(block)

    def sorted_for_release(self, blocks: list[int]) -> list[int]:
        return sorted(blocks, reverse=True)


class FifoStore(Store):
    """A queue. At the start 1, 2, 3, …; a release joins its end."""

    def __init__(self, pool_blocks: int) -> None:
        super().__init__(pool_blocks)
        self.open_with(list(range(1, pool_blocks + 1)))

    def open_with(self, ids: list[int]) -> None:
        self.queue = list(ids)

    def free_ids(self) -> list[int]:
        return list(self.queue)

    def take_one(self) -> int:
        return self.queue.pop(0)

    def _put_back(self, block: int) -> None:
        self.queue.append(block)

    def sorted_for_release(self, blocks: list[int]) -> list[int]:
        return sorted(blocks)


class LowestStore(Store):
    """The lowest free id."""

    def __init__(self, pool_blocks: int) -> None:
        super().__init__(pool_blocks)
        self.open_with(list(range(1, pool_blocks + 1)))

    def open_with(self, ids: list[int]) -> None:
        self.ids = list(ids)

    def free_ids(self) -> list[int]:
        return list(self.ids)

    def take_one(self) -> int:
        lowest = min(self.ids)
        self.ids.remove(lowest)
        return lowest

    def _put_back(self, block: int) -> None:
        self.ids.append(block)


class ExtentStore(Store):
    """Ids cut into extents of ``extent_blocks``; a request goes on in the extent of its last block while it can.

    ``whole`` holds the numbers of the wholly free extents, the one that became so most recently first.
    """

    def __init__(self, pool_blocks: int, extent_blocks: int) -> None:
        super().__init__(pool_blocks)
        self.extent_blocks = extent_blocks
        self.open_with(list(range(1, pool_blocks + 1)))

    def open_with(self, ids: list[int]) -> None:
        self.ids = list(ids)
        self.whole = [extent for extent in range(-(-self.pool_blocks // self.extent_blocks)) if self._is_whole(extent)]

    def free_ids(self) -> list[int]:
        return list(self.ids)

    def grow(self, last: int | None, count: int) -> list[int]:
        self._check_room(count)
        taken: list[int] = []
        for _ in range(count):
            last = self._take_after(last)
            taken.append(last)
        return taken

    def take_one(self) -> int:
        return self._take_after(None)

    def _put_back(self, block: int) -> None:
        self.ids.append(block)
        extent = self._extent(block)
        if self._is_whole(extent):
            self.whole.insert(0, extent)

    def check(self) -> None:
        super().check()
        extents = range(-(-self.pool_blocks // self.extent_blocks))
        assert sorted(self.whole) == [extent for extent in extents if self._is_whole(extent)], f"whole: {self.whole}"

    def _take_after(self, last: int | None) -> int:
        if last is not None and last + 1 in self.ids and self._extent(last + 1) == self._extent(last):
            block = last + 1
        elif self.whole:
            block = self.whole[0] * self.extent_blocks + 1
        else:
            block = min(self.ids)
        self.ids.remove(block)
        if self._extent(block) in self.whole:
            self.whole.remove(self._extent(block))
        return block

    def _extent(self, block: int) -> int:
        return (block - 1) // self.extent_blocks

    def _is_whole(self, extent: int) -> bool:
        blocks = [block for block in range(1, self.pool_blocks + 1) if self._extent(block) == extent]
        return all(block in self.ids for block in blocks)

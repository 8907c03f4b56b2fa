"""The reference's host pool: copies of swapped rows, and evicted blocks that are found again by their key.

Literal from docs/semantics.md, "Swapping" (3) and "Offload" (5). Ids from 1, placed like `contiguous`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.reference_pool import PoolExhaustedError
from tests.sim.reference_runs import ContiguousStore


class HostPool:
    """The free store, the keyed blocks, and which of those are being loaded.

    ``cached`` maps a key to its block; ``evictable`` lists the keyed blocks that nobody loads, least recently used
    first; ``loads`` counts who loads a block. What a swapped request has is its own (`Request.host_blocks`).
    """

    def __init__(self, blocks: int) -> None:
        self.store = ContiguousStore(blocks)
        self.cached: dict[int, int] = {}
        self.evictable: list[int] = []
        self.loads: dict[int, int] = {}

    def free(self) -> int:
        """Blocks that a copy can be given: in the store, and evictable."""
        return self.store.free() + len(self.evictable)

    def take(self, count: int) -> list[int]:
        """``count`` blocks, as growth of a request that holds none; evicts while the store has fewer."""
        if count > self.free():
            raise PoolExhaustedError(f"{count} host blocks asked for, {self.free()} are free or evictable")
        self._evict_until(count)
        return self.store.grow(None, count)

    def release(self, blocks: list[int]) -> None:
        """Blocks of a copy that has come in."""
        self.store.release(blocks)

    def keep(self, evicted: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Keep (device block, key), as many as there is room for; the (device block, host block) to be copied."""
        new = []
        for block, key in evicted:
            if key in self.cached:
                self._use(self.cached[key])
            else:
                new.append((block, key))
        self._evict_until(len(new))
        new = new[: self.store.free()]
        copies = []
        for (block, key), host_block in zip(new, self.store.grow(None, len(new)), strict=True):
            self.cached[key] = host_block
            self.evictable.append(host_block)
            copies.append((block, host_block))
        return copies

    def hold(self, blocks: Sequence[int]) -> None:
        """Blocks that are to be loaded are not evicted."""
        for block in blocks:
            if block in self.evictable:
                self.evictable.remove(block)
            self.loads[block] = self.loads.get(block, 0) + 1

    def let_go(self, blocks: Sequence[int]) -> None:
        """Blocks, in logical order, have been loaded: the most recently used, once nobody else loads them."""
        for block in blocks:
            self.loads[block] -= 1
            if self.loads[block] == 0:
                del self.loads[block]
                self.evictable.append(block)

    def check(self) -> None:
        """Assert what the pool promises about its free and its keyed blocks."""
        self.store.check()
        keyed = sorted(self.cached.values())
        assert len(set(keyed)) == len(keyed), f"two keys find one host block: {self.cached}"
        assert sorted([*self.evictable, *self.loads]) == keyed, f"with keys {keyed}: {self.evictable}, {self.loads}"
        assert all(count > 0 for count in self.loads.values()), f"nobody loads what is held: {self.loads}"

    def _use(self, block: int) -> None:
        if block in self.evictable:  # else it becomes the most recently used when it has been loaded
            self.evictable.remove(block)
            self.evictable.append(block)

    def _evict_until(self, count: int) -> None:
        while self.store.free() < count and self.evictable:
            block = self.evictable.pop(0)
            self.cached = {key: found for key, found in self.cached.items() if found != block}
            self.store.release_one(block)

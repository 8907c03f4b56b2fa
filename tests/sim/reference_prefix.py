"""The reference's blocks of paged rows: who holds them, and which are found again by their key.

Literal from docs/semantics.md section 5, "Prefix sharing". Without sharing no block has a key, and all of this comes
down to taking from the free store and releasing to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.reference_pool import PoolExhaustedError, Store
from tests.sim.reference_records import ReferenceConfig, Request


@dataclass(frozen=True)
class Hit:
    """What an admission finds in the cache; ``blocks`` are shared, in logical order."""

    blocks: tuple[int, ...]
    evictable: int  # how many of them nobody holds
    copies_tail: bool
    computed: int  # tokens that a new row need not compute


NO_HIT = Hit((), 0, copies_tail=False, computed=0)


def keys_of(config: ReferenceConfig, prompt_tokens: int, hashes: tuple[int, ...]) -> list[int]:
    """Keys of a prompt's first K pager blocks; none without sharing, none without ids."""
    if not config.prefix_sharing or not hashes:
        return []
    hash_tokens, block_size = config.hash_block_tokens, config.block_size_tokens
    assert hash_tokens is not None, "ids of unknown length: hash_block_tokens is not set"
    count = min(prompt_tokens // block_size, len(hashes) * hash_tokens // block_size)
    if hash_tokens >= block_size:
        m = hash_tokens // block_size
        return [hashes[i // m] * m + i % m for i in range(count)]
    k = block_size // hash_tokens
    return [hashes[(i + 1) * k - 1] for i in range(count)]


class Pager:
    """The free store, the holders of each block, the cache, and the evictable blocks.

    ``holders`` has an entry for each block that is held, and no other; ``cached`` maps a key to its block;
    ``evictable`` lists the blocks with a key that nobody holds, least recently used first.
    """

    def __init__(self, config: ReferenceConfig, store: Store) -> None:
        self.config = config
        self.store = store
        self.holders: dict[int, set[Request]] = {}
        self.cached: dict[int, int] = {}
        self.evictable: list[int] = []

    def free(self) -> int:
        """What section 3 calls free: blocks in the store and evictable ones."""
        return self.store.free() + len(self.evictable)

    def keys(self, r: Request) -> list[int]:
        """Keys of the first K blocks of a request's prompt."""
        return keys_of(self.config, r.prompt, r.hashes)

    def key_of(self, block: int) -> int | None:
        """The key that finds this block, if any."""
        return next((key for key, found in self.cached.items() if found == block), None)

    def find(self, r: Request) -> Hit:
        """What an admission of ``r`` would hit now. Changes nothing."""
        block_size = self.config.block_size_tokens
        found: list[int] = []
        for key in self.keys(r):
            if key not in self.cached:
                break
            found.append(self.cached[key])
        shared = found[: (r.known - 1) // block_size]
        computed = len(shared) * block_size
        copies_tail = self.config.partial_tail == "copy" and len(found) > len(shared)
        if copies_tail:
            assert len(found) * block_size == r.known, f"row {r.row}: {len(found)} blocks hit of {r.known} tokens"
            computed = r.known - 1
        return Hit(tuple(shared), sum(block in self.evictable for block in shared), copies_tail, computed)

    def share(self, r: Request, hit: Hit) -> None:
        """A new row holds the blocks that it hit."""
        assert r.blocks == [], f"row {r.row} holds {r.blocks} before it shares"
        for block in hit.blocks:
            if block in self.evictable:
                self.evictable.remove(block)
            self._hold(r, block)

    def take(self, r: Request, count: int) -> None:
        """``count`` new blocks for a row; evicts while the store has fewer. What does not fit changes nothing."""
        if count > self.free():
            raise PoolExhaustedError(f"row {r.row} takes {count} blocks, {self.free()} are free or evictable")
        while self.store.free() < count:
            block = self.evictable.pop(0)
            key = self.key_of(block)
            assert key is not None, f"evictable block {block} has no key"
            del self.cached[key]
            self.store.release_one(block)
        for block in self.store.grow(r.blocks[-1] if r.blocks else None, count):
            self._hold(r, block)

    def give_keys(self, r: Request, first: int, end: int) -> None:
        """Logical blocks ``first`` to ``end - 1`` of a row are now computed: those of its prompt can be found."""
        for index, key in list(enumerate(self.keys(r)))[first:end]:
            block = r.blocks[index]
            if key not in self.cached and self.key_of(block) is None:
                self.cached[key] = block

    def release(self, r: Request) -> None:
        """A row gives back all its blocks, the last logical block first."""
        to_store: list[int] = []
        for block in reversed(r.blocks):
            self.holders[block].remove(r)
            if self.holders[block]:
                continue
            del self.holders[block]
            if self.key_of(block) is not None:
                self.evictable.append(block)
            else:
                to_store.append(block)
        to_store.reverse()  # in logical order again, as the store takes them
        self.store.release(to_store, self.config.release_order)
        r.blocks = []

    def drop(self, r: Request) -> None:
        """A row gives back the block after its summaries (far history: nobody shares it, and it has no key)."""
        block = r.blocks.pop(self.config.summary_blocks)
        r.dropped += 1
        assert self.holders.pop(block) == {r}, f"row {r.row} drops block {block}, which it shares"
        self.store.release_one(block)

    def _hold(self, r: Request, block: int) -> None:
        holders = self.holders.setdefault(block, set())
        assert r not in holders, f"row {r.row} holds block {block} twice"
        holders.add(r)
        r.blocks.append(block)

"""The reference's blocks of paged rows: who holds them, and which are found again by their key.

Literal from docs/semantics.md section 5, "Prefix sharing". Without sharing no block has a key, and all of this comes
down to taking from the free store and releasing to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.reference_pool import PoolExhaustedError, Store
from tests.sim.reference_records import ReferenceConfig, Request
from tests.sim.reference_run_ahead import Pipeline
from tests.sim.reference_runs import RunStore


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
    ``evictable`` lists the blocks with a key that nobody holds and that are not fenced, least recently used first.
    """

    def __init__(self, config: ReferenceConfig, store: Store, pipeline: Pipeline) -> None:
        self.config = config
        self.store = store
        self.pipeline = pipeline
        self.holders: dict[int, set[Request]] = {}
        self.cached: dict[int, int] = {}
        self.evictable: list[int] = []
        #: Offload: told the (block, key) that one taking of blocks has evicted, before the blocks are given out.
        self.keep_evicted: Callable[[list[tuple[int, int]]], None] | None = None

    def free(self) -> int:
        """What section 3 calls free: blocks in the store and evictable ones."""
        return self.store.free() + len(self.evictable)

    def pending_ids(self) -> set[int]:
        """Blocks that will be free without anybody's doing: behind a fence, or held by nobody but who leaves."""
        left = {block for block, holders in self.holders.items() if all(r.leaving for r in holders)}
        return self.pipeline.fenced_blocks() | left

    def lift_fences(self, *, everything: bool) -> bool:
        """What is not fenced any more joins the free store or the evictable blocks. Whether there was any."""
        due = self.pipeline.lifted(everything=everything)
        for fenced in due:
            if fenced.is_run:
                self._runs().release_reservation(list(fenced.blocks))
            else:
                self._join(*fenced.blocks)
        return due != []

    def keys(self, r: Request) -> list[int]:
        """Keys of the first K blocks of a request's prompt."""
        return keys_of(self.config, r.prompt, r.hashes)

    def key_of(self, block: int) -> int | None:
        """The key that finds this block, if any."""
        return next((key for key, found in self.cached.items() if found == block), None)

    def find(self, r: Request) -> Hit:
        """What an admission of ``r`` would hit now. Changes nothing. A chain ends before a pending block."""
        block_size = self.config.block_size_tokens
        found: list[int] = []
        pending = self.pending_ids()
        for key in self.keys(r):
            if key not in self.cached or self.cached[key] in pending:
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
        evicted: list[tuple[int, int]] = []
        while self.store.free() < count:
            block = self.evictable.pop(0)
            key = self.key_of(block)
            assert key is not None, f"evictable block {block} has no key"
            del self.cached[key]
            self.store.release_one(block)
            evicted.append((block, key))
        if evicted and self.keep_evicted is not None:
            self.keep_evicted(evicted)
        for block in self.store.grow(r.blocks[-1] if r.blocks else None, count):
            self.check_given_out(block)
            self._hold(r, block)

    def reserve(self, r: Request, count: int) -> None:
        """A new row's reservation, one run of at least ``count`` blocks; that there is one has been seen."""
        run = self._runs().reserve(count)
        assert run is not None, f"no run for row {r.row}, although one was seen"
        for block in run:
            self.check_given_out(block)
        r.blocks = run

    def check_given_out(self, block: int) -> None:
        """A block that is given out is held, pending, or read in flight by nobody."""
        readers = self.pipeline.in_flight_readers(block)
        assert not readers, f"block {block} is given out, rows {readers} read it in flight"
        assert block not in self.holders, f"block {block} is given out and has holders"
        assert block not in self.pending_ids(), f"block {block} is given out and pending"

    def give_keys(self, r: Request, first: int, end: int) -> None:
        """Logical blocks ``first`` to ``end - 1`` of a row are now computed: those of its prompt can be found."""
        for index, key in list(enumerate(self.keys(r)))[first:end]:
            block = r.blocks[index]
            if key not in self.cached and self.key_of(block) is None:
                self.cached[key] = block

    def release(self, r: Request, *, at_once: bool = False) -> None:
        """A row gives back all its blocks, the last logical block first; ``at_once``: past any fence."""
        to_store: list[int] = []
        for block in reversed(r.blocks):
            self.holders[block].remove(r)
            if self.holders[block]:
                continue
            del self.holders[block]
            if self.key_of(block) is not None:
                self._give_back(r, block, at_once=at_once)
            else:
                to_store.append(block)
        to_store.reverse()  # in logical order again, as the store takes them
        for block in self.store.in_order(to_store, self.config.release_order):
            self._give_back(r, block, at_once=at_once)
        r.blocks = []

    def release_reservation(self, r: Request) -> None:
        """A row gives back its reservation, as one run."""
        if self.pipeline.depth > 0:
            self.pipeline.fence(tuple(r.blocks), is_run=True)
        else:
            self._runs().release_reservation(r.blocks)
        r.blocks = []

    def drop(self, r: Request) -> None:
        """A row gives back the block after its summaries (far history: nobody shares it, and it has no key)."""
        block = r.blocks.pop(self.config.summary_blocks)
        r.dropped += 1
        assert self.holders.pop(block) == {r}, f"row {r.row} drops block {block}, which it shares"
        self._give_back(r, block)

    def _give_back(self, r: Request, block: int, *, at_once: bool = False) -> None:
        """Nobody holds this block any more, ``r`` was the last."""
        if self.pipeline.depth > 0 and not at_once:
            self.pipeline.fence((block,), is_run=False)
            return
        # A row that shared it and has gone may still read it in flight. The page frees it all the same.
        assert r.row not in self.pipeline.in_flight_readers(block), f"row {r.row} reads block {block} in flight"
        self.pipeline.forget(block)
        self._join(block)

    def _join(self, block: int) -> None:
        """A block becomes free: with a key the most recently used evictable one, else in the store."""
        if self.key_of(block) is not None:
            self.evictable.append(block)
        else:
            self.store.release_one(block)

    def _runs(self) -> RunStore:
        assert isinstance(self.store, RunStore)
        return self.store

    def _hold(self, r: Request, block: int) -> None:
        holders = self.holders.setdefault(block, set())
        assert r not in holders, f"row {r.row} holds block {block} twice"
        holders.add(r)
        r.blocks.append(block)

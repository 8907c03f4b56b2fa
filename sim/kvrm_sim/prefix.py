"""Prefix sharing: whole prompt blocks that several rows hold, and those that nobody holds but that are kept for a hit
(docs/semantics.md section 5).

A block has a count of references and at most one key. Keys are dense integers that the trace gives (equal keys: equal
tokens from the start of the prompt to the end of the block), found in an open-addressed table of block ids. A keyed
block without references is *evictable*: in a list, least recently used first, and counted as free by the scheduler.
"""

from __future__ import annotations

from kvrm_sim.block_lists import link_last, replace, unlink
from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.fences import fence
from kvrm_sim.pool import release_block
from kvrm_sim.state import NONE, Ints, Record, Records

TAIL_RECOMPUTE, TAIL_COPY = range(2)


def key_slots(pool_blocks: int) -> int:
    """Slots of the table of keys: a power of two, at most half full."""
    return 1 << (2 * pool_blocks + 1).bit_length()


@kernel
def available_blocks(s: Record) -> int:
    """Blocks that can be given out: free, or kept only for a hit that may come."""
    return s.free_blocks + s.evictable


@kernel
def keyed_blocks(p: Record, prompt: int, ids: int) -> int:
    """Whole pager blocks of a prompt that its `ids` hash blocks cover."""
    return min(prompt // p.block_size, ids * p.blocks_a_hash // p.hashes_a_block)


@kernel
def key_of(p: Record, ids: Ints, at: int, block: int) -> int:
    """The key of a prompt's `block`-th block, its hashes lying from `at` on."""
    if p.hashes_a_block > 1:
        return ids[at + (block + 1) * p.hashes_a_block - 1]
    return ids[at + block // p.blocks_a_hash] * p.blocks_a_hash + block % p.blocks_a_hash


@kernel
def _home(p: Record, key: int) -> int:
    """First slot of a key. Keys are dense: the product of 31 bits and a 32-bit odd number spreads them."""
    return ((((key ^ (key >> 20)) & 0x7FFFFFFF) * 2654435761) >> 20) & (p.key_slots - 1)


@kernel
def find_slot(p: Record, keys: Ints, key: int) -> int:
    """The slot that holds a key, or the empty one where it would go."""
    at = _home(p, key)
    while keys[at, 1] != 0 and keys[at, 0] != key:
        at = (at + 1) & (p.key_slots - 1)
    return at


@kernel
def _in_shared_chain(s: Record, blocks: Records, block: int) -> bool:
    return 0 < blocks[block].chain_at <= s.chain_shared


@kernel
def _break_chain(s: Record, blocks: Records, block: int) -> None:
    """A block is evicted: the chain ends before it. Mostly it was the last: the last is released first."""
    at = blocks[block].chain_at
    if at == 0:
        return
    blocks[block].chain_at = 0
    if at > s.chain_blocks:
        return
    if at < s.chain_blocks:
        s.chain_request = NONE  # to be looked up again
        return
    s.chain_blocks -= 1
    if at <= s.chain_shared:
        s.chain_shared -= 1
        s.chain_evictable -= 1
    s.chain_awaits = blocks[block].key


@kernel
def _forget(p: Record, s: Record, blocks: Records, keys: Ints, block: int) -> None:
    """Drop a block's key; the entries behind it move up, so that no search ends too early."""
    _break_chain(s, blocks, block)
    mask = p.key_slots - 1
    hole = find_slot(p, keys, blocks[block].key)
    at = hole
    while True:
        at = (at + 1) & mask
        if keys[at, 1] == 0:
            break
        if ((at - _home(p, keys[at, 0])) & mask) >= ((at - hole) & mask):
            keys[hole, 0] = keys[at, 0]
            keys[hole, 1] = keys[at, 1]
            hole = at
    keys[hole, 1] = 0
    blocks[block].key = NONE


@kernel
def _keep(s: Record, blocks: Records, block: int) -> None:
    """Nobody holds a keyed block any more: the most recently used evictable one."""
    link_last(blocks, s.most_recent, block)
    if s.most_recent == 0:
        s.least_recent = block
    s.most_recent = block
    s.evictable += 1
    s.chain_evictable += 1 if _in_shared_chain(s, blocks, block) else 0


@kernel
def _take_back(s: Record, blocks: Records, block: int) -> None:
    """An evictable block is held again, or about to be evicted."""
    before, after = unlink(blocks, block)
    if before == 0:
        s.least_recent = after
    if after == 0:
        s.most_recent = before
    s.evictable -= 1


@outlined
def make_room(p: Record, s: Record, blocks: Records, tree: Ints, keys: Ints, count: int) -> None:
    """Evict until the free store holds `count` blocks; the caller has checked that there are as many."""
    while s.free_blocks < count:
        evict_one(p, s, blocks, tree, keys)


@outlined
def evict_one(p: Record, s: Record, blocks: Records, tree: Ints, keys: Ints) -> None:
    """Evict the least recently used block."""
    block = s.least_recent
    _take_back(s, blocks, block)
    _forget(p, s, blocks, keys, block)
    release_block(p, s, blocks, tree, block)
    s.evicted_blocks += 1


@kernel
def touch(s: Record, blocks: Records, block: int) -> None:
    """An evictable block becomes the most recently used; one that is held will be."""
    if blocks[block].refs == 0:
        _take_back(s, blocks, block)
        _keep(s, blocks, block)


@kernel
def add_key(p: Record, blocks: Records, keys: Ints, key: int, block: int) -> None:
    """Give a block without a key one that nobody has."""
    slot = find_slot(p, keys, key)
    keys[slot, 0] = key
    keys[slot, 1] = block
    blocks[block].key = key


@kernel
def is_found(p: Record, keys: Ints, key: int) -> bool:
    """Whether some block has a key."""
    return bool(keys[find_slot(p, keys, key), 1] != 0)


@kernel
def forget_chain(s: Record, blocks: Records, chain: Ints) -> None:
    """The chain of whoever waits first has to be looked up again."""
    for link in range(s.chain_blocks):
        blocks[chain[link]].chain_at = 0
    s.chain_request = NONE
    s.chain_blocks = 0


@kernel
def move_key(p: Record, s: Record, blocks: Records, keys: Ints, source: int, target: int) -> None:
    """A keyed block's content moves to another: so do its key and its place in the LRU order."""
    old, new = blocks[source], blocks[target]
    keys[find_slot(p, keys, old.key), 1] = target
    new.key = old.key
    old.key = NONE
    if new.refs > 0:
        return
    before, after = replace(blocks, source, target)
    if before == 0:
        s.least_recent = target
    if after == 0:
        s.most_recent = target


@outlined
def hold(s: Record, blocks: Records, block: int) -> None:
    """One row more holds a block."""
    if blocks[block].refs == 0:
        if blocks[block].key != NONE:
            _take_back(s, blocks, block)
            s.chain_evictable -= 1 if _in_shared_chain(s, blocks, block) else 0
        s.reserved_blocks += 1
    else:
        s.shared_again += 1
        s.leaving_blocks -= 1 if blocks[block].leaving == blocks[block].refs else 0
    blocks[block].refs += 1


@kernel
def is_pending(blocks: Records, block: int) -> bool:
    """Whether a keyed block will be free without anybody's doing: it cannot be hit."""
    b = blocks[block]
    return bool(b.fenced > 0 or (b.leaving > 0 and b.leaving == b.refs))


@kernel
def _leave_chain(s: Record, blocks: Records, block: int) -> None:
    """A block cannot be hit any more: the chain ends before it, and is to be looked up again."""
    if blocks[block].chain_at > 0:
        s.chain_request = NONE


@kernel
def _become_pending(s: Record, blocks: Records, block: int) -> None:
    s.leaving_blocks += 1
    _leave_chain(s, blocks, block)


@kernel
def start_leaving(s: Record, blocks: Records, block: int) -> None:
    """One more of the rows that hold a block is leaving for the host."""
    blocks[block].leaving += 1
    if blocks[block].leaving == blocks[block].refs:
        _become_pending(s, blocks, block)


@kernel
def end_leaving(s: Record, blocks: Records, block: int) -> None:
    """A row that was leaving is about to let go of a block."""
    s.leaving_blocks -= 1 if blocks[block].leaving == blocks[block].refs else 0
    blocks[block].leaving -= 1


@kernel
def keep_again(s: Record, blocks: Records, block: int) -> None:
    """Nobody holds a keyed block, and no step in flight reads it: it can be evicted, or hit."""
    _keep(s, blocks, block)
    if blocks[block].key == s.chain_awaits:
        s.chain_request = NONE  # the chain goes on: to be looked up again


@kernel
def let_go(s: Record, blocks: Records, block: int, fenced: bool) -> bool:
    """One row less holds a block. True when the caller has to give it to the free store."""
    blocks[block].refs -= 1
    if blocks[block].refs > 0:
        s.shared_again -= 1
        if blocks[block].leaving == blocks[block].refs:  # only rows that leave hold it now
            _become_pending(s, blocks, block)
        return False
    s.reserved_blocks -= 1
    if blocks[block].key == NONE:
        return True
    if fenced:
        fence(s, blocks, block, 1)
        _leave_chain(s, blocks, block)
    else:
        keep_again(s, blocks, block)
    return False


@outlined
def find_chain(
    p: Record,
    s: Record,
    blocks: Records,
    keys: Ints,
    ids: Ints,
    chain: Ints,
    request: int,
    at: int,
    count: int,
    shared: int,
) -> None:
    """Look up the longest chain of a request's first `count` keys that are all cached; at most `shared` of it is.

    Nothing is done when it is known: a request that waits first is tried at each step, and a prompt has thousands of
    blocks. What changes in the chain meanwhile is noted by those who change it.
    """
    if s.chain_request == request:
        return
    forget_chain(s, blocks, chain)
    s.chain_request = request
    s.chain_evictable = 0
    s.chain_awaits = NONE
    for link in range(count):
        key = key_of(p, ids, at, link)
        block = keys[find_slot(p, keys, key), 1]
        if block == 0 or is_pending(blocks, block):
            s.chain_awaits = key
            break
        chain[link] = block
        blocks[block].chain_at = link + 1
        s.chain_blocks += 1
        if link < shared and blocks[block].refs == 0:
            s.chain_evictable += 1
    s.chain_shared = min(s.chain_blocks, shared)


@kernel
def is_cached(p: Record, blocks: Records, keys: Ints, block: int) -> bool:
    """Whether a keyed block is the one that its key leads to."""
    return keys[find_slot(p, keys, blocks[block].key), 1] == block


@outlined
def give_keys(
    p: Record, s: Record, blocks: Records, keys: Ints, ids: Ints, table: Ints, row: int, at: int, first: int, end: int
) -> None:
    """Blocks [first, end) of a row are written: those whose key nobody has yet get theirs."""
    for logical in range(first, end):
        block = table[row, logical]
        key = key_of(p, ids, at, logical)
        slot = find_slot(p, keys, key)
        if keys[slot, 1] == 0 and blocks[block].key == NONE:
            add_key(p, blocks, keys, key, block)
            if key == s.chain_awaits:
                s.chain_request = NONE  # the chain goes on: to be looked up again

"""The block pool: which physical blocks are free, and which one is given out next (docs/semantics.md section 5).

Ids run from 1 to ``pool_blocks``; 0 is the null block and never given out. The free store lives in the structured
array ``blocks`` (indexed by id) and in ``tree``, a set of free ids (``lowest``, ``extent``) or of free extent sizes
(``contiguous``) or orders (``buddy``). Every operation is O(1) or O(levels of the tree); none depends on how full the
pool is.

The caller checks that enough is free before it takes (check, then act): nothing here fails half-way.
"""

from __future__ import annotations

from kvrm_sim.bittree import highest_bit, tree_add, tree_discard, tree_greatest, tree_least
from kvrm_sim.block_lists import link_first, unlink
from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.state import NONE, Ints, Record, Records

LIFO, LOWEST, CONTIGUOUS, BUDDY, FIFO, EXTENT = range(6)


@kernel
def _push(blocks: Records, tree: Ints, key: int, at: int) -> None:
    """Put a free extent or buddy on the front of the list of its size or order."""
    first = blocks[key].head
    link_first(blocks, first, at)
    if first == 0:
        tree_add(tree, key)
    blocks[key].head = at


@kernel
def _remove(blocks: Records, tree: Ints, key: int, at: int) -> None:
    """Take an extent or buddy out of its list."""
    before, after = unlink(blocks, at)
    if before == 0:
        blocks[key].head = after
        if after == 0:
            tree_discard(tree, key)


@kernel
def _add_extent(blocks: Records, tree: Ints, start: int, size: int) -> None:
    """Make [start, start + size) one free extent; its size is kept at both ends."""
    blocks[start].length = size
    blocks[start + size - 1].length = size
    _push(blocks, tree, size, start)


@outlined
def take_from_extent(s: Record, blocks: Records, tree: Ints, start: int, count: int) -> None:
    """Take the low `count` blocks of the free extent at `start`."""
    size = blocks[start].length
    _remove(blocks, tree, size, start)
    for block in range(start, start + count):
        blocks[block].free = 0
    if size > count:
        _add_extent(blocks, tree, start + count, size - count)
    s.free_blocks -= count


@kernel
def best_extent(blocks: Records, tree: Ints, count: int) -> int:
    """Start of the smallest free extent of at least `count` blocks, the most recent first; 0 when there is none."""
    size = tree_least(tree, count)
    return 0 if size < 0 else blocks[size].head


@kernel
def largest_extent(blocks: Records, tree: Ints) -> int:
    """Start of the largest free extent; the pool must not be empty of free blocks."""
    return blocks[tree_greatest(tree)].head


@kernel
def next_piece(blocks: Records, tree: Ints, count: int) -> int:
    """Start of the extent from which to take up to `count` blocks: best fit, else the largest."""
    start = best_extent(blocks, tree, count)
    return start if start != 0 else largest_extent(blocks, tree)


@outlined
def _release_extent(blocks: Records, tree: Ints, start: int, count: int, pool_blocks: int) -> None:
    for block in range(start, start + count):
        blocks[block].free = 1
    low = start
    size = count
    if start > 1 and blocks[start - 1].free:
        left = blocks[start - 1].length
        low = start - left
        _remove(blocks, tree, left, low)
        size += left
    if start + count <= pool_blocks and blocks[start + count].free:
        right = blocks[start + count].length
        _remove(blocks, tree, right, start + count)
        size += right
    _add_extent(blocks, tree, low, size)


@kernel
def _push_buddy(blocks: Records, tree: Ints, block: int, order: int) -> None:
    blocks[block].order = order
    _push(blocks, tree, order + 1, block)  # key 0 would be the null block's head


@kernel
def _remove_buddy(blocks: Records, tree: Ints, block: int, order: int) -> None:
    blocks[block].order = -1
    _remove(blocks, tree, order + 1, block)


@kernel
def has_order(tree: Ints, order: int) -> bool:
    """Whether a free buddy of at least this order exists."""
    return tree_least(tree, order + 1) >= 0


@outlined
def take_buddy(s: Record, blocks: Records, tree: Ints, order: int) -> int:
    """Take an aligned run of 2^order blocks; the caller has checked `has_order`."""
    key = tree_least(tree, order + 1)
    block = blocks[key].head
    have = key - 1
    _remove_buddy(blocks, tree, block, have)
    while have > order:
        have -= 1
        _push_buddy(blocks, tree, block + (1 << have), have)
    for taken in range(block, block + (1 << order)):
        blocks[taken].free = 0
    s.free_blocks -= 1 << order
    return block


@outlined
def _release_buddy(blocks: Records, tree: Ints, block: int, order: int, pool_blocks: int) -> None:
    for released in range(block, block + (1 << order)):
        blocks[released].free = 1
    index = block - 1
    while True:
        other = index ^ (1 << order)
        if other + (1 << order) > pool_blocks or blocks[other + 1].order != order:
            break
        _remove_buddy(blocks, tree, other + 1, order)
        index = min(index, other)
        order += 1
    _push_buddy(blocks, tree, index + 1, order)


@kernel
def order_of(count: int) -> int:
    """The least order whose run holds `count` >= 1 blocks."""
    order = highest_bit(count)
    return order if count == 1 << order else order + 1


@kernel
def _extent_of(p: Record, block: int) -> int:
    """First id of the fixed extent that a block lies in (`extent`); `length` there counts its free blocks."""
    return (block - 1) // p.extent_blocks * p.extent_blocks + 1


@kernel
def _extent_size(p: Record, first: int) -> int:
    return min(p.extent_blocks, p.pool_blocks + 1 - first)


@kernel
def _push_whole_extent(s: Record, blocks: Records, first: int) -> None:
    """An extent became wholly free: the most recent one."""
    link_first(blocks, s.extent_head, first)
    s.extent_head = first


@kernel
def _drop_whole_extent(s: Record, blocks: Records, first: int) -> None:
    before, after = unlink(blocks, first)
    if before == 0:
        s.extent_head = after


@outlined
def _take_in_extent(p: Record, s: Record, blocks: Records, tree: Ints, last: int) -> int:
    """The block after `last` in its extent, else the first of a wholly free extent, else the lowest free one."""
    if last != 0 and last % p.extent_blocks != 0 and blocks[last + 1].free != 0:
        block = last + 1
    elif s.extent_head != 0:
        block = s.extent_head
    else:
        block = tree_least(tree, 1)
    first = _extent_of(p, block)
    if blocks[first].length == _extent_size(p, first):
        _drop_whole_extent(s, blocks, first)
    blocks[first].length -= 1
    tree_discard(tree, block)
    return block


@outlined
def _release_in_extent(p: Record, s: Record, blocks: Records, tree: Ints, block: int) -> None:
    tree_add(tree, block)
    first = _extent_of(p, block)
    blocks[first].length += 1
    if blocks[first].length == _extent_size(p, first):
        _push_whole_extent(s, blocks, first)


@kernel
def free_all(p: Record, s: Record, blocks: Records) -> None:
    """Mark every block as free, nobody's and without a key."""
    s.free_blocks = p.pool_blocks
    for block in range(p.pool_blocks + 2):
        blocks[block].order = -1
        blocks[block].key = NONE
        blocks[block].free = 1 if 1 <= block <= p.pool_blocks else 0


@outlined
def open_pool(p: Record, s: Record, blocks: Records, tree: Ints) -> None:
    """Make every block free."""
    free_all(p, s, blocks)
    total = p.pool_blocks
    if p.placement != BUDDY:
        fill_store(p, s, blocks, tree)
    else:
        index = 0
        while index < total:
            order = highest_bit(total - index)
            _push_buddy(blocks, tree, index + 1, order)
            index += 1 << order


@outlined
def fill_store(p: Record, s: Record, blocks: Records, tree: Ints) -> None:
    """Put what is free into an empty store (any placement but `buddy`), so that lower ids come first."""
    total = p.pool_blocks
    s.queue_head = 0
    s.extent_head = 0
    at = 0
    for step in range(total):
        block = step + 1 if p.placement == FIFO else total - step
        if p.placement == EXTENT and (block % p.extent_blocks == 0 or block == total):
            blocks[_extent_of(p, block)].length = 0
        if p.placement == CONTIGUOUS:
            blocks[block].head = 0
        if blocks[block].free == 0:
            continue
        if p.placement == LIFO or p.placement == FIFO:
            blocks[at].stack = block
            at += 1
        elif p.placement == EXTENT:
            _release_in_extent(p, s, blocks, tree, block)
        elif p.placement == LOWEST:
            tree_add(tree, block)
    if p.placement == CONTIGUOUS:
        _add_every_extent(p, blocks, tree)


@kernel
def _add_every_extent(p: Record, blocks: Records, tree: Ints) -> None:
    size = 0
    for block in range(p.pool_blocks, -1, -1):
        if blocks[block].free != 0:
            size += 1
        elif size > 0:
            _add_extent(blocks, tree, block + 1, size)
            size = 0


@kernel
def take_block(p: Record, s: Record, blocks: Records, tree: Ints, last: int) -> int:
    """One free block under any placement but `contiguous`, for a row whose last block is `last` (0: it has none)."""
    if p.placement == BUDDY:
        return take_buddy(s, blocks, tree, 0)
    if p.placement == LIFO:
        block = blocks[s.free_blocks - 1].stack
    elif p.placement == FIFO:
        block = blocks[s.queue_head].stack
        s.queue_head = s.queue_head + 1 if s.queue_head + 1 < p.pool_blocks else 0
    elif p.placement == EXTENT:
        block = _take_in_extent(p, s, blocks, tree, last)
    else:
        block = tree_least(tree, 1)
        tree_discard(tree, block)
    blocks[block].free = 0
    s.free_blocks -= 1
    return block


@kernel
def release_block(p: Record, s: Record, blocks: Records, tree: Ints, block: int) -> None:
    """Give one block back."""
    if p.placement == LIFO:
        blocks[s.free_blocks].stack = block
        blocks[block].free = 1
    elif p.placement == FIFO:
        at = s.queue_head + s.free_blocks
        blocks[at if at < p.pool_blocks else at - p.pool_blocks].stack = block
        blocks[block].free = 1
    elif p.placement == EXTENT:
        _release_in_extent(p, s, blocks, tree, block)
        blocks[block].free = 1
    elif p.placement == LOWEST:
        tree_add(tree, block)
        blocks[block].free = 1
    elif p.placement == CONTIGUOUS:
        _release_extent(blocks, tree, block, 1, p.pool_blocks)
    else:
        _release_buddy(blocks, tree, block, 0, p.pool_blocks)
    s.free_blocks += 1
    s.came_free = 1


@kernel
def release_run(p: Record, s: Record, blocks: Records, tree: Ints, start: int, count: int) -> None:
    """Give a contiguous reservation back as the one run that it was."""
    if p.placement == BUDDY:
        _release_buddy(blocks, tree, start, order_of(count), p.pool_blocks)
    else:
        _release_extent(blocks, tree, start, count, p.pool_blocks)
    s.free_blocks += count
    s.came_free = 1

"""The host's pool, and what it keeps of evicted prefix blocks (docs/semantics.md section 5, Offload).

It is a pool like the device's: the same store (placed like `contiguous`), the same table of keys and LRU list, over
arrays of its own (`host_*`) with parameters and scalars of its own. Blocks that a swapped request holds are chained by
`next` and `previous`.
"""

from __future__ import annotations

from kvrm_sim.block_lists import link_last
from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.moves import MOVE_LOAD, MOVE_OFFLOAD, log_move, starts_group
from kvrm_sim.pool import next_piece, release_block, take_from_extent
from kvrm_sim.prefix import (
    add_key,
    evict_one,
    find_slot,
    hold,
    is_found,
    keep_again,
    key_of,
    let_go,
    make_room,
    touch,
)
from kvrm_sim.sorting import sort_ids
from kvrm_sim.state import Arrays, Record


@kernel
def host_room(a: Arrays) -> int:
    """Blocks that the host can give."""
    hs = a.host_scalars[0]
    return int(hs.free_blocks + hs.evictable)


@outlined
def take_on_host(a: Arrays, count: int) -> int:
    """Take `count` host blocks, evicting for them; the first of their chain. The caller has checked the room."""
    hp, hs, blocks = a.host_params[0], a.host_scalars[0], a.host_blocks
    make_room(hp, hs, blocks, a.host_tree, a.host_keys, count)
    first, last = 0, 0
    while count > 0:
        start = next_piece(blocks, a.host_tree, count)
        size = min(count, blocks[start].length)
        take_from_extent(hs, blocks, a.host_tree, start, size)
        for block in range(start, start + size):
            link_last(blocks, last, block)
            if last == 0:
                first = block
            last = block
        count -= size
    return first


@outlined
def release_on_host(a: Arrays, first: int) -> None:
    """Give a chain of host blocks back, last first."""
    hp, hs, blocks = a.host_params[0], a.host_scalars[0], a.host_blocks
    last = first
    while blocks[last].next != 0:
        last = blocks[last].next
    while last != 0:
        before = blocks[last].previous
        release_block(hp, hs, blocks, a.host_tree, last)
        last = before


@outlined
def make_room_keeping(p: Record, s: Record, a: Arrays, count: int) -> None:
    """Evict until the free store holds `count` blocks; the host keeps what is evicted, as far as it has room."""
    number = count - s.free_blocks
    if number <= 0:
        return
    evicted = a.scratch
    block = s.least_recent
    for at in range(number):
        evicted[at] = block
        block = a.blocks[block].next
    sort_ids(evicted, 0, number, False)
    _keep_on_host(p, s, a, number)
    make_room(p, s, a.blocks, a.tree, a.keys, count)


@outlined
def _keep_on_host(p: Record, s: Record, a: Arrays, number: int) -> None:
    """Copy the blocks in `scratch` (ascending) to the host, but for those that it has."""
    hp, hs, blocks, keys = a.host_params[0], a.host_scalars[0], a.host_blocks, a.host_keys
    new = 0
    for at in range(number):
        block = a.scratch[at]
        slot = find_slot(hp, keys, a.blocks[block].key)
        if keys[slot, 1] != 0:
            touch(hs, blocks, keys[slot, 1])
        else:
            a.scratch[new] = block
            new += 1
    while hs.free_blocks < new and hs.evictable > 0:
        evict_one(hp, hs, blocks, a.host_tree, keys)
    new = min(new, hs.free_blocks)
    if new == 0:
        return
    target = take_on_host(a, new)
    last_source, last_target = -1, -1
    for at in range(new):
        source, after = a.scratch[at], blocks[target].next
        add_key(hp, blocks, keys, a.blocks[source].key, target)
        keep_again(hs, blocks, target)
        s.new_offload_groups += starts_group(p.host_merge, source, target, last_source, last_target)
        last_source, last_target = source, target
        log_move(p, s, a, MOVE_OFFLOAD, source, target)
        target = after
    s.new_offload_blocks += new


@outlined
def find_on_host(p: Record, a: Arrays, ids_at: int, first: int, end: int) -> int:
    """How many of a prompt's keys from the `first` on, before the `end`, the host has without a gap."""
    found = 0
    for link in range(first, end):
        if not is_found(a.host_params[0], a.host_keys, key_of(p, a.ids, ids_at, link)):
            break
        found += 1
    return found


@kernel
def _on_host(p: Record, a: Arrays, ids_at: int, link: int) -> int:
    key = key_of(p, a.ids, ids_at, link)
    return int(a.host_keys[find_slot(a.host_params[0], a.host_keys, key), 1])


@outlined
def pin_on_host(p: Record, a: Arrays, ids_at: int, first: int, count: int) -> None:
    """Hold host blocks that are to be loaded: they cannot be evicted."""
    for link in range(first, first + count):
        hold(a.host_scalars[0], a.host_blocks, _on_host(p, a, ids_at, link))


@outlined
def unpin_on_host(p: Record, a: Arrays, ids_at: int, first: int, count: int) -> None:
    """Host blocks are loaded: the host's most recently used, in logical order."""
    for link in range(first, first + count):
        let_go(a.host_scalars[0], a.host_blocks, _on_host(p, a, ids_at, link), False)


@outlined
def count_loads(p: Record, s: Record, a: Arrays, row: int, ids_at: int, first: int, count: int) -> int:
    """Groups of a load into a row's blocks from `first` on: neighbours on both sides are one."""
    groups, last_source, last_target = 0, -1, -1
    for link in range(first, first + count):
        source, target = _on_host(p, a, ids_at, link), a.table[row, link]
        groups += starts_group(p.host_merge, source, target, last_source, last_target)
        last_source, last_target = source, target
        log_move(p, s, a, MOVE_LOAD, source, target)
    s.new_in_blocks += count
    s.new_in_groups += groups
    s.loaded_blocks += count
    return groups

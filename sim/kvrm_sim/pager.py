"""The block pager: logical to physical. A row grows, and gives everything back; its runs are counted as it grows.

``table`` is int64 [slots, table_width], indexed by stage row: the physical ids of the blocks that a row holds, in
logical order (paged). A contiguous reservation keeps its start only (``run_start``). With far history a row drops some
in the middle: its table closes up, and ``dropped`` counts them.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.fences import fence
from kvrm_sim.offload import make_room_keeping
from kvrm_sim.pool import (
    BUDDY,
    CONTIGUOUS,
    LIFO,
    best_extent,
    has_order,
    next_piece,
    order_of,
    release_block,
    release_run,
    take_block,
    take_buddy,
    take_from_extent,
)
from kvrm_sim.prefix import hold, let_go, make_room
from kvrm_sim.sorting import sort_ids
from kvrm_sim.state import Arrays, Ints, Record, Records

RELEASE_REVERSE, RELEASE_SORTED = range(2)
MAX_LEN, POW2, DECLARED, ORACLE, BUCKET, PAGED = range(6)


@kernel
def most_blocks(p: Record, tokens: int) -> int:
    """Blocks that a row holds at most at once on its way to so many tokens."""
    return min(blocks_for(p, tokens), p.most_held_blocks)


@kernel
def held_blocks(p: Record, rows: Records, row: int, tokens: int) -> int:
    """Blocks that hold a row's first `tokens` entries, but for those that it has dropped."""
    return blocks_for(p, tokens) - rows[row].dropped


@kernel
def blocks_for(p: Record, tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return (tokens + p.block_size - 1) // p.block_size


@kernel
def _append(s: Record, rows: Records, table: Ints, row: int, block: int) -> None:
    held = rows[row].blocks
    if held == 0 or table[row, held - 1] + 1 != block:
        rows[row].runs += 1
        s.total_runs += 1
    table[row, held] = block
    rows[row].blocks = held + 1


@kernel
def _append_extent(
    s: Record, rows: Records, blocks: Records, tree: Ints, table: Ints, row: int, start: int, wanted: int
) -> int:
    """Take up to `wanted` blocks from the extent at `start`; how many were taken."""
    count = min(wanted, blocks[start].length)
    take_from_extent(s, blocks, tree, start, count)
    for block in range(start, start + count):
        _append(s, rows, table, row, block)
    return count


@outlined
def _grow_contiguous(s: Record, rows: Records, blocks: Records, tree: Ints, table: Ints, row: int, count: int) -> None:
    while count > 0 and rows[row].blocks > 0:
        after = table[row, rows[row].blocks - 1] + 1
        if blocks[after].free == 0:
            break
        count -= _append_extent(s, rows, blocks, tree, table, row, after, count)
    while count > 0:
        start = next_piece(blocks, tree, count)
        count -= _append_extent(s, rows, blocks, tree, table, row, start, count)


@kernel
def grow(p: Record, s: Record, a: Arrays, row: int, count: int) -> None:
    """Give a paged row `count` more blocks of its own; the caller has checked that they are available."""
    first = a.rows[row].blocks
    if p.offload:
        make_room_keeping(p, s, a, count)
    elif p.sharing:
        make_room(p, s, a.blocks, a.tree, a.keys, count)
    if p.placement == CONTIGUOUS:
        _grow_contiguous(s, a.rows, a.blocks, a.tree, a.table, row, count)
    else:
        last = a.table[row, first - 1] if first > 0 else 0
        for _ in range(count):
            last = take_block(p, s, a.blocks, a.tree, last)
            _append(s, a.rows, a.table, row, last)
    s.blocks_taken += count
    if p.sharing:
        for logical in range(first, first + count):
            hold(s, a.blocks, a.table[row, logical])
    else:
        s.reserved_blocks += count


@outlined
def grow_much(p: Record, s: Record, a: Arrays, row: int, count: int) -> None:
    """:func:`grow`, where it is called less often than at every step."""
    grow(p, s, a, row, count)


@kernel
def share_chain(s: Record, a: Arrays, row: int) -> None:
    """Give an empty row the blocks of the chain that was found for it; the chain is done with."""
    shared = s.chain_shared
    s.chain_shared = 0
    for logical in range(shared):
        hold(s, a.blocks, a.chain[logical])
        _append(s, a.rows, a.table, row, a.chain[logical])
    s.blocks_taken += shared


@kernel
def run_length(p: Record, reserved_tokens: int) -> int:
    """Blocks that a contiguous reservation holds (a buddy rounds up to a power of two)."""
    count = blocks_for(p, reserved_tokens)
    return 1 << order_of(count) if p.placement == BUDDY else count


@kernel
def can_take_run(p: Record, blocks: Records, tree: Ints, count: int) -> bool:
    """Whether a single free run of `count` blocks exists."""
    if p.placement == BUDDY:
        return has_order(tree, order_of(count))
    return best_extent(blocks, tree, count) != 0


@outlined
def take_run(
    p: Record, s: Record, rows: Records, blocks: Records, tree: Ints, row: int, count: int, promised: int
) -> None:
    """Give a row its contiguous reservation of `count` blocks, `promised` of which it was promised."""
    if p.placement == BUDDY:
        start = take_buddy(s, blocks, tree, order_of(count))
    else:
        start = best_extent(blocks, tree, count)
        take_from_extent(s, blocks, tree, start, count)
    rows[row].run_start = start
    rows[row].blocks = count
    rows[row].runs = 1
    s.total_runs += 1
    s.blocks_taken += count
    s.reserved_blocks += promised


@kernel
def _let_go_all(s: Record, blocks: Records, table: Ints, row: int, held: int, fenced: bool) -> int:
    """Let go of a row's blocks, last first. Those for the free store are left in entries [returned, held), in logical
    order.
    """
    first = held
    for logical in range(held - 1, -1, -1):
        block = table[row, logical]
        if let_go(s, blocks, block, fenced):
            first -= 1
            table[row, first] = block
    return first


@kernel
def _release_runs(
    p: Record, s: Record, blocks: Records, tree: Ints, table: Ints, row: int, first: int, end: int
) -> None:
    """Give back entries [first, end), last first, a run at a time: the extents end up as if it were block by block."""
    while end > first:
        start = end - 1
        while start > first and table[row, start - 1] + 1 == table[row, start]:
            start -= 1
        release_run(p, s, blocks, tree, table[row, start], end - start)
        end = start


@kernel
def give_back_last(p: Record, s: Record, a: Arrays, row: int) -> None:
    """A row gives back its last block, which nobody shares and which was not written."""
    r = a.rows[row]
    last = r.blocks - 1
    r.runs -= opens_run(a.rows, a.table, row)
    s.total_runs -= opens_run(a.rows, a.table, row)
    block = a.table[row, last]
    if p.sharing:
        let_go(s, a.blocks, block, False)
    else:
        s.reserved_blocks -= 1
    release_block(p, s, a.blocks, a.tree, block)
    r.blocks = last
    s.blocks_freed += 1


@kernel
def give_back(p: Record, s: Record, blocks: Records, tree: Ints, block: int, fenced: bool) -> None:
    """Give one block to the free store, or behind a fence."""
    if fenced:
        fence(s, blocks, block, 1)
    else:
        release_block(p, s, blocks, tree, block)


@outlined
def release_row(p: Record, s: Record, a: Arrays, row: int, at_once: bool) -> None:
    """Give back everything a row holds: last logical block first (or so that the next ascend), a contiguous reservation
    as its one run. ``at_once``: no step in flight reads it, so no fence is needed.
    """
    fenced = p.run_ahead > 0 and not at_once
    rows, blocks, tree, table = a.rows, a.blocks, a.tree, a.table
    held = rows[row].blocks
    s.blocks_freed += held
    if p.reserve == PAGED:
        first = 0
        if p.sharing:
            first = _let_go_all(s, blocks, table, row, held, fenced)
        else:
            s.reserved_blocks -= held
        if p.release_order == RELEASE_SORTED:
            sort_ids(table[row], first, held, p.placement != LIFO)
        if p.placement == CONTIGUOUS and not fenced:
            _release_runs(p, s, blocks, tree, table, row, first, held)
        else:
            for logical in range(held - 1, first - 1, -1):
                give_back(p, s, blocks, tree, table[row, logical], fenced)
    else:
        if fenced:
            fence(s, blocks, rows[row].run_start, held)
        else:
            release_run(p, s, blocks, tree, rows[row].run_start, held)
        s.reserved_blocks -= blocks_for(p, a.requests[rows[row].request].reserved_tokens)
    s.total_runs -= rows[row].runs
    rows[row].blocks = 0
    rows[row].runs = 0


@kernel
def _starts_run(table: Ints, row: int, at: int) -> int:
    return 1 if at == 0 or table[row, at - 1] + 1 != table[row, at] else 0


@outlined
def drop_middle(
    p: Record, s: Record, rows: Records, blocks: Records, tree: Ints, table: Ints, row: int, count: int
) -> None:
    """Give back the `count` blocks of a row that come after its summary blocks, one by one; its table closes up."""
    first = p.summary_blocks
    after = first + count
    held = rows[row].blocks
    before = rows[row].runs
    for at in range(first, after):
        rows[row].runs -= _starts_run(table, row, at)
    if after < held:
        rows[row].runs -= _starts_run(table, row, after)
    for at in range(first, after):
        give_back(p, s, blocks, tree, table[row, at], p.run_ahead > 0)
    for at in range(after, held):
        table[row, at - count] = table[row, at]
    rows[row].blocks = held - count
    rows[row].dropped += count
    rows[row].rewrites += 1
    if after < held:
        rows[row].runs += _starts_run(table, row, first)
    s.total_runs += rows[row].runs - before
    s.reserved_blocks -= count
    s.blocks_freed += count


@kernel
def opens_run(rows: Records, table: Ints, row: int) -> int:
    """1 when the last block of a row starts a run of its own, else 0."""
    return _starts_run(table, row, rows[row].blocks - 1)


@kernel
def history_runs(p: Record, rows: Records, table: Ints, row: int, computed: int) -> int:
    """Runs of the blocks that hold entries [0, computed): a block taken for the token to come is not history yet."""
    runs = rows[row].runs
    for last in range(held_blocks(p, rows, row, computed), rows[row].blocks):
        runs -= _starts_run(table, row, last)
    return runs

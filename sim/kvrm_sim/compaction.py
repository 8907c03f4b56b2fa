"""Compaction: blocks at the tail of the pool move into its lowest holes (docs/semantics.md section 5; B20, B21)."""

from __future__ import annotations

from kvrm_sim.bittree import tree_clear
from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.decoding import READ_STAGED, row_computed
from kvrm_sim.moves import MOVE_COMPACT, log_move, starts_group
from kvrm_sim.pager import PAGED, held_blocks, history_runs, opens_run
from kvrm_sim.pool import fill_store
from kvrm_sim.prefix import forget_chain, move_key
from kvrm_sim.state import NONE, Arrays, Record, Records

COMPACT_NEVER, COMPACT_THRESHOLD, COMPACT_DEMAND = range(3)

#: In `order` of a block, which only buddies use: it cannot move. A block that moves has there where it goes.
_FIXED = -2
_STAYS = -1


@kernel
def _largest_free_run(p: Record, blocks: Records) -> int:
    largest, run = 0, 0
    for block in range(1, p.pool_blocks + 1):
        run = run + 1 if blocks[block].free != 0 else 0
        largest = max(largest, run)
    return largest


@outlined
def compact_by_threshold(p: Record, s: Record, a: Arrays) -> None:
    """Compact when too much of what is free lies outside of the largest free run."""
    if s.came_free == 0 or s.num_running == 0:
        return
    s.came_free = 0
    if s.free_blocks - _largest_free_run(p, a.blocks) > p.compaction_ratio * s.free_blocks:
        compact(p, s, a)


@outlined
def compact(p: Record, s: Record, a: Arrays) -> None:
    """Move what may move, at most `max_moves`; the free store is then as if opened anew."""
    before = s.new_compaction_groups
    if p.reserve == PAGED:
        _fix_moving(s, a, _FIXED)
        _compact_blocks(p, s, a)
        _fix_moving(s, a, _STAYS)
    else:
        _compact_reservations(p, s, a)
    if s.new_compaction_groups > before:
        tree_clear(a.tree)
        fill_store(p, s, a.blocks, a.tree)


@kernel
def _fix_moving(s: Record, a: Arrays, order: int) -> None:
    """Blocks of rows whose transfer is under way cannot move, or can again."""
    for at in range(s.num_moving):
        row = a.rows["moving"][at]
        if a.rows[row].noticed == 0:
            for logical in range(a.rows[row].blocks):
                a.blocks[a.table[row, logical]].order = order


@kernel
def _is_movable(blocks: Records, block: int) -> bool:
    b = blocks[block]
    return bool(b.free == 0 and b.fenced == 0 and b.order != _FIXED)


@kernel
def _compact_blocks(p: Record, s: Record, a: Arrays) -> None:
    blocks = a.blocks
    high, low, moves = p.pool_blocks + 1, 0, 0
    while moves < p.compaction_max_moves:
        source, target = high - 1, low + 1
        while source > target and not _is_movable(blocks, source):
            source -= 1
        while target < source and blocks[target].free == 0:
            target += 1
        if target >= source:
            break
        high, low = source, target
        moves += 1
    if moves == 0:
        return
    forget_chain(s, blocks, a.chain)
    first = high
    source, target = high - 1, 0
    last_source, last_target = NONE, NONE
    for _ in range(moves):
        source += 1
        while not _is_movable(blocks, source):
            source += 1
        target += 1
        while blocks[target].free == 0:
            target += 1
        _move_block(p, s, a, source, target)
        log_move(p, s, a, MOVE_COMPACT, source, target)
        s.new_compaction_groups += starts_group(1, source, target, last_source, last_target)
        last_source, last_target = source, target
    s.new_compacted_blocks += moves
    row = s.running_head
    while row != NONE:
        _follow(p, s, a, row, first)
        row = a.rows[row].next
    for at in range(s.num_moving):
        if a.rows[a.rows["moving"][at]].noticed != 0:
            _follow(p, s, a, a.rows["moving"][at], first)
    for block in range(first, p.pool_blocks + 1):
        if blocks[block].order > 0:
            blocks[block].order = _STAYS


@kernel
def _move_block(p: Record, s: Record, a: Arrays, source: int, target: int) -> None:
    """What is known of a block moves to a free one. The old one is free, and `order` there says where it went."""
    old, new = a.blocks[source], a.blocks[target]
    old.order = target
    new.free = 0
    old.free = 1
    new.refs = old.refs
    old.refs = 0
    if p.sharing and old.key != NONE:
        move_key(p, s, a.blocks, a.keys, source, target)


@kernel
def _follow(p: Record, s: Record, a: Arrays, row: int, first: int) -> None:
    """A row's table follows its blocks; its runs are counted anew."""
    r = a.rows[row]
    staged = p.read == READ_STAGED and r.decoding != 0
    computed = row_computed(s, a.rows, row)
    pending = staged and r.blocks > held_blocks(p, a.rows, row, computed)
    if staged:
        s.stage_runs -= history_runs(p, a.rows, a.table, row, computed)
        s.pending_runs -= opens_run(a.rows, a.table, row) if pending else 0
    s.total_runs -= r.runs
    r.runs = 0
    for logical in range(r.blocks):
        block = a.table[row, logical]
        if block >= first and a.blocks[block].order > 0:
            block = a.blocks[block].order
            a.table[row, logical] = block
            r.rewrites += 1
        if logical == 0 or a.table[row, logical - 1] + 1 != block:
            r.runs += 1
    s.total_runs += r.runs
    if staged:
        s.stage_runs += history_runs(p, a.rows, a.table, row, computed)
        s.pending_runs += opens_run(a.rows, a.table, row) if pending else 0


@kernel
def _hole_for(blocks: Records, below: int, count: int) -> int:
    """Start of the lowest free run of `count` blocks that ends below an id, or 0."""
    run = 0
    for block in range(1, below):
        run = run + 1 if blocks[block].free != 0 else 0
        if run == count:
            return _start_of(blocks, block)
    return 0


@kernel
def _start_of(blocks: Records, block: int) -> int:
    while block > 1 and blocks[block - 1].free != 0:
        block -= 1
    return block


@kernel
def _highest_below(s: Record, rows: Records, below: int) -> int:
    """The row whose reservation starts highest below an id, or -1."""
    found, row = NONE, s.running_head
    while row != NONE:
        start = rows[row].run_start
        if start < below and (found == NONE or start > rows[found].run_start):
            found = row
        row = rows[row].next
    return found


@kernel
def _mark_run(blocks: Records, start: int, count: int, free: int) -> None:
    for block in range(start, start + count):
        blocks[block].free = free


@kernel
def _compact_reservations(p: Record, s: Record, a: Arrays) -> None:
    moves = 0
    row = _highest_below(s, a.rows, p.pool_blocks + 1)
    while row != NONE and moves < p.compaction_max_moves:
        r = a.rows[row]
        start = r.run_start
        hole = _hole_for(a.blocks, start, r.blocks)
        if hole != 0:
            _mark_run(a.blocks, hole, r.blocks, 0)
            _mark_run(a.blocks, start, r.blocks, 1)
            for at in range(r.blocks):
                log_move(p, s, a, MOVE_COMPACT, start + at, hole + at)
            r.run_start = hole
            r.rewrites += 1
            moves += 1
            s.new_compacted_blocks += r.blocks
            s.new_compaction_groups += 1
        row = _highest_below(s, a.rows, start)

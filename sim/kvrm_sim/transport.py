"""The merge planner: which blocks move to staging in a step, in how many contiguous groups (docs/semantics.md section
6).

``count_transfers`` gives the totals from sums kept row by row; ``plan_groups`` enumerates the same groups from the
block table, as the commit descriptor carries them and the device executes them. Under ``--check`` the two are
compared at each step.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.cost import LAYER
from kvrm_sim.decoding import FULL, READ_STAGED
from kvrm_sim.pager import held_blocks, history_runs
from kvrm_sim.state import NONE, Arrays, Ints, Record, Records

MERGE_NONE, MERGE_ADJACENT = range(2)
LAYER_MAJOR, BLOCK_MAJOR = range(2)


@outlined
def _count_drafting(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """The whole history of every decoding row, which has blocks for its drafts besides."""
    row = s.running_head
    while row != NONE:
        if a.rows[row].decoding:
            computed = a.rows[row].origin + s.decode_counter
            step.moved_blocks += held_blocks(p, a.rows, row, computed)
            step.groups += history_runs(p, a.rows, a.table, row, computed)
            step.needed_tokens += computed
        row = a.rows[row].next


@outlined
def _pack(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Rows that lie one behind the other in staging: what ends one may go on in the next; all together have to fit."""
    if step.moved_blocks > p.packed_blocks:
        step.moved_blocks = 0
        step.groups = 0
        step.needed_tokens = 0
        step.over_capacity = 1
        return
    if p.merge == MERGE_NONE:
        return
    last = NONE
    row = s.running_head
    while row != NONE:
        if a.rows[row].decoding:
            blocks = held_blocks(p, a.rows, row, a.rows[row].origin + s.decode_counter)
            if blocks > 0:  # who has no history takes no place
                step.groups -= 1 if last != NONE and a.table[row, 0] == last + 1 else 0
                last = a.table[row, blocks - 1]
        row = a.rows[row].next


@kernel
def count_transfers(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Fill in the transport of a decode step: groups, blocks, tokens, segments, rounds; does it fit packed staging?"""
    step.over_capacity = 0
    step.groups = 0
    step.moved_blocks = 0
    step.needed_tokens = 0
    step.segments = 0
    step.rounds = 0
    if p.read != READ_STAGED or step.prefill_rows > 0:
        return
    if p.staging == FULL and p.draft_tokens > 0:
        _count_drafting(p, s, step, a)
    elif p.staging == FULL:
        step.moved_blocks = s.stage_blocks
        step.groups = s.stage_runs
        step.needed_tokens = s.sum_computed - p.block_size * s.sum_dropped_blocks
    else:
        for at in range(s.num_unstaged):
            row = a.rows["unstaged"][at]
            computed = a.rows[row].origin + s.decode_counter
            step.moved_blocks += held_blocks(p, a.rows, row, computed)
            step.groups += history_runs(p, a.rows, a.table, row, computed)
            step.needed_tokens += computed
    if p.packed_blocks > 0:
        _pack(p, s, step, a)
    if p.merge == MERGE_NONE:
        step.groups = step.moved_blocks
    if step.groups == 0:
        return
    if p.layout == LAYER_MAJOR:
        step.segments = p.layers * step.groups
    elif p.scope == LAYER:
        step.segments = p.layers * step.moved_blocks
    else:
        step.segments = step.groups
    if p.scope == LAYER:
        step.rounds = 1
    else:
        capacity = a.ladders[p.capacities_at + p.num_capacities - 1]
        step.rounds = (step.groups + capacity - 1) // capacity


@kernel
def plan_groups(p: Record, s: Record, rows: Records, table: Ints, offsets: Ints, groups: Ints) -> int:
    """Enumerate the groups of a decode step into int64 ``groups`` [capacity, 3] = (source, destination, blocks).

    The destination counts blocks of the staging buffer. Strided: stage row times the staging's width plus the place in
    the row's table. Packed: the place behind the rows before, where each begins is noted in ``offsets`` int64 [slots].
    Rows in admission order (full) or in order of joining (delta). Returns how many groups; the caller gives room for
    every moved block.
    """
    count = 0
    if p.staging == FULL:
        behind = 0
        row = s.running_head
        while row != NONE:
            if rows[row].decoding:
                first = row * p.stage_width
                if p.packed_blocks > 0:
                    first = offsets[rows[row].slot] = behind
                    behind += held_blocks(p, rows, row, rows[row].origin + s.decode_counter)
                count = _row_groups(p, s, rows, table, row, first, groups, count)
            row = rows[row].next
    else:
        for at in range(s.num_unstaged):
            row = rows["unstaged"][at]
            count = _row_groups(p, s, rows, table, row, row * p.stage_width, groups, count)
    return count


@kernel
def _behind(groups: Ints, count: int) -> int:
    """The block behind the last one of the last group."""
    return int(groups[count - 1, 0] + groups[count - 1, 2])


@kernel
def _row_groups(
    p: Record, s: Record, rows: Records, table: Ints, row: int, first: int, groups: Ints, count: int
) -> int:
    """``first``: where the row begins in staging. Behind a row's last block another one's may go on."""
    blocks = held_blocks(p, rows, row, rows[row].origin + s.decode_counter)
    for logical in range(blocks):
        open_group = logical > 0 or (p.packed_blocks > 0 and count > 0)
        if open_group and p.merge == MERGE_ADJACENT and table[row, logical] == _behind(groups, count):
            groups[count - 1, 2] += 1
        else:
            groups[count, 0] = table[row, logical]
            groups[count, 1] = first + logical
            groups[count, 2] = 1
            count += 1
    return count

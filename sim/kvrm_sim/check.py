"""The invariants of DESIGN section 8, recomputed from scratch after each decision (``--check``; in tests always).

Slow on purpose: every sum that the core keeps incrementally is counted again from the tables.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.cost import GRAPH
from kvrm_sim.decoding import FULL, READ_STAGED, row_computed
from kvrm_sim.links import IN
from kvrm_sim.pager import PAGED, held_blocks
from kvrm_sim.prefix import available_blocks, is_cached
from kvrm_sim.state import NONE, OK, Ints, Record, Records
from kvrm_sim.transport import MERGE_ADJACENT

(
    FREE_COUNT,
    OWNERSHIP,
    CAPACITY,
    RUNS,
    SUMS,
    SLOTS,
    CONSERVATION,
    DRAIN,
    TIME_PARTS,
    TRANSPORT,
    PADDING,
    SHARING,
) = range(1, 13)

#: What each code means, for the error that Python raises.
INVARIANTS = {
    FREE_COUNT: "free + evictable + fenced + held = total blocks",
    OWNERSHIP: "each held block has one owner, or as many as it has references, and is not free",
    CAPACITY: "a row holds the blocks of what it has written and is about to write",
    RUNS: "runs equal those of the block tables",
    SUMS: "the sums over decoding rows equal their recount",
    SLOTS: "each running row has one slot, and each slot at most one row",
    CONSERVATION: "injected = completed + rejected + truncated + running (without those that have ended) + waiting",
    DRAIN: "nothing is held when nothing runs",
    TIME_PARTS: "exposed parts add up to the step, and none is negative",
    TRANSPORT: "groups and blocks equal those enumerated from the tables",
    SHARING: "evictable blocks are the keyed ones that nobody holds, each key has one block and is found",
    PADDING: "a captured batch covers its rows and their slots",
}


@kernel
def _check_row(p: Record, s: Record, rows: Records, blocks: Records, table: Ints, row: int) -> int:
    r = rows[row]
    if p.reserve != PAGED:
        if r.runs != 1:
            return RUNS
        for block in range(r.run_start, r.run_start + r.blocks):
            if blocks[block].mark == s.check_stamp or blocks[block].free != 0 or block < 1:
                return OWNERSHIP
            blocks[block].mark = s.check_stamp
        return OK
    runs = 0
    for logical in range(r.blocks):
        block = table[row, logical]
        if block < 1 or blocks[block].free != 0:
            return OWNERSHIP
        if p.sharing:
            # Marks of a shared block go up by one an owner; _check_sharing compares them with its references.
            blocks[block].mark = max(blocks[block].mark, s.check_stamp) + 1
        else:
            if blocks[block].mark == s.check_stamp:
                return OWNERSHIP
            blocks[block].mark = s.check_stamp
        if logical == 0 or table[row, logical - 1] + 1 != block:
            runs += 1
    if runs != r.runs:
        return RUNS
    return OK


@kernel
def _check_rows(p: Record, s: Record, rows: Records, blocks: Records, table: Ints, writes: int) -> int:
    s.check_stamp += 1 + p.slots
    held, runs, decoding, total, dropped, live, order = 0, 0, 0, 0, 0, 0, NONE
    row = s.running_head
    while row != NONE:
        r = rows[row]
        if rows[r.slot].at_slot != row or r.slot > s.highest_slot or r.order <= order:
            return SLOTS
        order = r.order
        broken = _check_row(p, s, rows, blocks, table, row)
        if broken != OK:
            return broken
        computed = row_computed(s, rows, row)
        if blocks[table[row, 0] if p.reserve == PAGED and r.blocks > 0 else 0].fenced != 0:
            return OWNERSHIP
        if held_blocks(p, rows, row, computed + (writes if r.decoding else 0)) > r.blocks:
            return CAPACITY
        if p.kept_blocks > 0 and r.decoding and r.blocks > p.kept_blocks:
            return CAPACITY
        held += r.blocks
        runs += r.runs
        live += 1
        if r.decoding:
            decoding += 1
            total += computed
            dropped += r.dropped
        row = r.next
    for at in range(s.num_moving):
        r = rows[rows["moving"][at]]
        broken = _check_row(p, s, rows, blocks, table, rows["moving"][at])
        if broken != OK:
            return broken
        if r.slot != NONE or r.decoding or r.request == NONE:
            return SLOTS
        held += r.blocks
        runs += r.runs
    if held - s.shared_again + s.free_blocks + s.evictable + s.fenced_blocks != p.pool_blocks:
        return FREE_COUNT
    if runs != s.total_runs:
        return RUNS
    if live != s.num_running or live + s.num_slots_free != p.slots or live + s.num_moving + s.num_stage_free != p.slots:
        return SLOTS
    if decoding != s.num_decode or total != s.sum_computed or dropped != s.sum_dropped_blocks:
        return SUMS
    return OK


@kernel
def _check_free(p: Record, s: Record, blocks: Records) -> int:
    free = 0
    for block in range(1, p.pool_blocks + 1):
        free += blocks[block].free
    if free != s.free_blocks or blocks[0].free != 0:
        return FREE_COUNT
    return OK


@kernel
def _check_sharing(p: Record, s: Record, blocks: Records, keys: Ints) -> int:
    """References equal the owners counted by `_check_rows`; keys and evictable blocks are what they should be."""
    again, evictable, keyed = 0, 0, 0
    for block in range(1, p.pool_blocks + 1):
        b = blocks[block]
        owners = max(b.mark - s.check_stamp, 0)
        if b.refs != owners:
            return OWNERSHIP
        again += max(owners - 1, 0)
        if b.key != NONE:
            keyed += 1
            if b.free != 0 or not is_cached(p, blocks, keys, block):
                return SHARING
            evictable += 1 if owners == 0 and b.fenced == 0 else 0
        elif owners == 0 and b.free == 0 and b.fenced == 0:
            return SHARING
    found, block, before = 0, s.least_recent, 0
    while block != 0:
        if blocks[block].refs != 0 or blocks[block].key == NONE or blocks[block].previous != before:
            return SHARING
        found += 1
        before, block = block, blocks[block].next
    for slot in range(p.key_slots):
        keyed -= 1 if keys[slot, 1] != 0 else 0
    if again != s.shared_again or evictable != s.evictable or found != evictable or keyed != 0:
        return SHARING
    return OK


@kernel
def _row_history(p: Record, rows: Records, table: Ints, row: int, computed: int) -> tuple[int, int, int]:
    """(groups, blocks, tokens) of a row's history, counted from its table."""
    count = held_blocks(p, rows, row, computed)
    groups = 0
    for logical in range(count):
        joined = logical > 0 and table[row, logical - 1] + 1 == table[row, logical] and p.merge == MERGE_ADJACENT
        groups += 0 if joined else 1
    return groups, count, computed - rows[row].dropped * p.block_size


@kernel
def _check_transport(p: Record, s: Record, step: Record, rows: Records, table: Ints) -> int:
    if p.read != READ_STAGED or step.prefill_rows > 0:
        return TRANSPORT if step.groups != 0 or step.moved_blocks != 0 or step.segments != 0 else OK
    groups, moved, needed = 0, 0, 0
    if p.staging == FULL:
        last = NONE
        row = s.running_head
        while row != NONE:
            if rows[row].decoding:
                g, b, t = _row_history(p, rows, table, row, row_computed(s, rows, row))
                groups, moved, needed = groups + g, moved + b, needed + t
                goes_on = p.packed_blocks > 0 and b > 0 and last != NONE and table[row, 0] - last == 1
                groups -= 1 if goes_on and p.merge == MERGE_ADJACENT else 0
                last = table[row, b - 1] if b > 0 else last
            row = rows[row].next
        if p.packed_blocks > 0 and moved > p.packed_blocks:
            groups, moved, needed = 0, 0, 0
    else:
        for at in range(s.num_unstaged):
            row = rows["unstaged"][at]
            g, b, t = _row_history(p, rows, table, row, row_computed(s, rows, row))
            groups, moved, needed = groups + g, moved + b, needed + t
    if groups != step.groups or moved != step.moved_blocks or needed != step.needed_tokens:
        return TRANSPORT
    return OK


@kernel
def _check_step(s: Record, step: Record) -> int:
    exposed = (
        step.host_exposed_ns
        + step.commit_exposed_ns
        + step.launch_exposed_ns
        + step.transport_exposed_ns
        + step.attention_exposed_ns
        + step.dense_exposed_ns
        + step.collectives_exposed_ns
    )
    least = min(step.host_exposed_ns, step.commit_exposed_ns, step.launch_exposed_ns, step.transport_exposed_ns)
    least = min(least, step.attention_exposed_ns, step.dense_exposed_ns, step.collectives_exposed_ns)
    if exposed != step.end_ns - step.start_ns or least < 0:
        return TIME_PARTS
    if step.launch_kind == GRAPH and (step.padded_rows < step.decode_rows or s.highest_slot >= step.padded_rows):
        return PADDING
    return OK


@kernel
def _in_flight(s: Record, rows: Records) -> int:
    """Requests that have arrived and not ended. One that leaves for the host is among those who wait."""
    coming = 0
    for at in range(s.num_moving):
        coming += 1 if rows[rows["moving"][at]].direction == IN else 0
    return int(s.num_running - s.num_ended_rows + coming + s.num_waiting + s.num_unseen)


@outlined
def broken_invariant(
    p: Record, s: Record, step: Record, rows: Records, blocks: Records, keys: Ints, table: Ints, planned: bool
) -> int:
    """The first invariant that does not hold after a decision, or OK."""
    broken = _check_free(p, s, blocks)
    if broken == OK:
        # Decoding rows write in this step unless it is one of prefills alone.
        writes = 1 if planned and step.decode_rows > 0 else 0
        broken = _check_rows(p, s, rows, blocks, table, writes)
    if broken == OK and p.sharing:
        broken = _check_sharing(p, s, blocks, keys)
    if broken != OK:
        return broken
    if s.injected != s.completed + s.rejected + s.truncated + _in_flight(s, rows):
        return CONSERVATION
    if s.num_running + s.num_moving == 0 and (
        available_blocks(s) + s.fenced_blocks != p.pool_blocks
        or s.total_runs != 0
        or s.reserved_blocks != 0
        or s.used_prefill != 0
    ):
        return DRAIN
    if not planned:
        return OK
    broken = _check_transport(p, s, step, rows, table)
    return broken if broken != OK else _check_step(s, step)

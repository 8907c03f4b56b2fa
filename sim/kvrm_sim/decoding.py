"""The set of decoding rows and the sums over it that cost reads; every row in it advances by one token in a decoding
step.

Sums are kept as rows join, grow and leave, so a step costs what changes in it. ``stage_*`` count the history that a
staged gather covers; blocks taken for the token to come are pending until the step has written it.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.pager import drop_middle, held_blocks, history_runs, opens_run
from kvrm_sim.state import NONE, Arrays, Ints, Record, Records
from kvrm_sim.wheel import add_to_wheels, remove_from_wheels

READ_RESERVED, READ_LIVE, READ_TABLE, READ_STAGED = range(4)
FULL, DELTA = range(2)


@kernel
def reads_pages(p: Record, step: Record) -> bool:
    """A decode step whose rows packed staging cannot hold: nothing is gathered, and it reads the block table."""
    reads_history = step.read_tokens > step.decode_rows + step.drafted_tokens
    return bool(p.packed_blocks > 0 and step.prefill_rows == 0 and step.moved_blocks == 0 and reads_history)


@kernel
def row_computed(s: Record, rows: Records, row: int) -> int:
    """Entries written for a row."""
    return rows[row].origin + s.decode_counter if rows[row].decoding else rows[row].computed


@kernel
def row_delivered(s: Record, rows: Records, requests: Records, row: int) -> int:
    """Tokens delivered for a row."""
    q = requests[rows[row].request]
    return q.output_tokens - (rows[row].finish_at - s.decode_counter) if rows[row].decoding else q.delivered


@kernel
def join_decoding(p: Record, s: Record, a: Arrays, row: int, computed: int) -> None:
    """A row's prompt is computed: from the next step on it decodes."""
    q = a.requests[a.rows[row].request]
    a.rows[row].decoding = 1
    a.rows[row].origin = computed - s.decode_counter
    a.rows[row].finish_at = s.decode_counter + q.output_tokens - q.delivered
    if p.draft_tokens == 0:
        add_to_wheels(p, a.rows, a.heads, row)
    s.num_decode += 1
    s.num_ended += a.rows[row].ended
    s.sum_computed += computed
    s.sum_dropped_blocks += a.rows[row].dropped
    s.sum_reserved_tokens += q.reserved_tokens
    s.max_base = a.rows[row].origin if s.num_decode == 1 else max(s.max_base, a.rows[row].origin)
    a.rows["newcomer"][s.num_newcomers] = row
    s.num_newcomers += 1
    if p.read == READ_STAGED:
        s.stage_blocks += held_blocks(p, a.rows, row, computed)
        s.stage_runs += history_runs(p, a.rows, a.table, row, computed)
        if a.rows[row].blocks > held_blocks(p, a.rows, row, computed):
            take_pending(s, a.rows, a.table, row)
        if p.staging == DELTA and a.rows[row].was_staged == 0:
            a.rows["unstaged"][s.num_unstaged] = row
            s.num_unstaged += 1


@kernel
def drop_far(p: Record, s: Record, a: Arrays, row: int) -> None:
    """A decoding row that is to take a block drops one first, if it holds as many as it keeps."""
    if a.rows[row].blocks < p.kept_blocks:
        return
    before = a.rows[row].runs
    drop_middle(p, s, a.rows, a.blocks, a.tree, a.table, row, 1)
    s.sum_dropped_blocks += 1
    if p.read == READ_STAGED:
        s.stage_blocks -= 1
        s.stage_runs += a.rows[row].runs - before


@kernel
def take_pending(s: Record, rows: Records, table: Ints, row: int) -> None:
    """The row's last block was taken for the token of this step: history only once that is written."""
    s.pending_blocks += 1
    s.pending_runs += opens_run(rows, table, row)


@kernel
def forget_row(members: Ints, size: int, row: int) -> int:
    """Remove a row from a short unordered list, keeping the order of the rest; its new size."""
    kept = 0
    for at in range(size):
        if members[at] != row:
            members[kept] = members[at]
            kept += 1
    return kept


@outlined
def leave_decoding(p: Record, s: Record, requests: Records, rows: Records, heads: Ints, table: Ints, row: int) -> None:
    """A row finished or was preempted: out of the wheels and the sums."""
    if p.draft_tokens == 0:
        remove_from_wheels(p, rows, heads, row)
    rows[row].decoding = 0
    s.num_decode -= 1
    s.num_ended -= rows[row].ended
    s.sum_computed -= rows[row].origin + s.decode_counter
    s.sum_dropped_blocks -= rows[row].dropped
    s.sum_reserved_tokens -= requests[rows[row].request].reserved_tokens
    if rows[row].origin == s.max_base:
        s.max_base_dirty = 1
    s.num_newcomers = forget_row(rows["newcomer"], s.num_newcomers, row)
    if p.read == READ_STAGED:
        s.stage_blocks -= rows[row].blocks
        s.stage_runs -= rows[row].runs
        if rows[row].blocks > held_blocks(p, rows, row, rows[row].origin + s.decode_counter):
            # A victim that has just been given the block of its next token, which is not counted as history yet.
            opened = opens_run(rows, table, row)
            s.stage_blocks += 1
            s.stage_runs += opened
            s.pending_blocks -= 1
            s.pending_runs -= opened
        s.num_unstaged = forget_row(rows["unstaged"], s.num_unstaged, row)


@kernel
def _is_in(members: Ints, size: int, row: int) -> bool:
    for at in range(size):  # noqa: SIM110  # any() of a generator does not compile
        if members[at] == row:
            return True
    return False


@kernel
def settle_row(p: Record, s: Record, a: Arrays, row: int) -> None:
    """Write down in its request what a decoding row has delivered, and when last: it is about to stop decoding."""
    q = a.requests[a.rows[row].request]
    q.delivered = row_delivered(s, a.rows, a.requests, row)
    if p.draft_tokens == 0 and not _is_in(a.rows["newcomer"], s.num_newcomers, row):
        q.last_token_ns = s.last_decode_end_ns


@outlined
def stall_row(p: Record, s: Record, a: Arrays, row: int) -> None:
    """A decoding row waits for pending blocks: it is not in this step."""
    r = a.rows[row]
    r.computed = row_computed(s, a.rows, row)
    r.was_staged = 1 if p.staging == DELTA and not _is_in(a.rows["unstaged"], s.num_unstaged, row) else 0
    if r.ended == 0:
        settle_row(p, s, a, row)
    leave_decoding(p, s, a.requests, a.rows, a.heads, a.table, row)
    r.waits = 1
    s.stalled_tokens += r.computed - r.dropped * p.block_size
    a.rows["stalled"][s.num_stalled] = row
    s.num_stalled += 1


@outlined
def unstall_row(p: Record, s: Record, rows: Records, row: int) -> None:
    """A row no longer waits: it decodes again, or it has to go."""
    r = rows[row]
    r.waits = 0
    s.stalled_tokens -= r.computed - r.dropped * p.block_size
    s.num_stalled = forget_row(rows["stalled"], s.num_stalled, row)


@kernel
def longest_computed(s: Record, rows: Records) -> int:
    """Entries of the longest decoding row; looked for again only after the longest has left."""
    if s.max_base_dirty:
        best = NONE
        row = s.running_head
        first = True
        while row != NONE:
            if rows[row].decoding and (first or rows[row].origin > best):
                best = rows[row].origin
                first = False
            row = rows[row].next
        s.max_base = best
        s.max_base_dirty = 0
    return s.max_base + s.decode_counter

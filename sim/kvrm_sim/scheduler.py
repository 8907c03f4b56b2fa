"""Admit, grow, preempt: which rows a step runs and with how many tokens (docs/semantics.md section 3).

Pure decisions over the state: no clock passes here. Two facts keep a decision as cheap as what changes in it. A
decoding row asks for one token and for a block only when its growth list comes up. And at most one running row is
still prefilling, the last one: a row is admitted behind another only when that one's chunk was its whole rest.
"""

from __future__ import annotations

from kvrm_sim.admission import PREFILL_SEPARATE, admit_waiting, join_ready, plan_prefill
from kvrm_sim.ahead import release_ended
from kvrm_sim.compiled import kernel, outlined, part
from kvrm_sim.decoding import (
    READ_STAGED,
    drop_far,
    forget_row,
    join_decoding,
    leave_decoding,
    row_computed,
    settle_row,
    stall_row,
    take_pending,
    unstall_row,
)
from kvrm_sim.fences import pending_blocks
from kvrm_sim.pager import (
    PAGED,
    blocks_for,
    grow,
    grow_much,
    held_blocks,
    release_row,
)
from kvrm_sim.prefix import (
    available_blocks,
)
from kvrm_sim.request import known_tokens, log_event
from kvrm_sim.rowlist import close_row
from kvrm_sim.speculation import count_drafts, drafts_of
from kvrm_sim.state import EV_PREEMPT, NONE, Arrays, Ints, Record, Records
from kvrm_sim.swap import can_swap, swap_out
from kvrm_sim.waiting import return_to_waiting

REFILL_CONTINUOUS, REFILL_BATCH = range(2)
VICTIM_LAST, VICTIM_LEAST_COMPUTED, VICTIM_LARGEST, VICTIM_LOWEST_PRIORITY = range(4)


@kernel
def victim_weight(p: Record, s: Record, requests: Records, rows: Records, row: int) -> int:
    """What a running row weighs as a victim: the greatest goes first."""
    if p.victim == VICTIM_LEAST_COMPUTED:
        return -row_computed(s, rows, row)
    if p.victim == VICTIM_LARGEST:
        return rows[row].blocks
    return requests[rows[row].request].priority


@outlined
def _victim(p: Record, s: Record, requests: Records, rows: Records) -> int:
    """The running row that goes first; the later one of equals."""
    if p.victim == VICTIM_LAST:
        return s.running_tail
    worst, found = 0, NONE
    row = s.running_head
    while row != NONE:
        weight = victim_weight(p, s, requests, rows, row)
        if found == NONE or weight >= worst:
            worst, found = weight, row
        row = rows[row].next
    return found


@outlined
def preempt(p: Record, s: Record, step: Record, a: Arrays) -> int:
    """Preempt the victim, and back to waiting it goes: by swapping, or by recomputation (its blocks are released, what
    it has computed is lost). Returns its row.
    """
    row = _victim(p, s, a.requests, a.rows)
    request = a.rows[row].request
    q = a.requests[request]
    s.preemptions += 1
    step.preempted += 1
    if a.rows[row].ended:
        s.num_ended_rows = forget_row(a.rows["ended_row"], s.num_ended_rows, row)
        release_ended(p, s, a, row)
        return row
    swaps = can_swap(p, s, a, row)
    lost = row_computed(s, a.rows, row)
    if a.rows[row].decoding:
        settle_row(p, s, a, row)
        leave_decoding(p, s, a.requests, a.rows, a.heads, a.table, row)
    elif a.rows[row].waits:
        unstall_row(p, s, a.rows, row)
    else:
        s.used_prefill = 0  # it is the one row that was still prefilling
    q.preemptions += 1
    if swaps:
        a.rows[row].computed = lost
        swap_out(p, s, a, row)
    else:
        q.recomputed_tokens += lost
        q.lost_tokens = lost
        s.recomputed_tokens += lost
        release_row(p, s, a, row, False)
        close_row(s, a.rows, row)
    return_to_waiting(p, s, a.requests, request)
    log_event(p, s, a.events, EV_PREEMPT, s.now_ns, q.row)
    return row


@kernel
def _insert_by_order(rows: Records, count: int, row: int) -> int:
    """Put a row at its place among `count` rows in running order; how many there are then."""
    growing = rows["growing"]
    at = count
    while at > 0 and rows[growing[at - 1]].order > rows[row].order:
        growing[at] = growing[at - 1]
        at -= 1
    growing[at] = row
    return count + 1


@kernel
def _rows_to_grow(s: Record, rows: Records, heads: Ints) -> int:
    """Collect the decoding rows whose next token needs a block, and those that wait for one, in running order; how
    many.
    """
    count = 0
    row = heads[s.growth_at]
    while row != NONE:
        count = _insert_by_order(rows, count, row)
        row = rows[row].grow_next
    for at in range(s.num_stalled):
        count = _insert_by_order(rows, count, rows["stalled"][at])
    return count


@outlined
def _grow_drafting(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Settle how much each row drafts, and give it the blocks for it: all of them are asked, in running order."""
    count, row = 0, s.running_head
    while row != NONE:
        if a.rows[row].decoding or a.rows[row].waits:
            a.rows["growing"][count] = row
            count += 1
        row = a.rows[row].next
    for at in range(count):
        row = a.rows["growing"][at]
        r = a.rows[row]
        if r.slot == NONE:  # it was the victim of a row before it
            continue
        r.drafts = drafts_of(p, s, a, row)
        if p.reserve != PAGED:
            continue
        needed = blocks_for(p, row_computed(s, a.rows, row) + 1 + r.drafts) - r.blocks
        while r.slot != NONE and needed > available_blocks(s) + pending_blocks(s):
            preempt(p, s, step, a)
        if r.slot == NONE:
            continue
        if needed > available_blocks(s):
            step.stalled_rows += 1
            if r.decoding:
                stall_row(p, s, a, row)
            continue
        if needed > 0:
            grow_much(p, s, a, row, needed)
        if r.waits:
            unstall_row(p, s, a.rows, row)
            join_decoding(p, s, a, row, r.computed)


@kernel
def _grow_decoding(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Give each decoding row that needs one its next block; who cannot get it preempts the victim, possibly itself."""
    count = _rows_to_grow(s, a.rows, a.heads)
    for at in range(count):
        row = a.rows["growing"][at]
        # A row without a batch row was preempted for an earlier one.
        if p.host_blocks > 0 and a.rows[row].blocks > held_blocks(p, a.rows, row, row_computed(s, a.rows, row)):
            continue  # it has come in from the host in this very decision, with the block for its next token
        if p.kept_blocks > 0 and a.rows[row].slot != NONE and a.rows[row].decoding:
            drop_far(p, s, a, row)
        while a.rows[row].slot != NONE and available_blocks(s) + pending_blocks(s) == 0:
            preempt(p, s, step, a)
        if a.rows[row].slot == NONE:
            continue
        if available_blocks(s) == 0:
            step.stalled_rows += 1
            if a.rows[row].decoding:
                stall_row(p, s, a, row)
            continue
        grow(p, s, a, row, 1)
        if a.rows[row].waits:
            unstall_row(p, s, a.rows, row)
            join_decoding(p, s, a, row, a.rows[row].computed)
        elif p.read == READ_STAGED:
            take_pending(s, a.rows, a.table, row)


@part
def _continue_prefill(p: Record, s: Record, step: Record, a: Arrays, left: int) -> int:
    """The next chunk of the one row that is still prefilling; the budget that is left."""
    row = s.running_tail
    if row == NONE or a.rows[row].decoding or a.rows[row].waits or left == 0:
        return left
    computed = a.rows[row].computed
    tokens = min(known_tokens(a.requests[a.rows[row].request]) - computed, left)
    if p.reserve == PAGED:
        needed = held_blocks(p, a.rows, row, computed + tokens) - a.rows[row].blocks
        while needed > available_blocks(s) + pending_blocks(s):
            decoding = s.num_decode
            if preempt(p, s, step, a) == row:
                return left
            left += decoding - s.num_decode  # a decoding row's token
        if needed > available_blocks(s):
            step.stalled_rows += 1
            return left
        if needed > 0:
            grow_much(p, s, a, row, needed)
    plan_prefill(p, s, step, a, row, tokens)
    return left - tokens


@part
def schedule(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Choose the rows of the next step; step.decode_rows + step.prefill_rows == 0 means there is nothing to run."""
    if s.num_running == 0:
        s.batch_open = 1
    admits = p.refill == REFILL_CONTINUOUS or s.batch_open
    decodes_first = p.prefill != PREFILL_SEPARATE
    left = p.token_budget
    # `separate` admits first, and decodes when nothing was admitted. One loop, so that each part is compiled once.
    for turn in range(2):
        if (turn == 0) == decodes_first:
            if step.prefill_rows > 0:
                break
            if p.draft_tokens > 0:
                _grow_drafting(p, s, step, a)
            elif p.reserve == PAGED:
                _grow_decoding(p, s, step, a)
            if decodes_first:
                left = _continue_prefill(p, s, step, a, p.token_budget - s.num_decode)
                admits = admits and step.preempted + step.stalled_rows == 0
        else:
            if s.num_moving > 0 and step.stalled_rows == 0 and (not decodes_first or left > 0):
                left = join_ready(p, s, step, a, left)
            if admits and s.waiting_head != NONE and s.num_running + s.num_moving < p.slots:
                admit_waiting(p, s, step, a, left)
    if decodes_first or step.prefill_rows == 0:
        step.decode_rows = s.num_decode
    step.drafted_tokens = 0
    if step.decode_rows > 0:
        s.batch_open = 0
        if p.draft_tokens > 0:
            count_drafts(s, step, a)
    step.sampled_rows += step.decode_rows + step.drafted_tokens

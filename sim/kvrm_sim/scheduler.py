"""Admit, grow, preempt: which rows a step runs and with how many tokens (docs/semantics.md section 3).

Pure decisions over the state: no clock passes here. Two facts keep a decision as cheap as what changes in it. A
decoding row asks for one token and for a block only when its growth list comes up. And at most one running row is
still prefilling, the last one: a row is admitted behind another only when that one's chunk was its whole rest.
"""

from __future__ import annotations

from kvrm_sim.compiled import inner, kernel, outlined
from kvrm_sim.decoding import READ_STAGED, join_decoding, leave_decoding, row_computed, row_delivered, take_pending
from kvrm_sim.meters import tally
from kvrm_sim.pager import PAGED, blocks_for, can_take_run, grow, release_row, run_length, take_run
from kvrm_sim.request import known_tokens, log_event, pop_waiting, push_waiting_front
from kvrm_sim.rowlist import close_row, open_row
from kvrm_sim.state import EV_ADMIT, EV_PREEMPT, H_QUEUE, NONE, Arrays, Ints, Record, Records

PREFILL_NONE, PREFILL_CHUNKED, PREFILL_SEPARATE = range(3)
FULL_PROMPT, FIRST_CHUNK = range(2)
REFILL_CONTINUOUS, REFILL_BATCH = range(2)


@outlined
def preempt_last(p: Record, s: Record, step: Record, a: Arrays) -> int:
    """Preempt the last running row by recomputation: blocks released, computed lost, front of waiting. Returns the
    row.
    """
    row = s.running_tail
    request = a.rows[row].request
    q = a.requests[request]
    lost = row_computed(s, a.rows, row)
    if a.rows[row].decoding:
        q.delivered = row_delivered(s, a.rows, a.requests, row)
        if not _is_newcomer(s, a.rows, row):
            q.last_token_ns = s.last_decode_end_ns
        leave_decoding(p, s, a.requests, a.rows, a.heads, row)
    else:
        s.used_prefill = 0  # it is the one row that was still prefilling
    q.preemptions += 1
    q.recomputed_tokens += lost
    s.recomputed_tokens += lost
    s.preemptions += 1
    step.preempted += 1
    release_row(p, s, a.rows, a.blocks, a.tree, a.table, row, blocks_for(p, q.reserved_tokens))
    close_row(s, a.rows, row)
    push_waiting_front(s, a.requests, request)
    log_event(p, s, a.events, EV_PREEMPT, s.now_ns, q.row)
    return row


@kernel
def _is_newcomer(s: Record, rows: Records, row: int) -> bool:
    for at in range(s.num_newcomers):  # noqa: SIM110  # any() of a generator does not compile
        if rows["newcomer"][at] == row:
            return True
    return False


@kernel
def _rows_to_grow(s: Record, rows: Records, heads: Ints) -> int:
    """Collect the decoding rows whose next token needs a block, in running order; how many."""
    count = 0
    row = heads[s.growth_at]
    growing = rows["growing"]
    while row != NONE:
        at = count
        while at > 0 and rows[growing[at - 1]].order > rows[row].order:
            growing[at] = growing[at - 1]
            at -= 1
        growing[at] = row
        count += 1
        row = rows[row].grow_next
    return count


@inner
def _grow_decoding(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Give each decoding row that needs one its next block; who cannot get it preempts the last, possibly itself."""
    count = _rows_to_grow(s, a.rows, a.heads)
    for at in range(count):
        row = a.rows["growing"][at]
        if a.rows[row].request == NONE:
            return  # preempted for an earlier row, and so is everything behind it
        while s.free_blocks == 0:
            if preempt_last(p, s, step, a) == row:
                return
        grow(p, s, a, row, 1)
        if p.read == READ_STAGED:
            take_pending(s, a.rows, a.table, row)


@inner
def _plan_prefill(s: Record, step: Record, a: Arrays, row: int, tokens: int) -> None:
    computed = a.rows[row].computed
    a.rows[row].planned = tokens
    a.rows["prefill"][s.num_prefill] = row
    s.num_prefill += 1
    step.prefill_rows += 1
    step.prefill_tokens += tokens
    step.prefill_read_tokens += computed + tokens
    step.prefill_pairs += tokens * computed + tokens * (tokens + 1) // 2
    if computed + tokens == known_tokens(a.requests[a.rows[row].request]):
        step.sampled_rows += 1


@inner
def _continue_prefill(p: Record, s: Record, step: Record, a: Arrays, left: int) -> int:
    """The next chunk of the one row that is still prefilling; the budget that is left."""
    row = s.running_tail
    if row == NONE or a.rows[row].decoding or left == 0:
        return left
    computed = a.rows[row].computed
    tokens = min(known_tokens(a.requests[a.rows[row].request]) - computed, left)
    if p.reserve == PAGED:
        needed = blocks_for(p, computed + tokens) - a.rows[row].blocks
        if needed > s.free_blocks:
            preempt_last(p, s, step, a)
            return left
        if needed > 0:
            grow(p, s, a, row, needed)
    _plan_prefill(s, step, a, row, tokens)
    return left - tokens


@inner
def _try_admit(p: Record, s: Record, step: Record, a: Arrays, tokens_known: int) -> int:
    """Admit the first waiting request if its blocks are free; its row, or -1 (and then nothing has changed)."""
    q = a.requests[s.waiting_head]
    if p.reserve == PAGED:
        wanted = blocks_for(p, tokens_known)
    else:
        wanted = run_length(p, q.reserved_tokens)
    margin = 0 if s.num_running == 0 else p.watermark_blocks
    if wanted > s.free_blocks - margin:
        return NONE
    if p.reserve != PAGED and not can_take_run(p, a.blocks, a.tree, wanted):
        return NONE
    request = pop_waiting(s, a.requests)
    row = open_row(s, a.rows, request)
    if p.reserve == PAGED:
        grow(p, s, a, row, wanted)
    else:
        take_run(p, s, a.rows, a.blocks, a.tree, row, wanted, blocks_for(p, q.reserved_tokens))
    step.admitted += 1
    s.admitted += 1
    if q.admitted_ns == NONE:
        q.admitted_ns = s.now_ns
        tally(a.tallies[H_QUEUE], a.histograms[H_QUEUE], s.now_ns - q.arrival_ns, 1)
    log_event(p, s, a.events, EV_ADMIT, s.now_ns, q.row)
    return row


@inner
def _admit_chunked(p: Record, s: Record, step: Record, a: Arrays, left: int) -> None:
    """Admit waiting requests in order while the budget, the slots and the pool allow; stop at the first that does
    not fit.
    """
    while s.waiting_head != NONE and left > 0 and s.num_running < p.slots:
        known = known_tokens(a.requests[s.waiting_head])
        tokens = 1 if p.prefill == PREFILL_NONE else min(known, left)
        wanted = tokens if p.admission == FIRST_CHUNK and p.prefill != PREFILL_NONE else known
        row = _try_admit(p, s, step, a, wanted)
        if row == NONE:
            return
        if p.prefill == PREFILL_NONE:
            join_decoding(p, s, a, row, known - 1)
        else:
            _plan_prefill(s, step, a, row, tokens)
            left -= tokens


@inner
def _admit_whole(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Admit whole prompts for a step of prefills; the first one whatever its length, further ones within the budget."""
    left = p.token_budget
    while s.waiting_head != NONE and s.num_running < p.slots:
        known = known_tokens(a.requests[s.waiting_head])
        if step.prefill_rows > 0 and known > left:
            return
        row = _try_admit(p, s, step, a, known)
        if row == NONE:
            return
        _plan_prefill(s, step, a, row, known)
        left -= known


@inner
def schedule(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Choose the rows of the next step; step.decode_rows + step.prefill_rows == 0 means there is nothing to run."""
    if s.num_running == 0:
        s.batch_open = 1
    may_refill = p.refill == REFILL_CONTINUOUS or s.batch_open
    if p.prefill == PREFILL_SEPARATE:
        if may_refill:
            _admit_whole(p, s, step, a)
        if step.prefill_rows == 0:
            if p.reserve == PAGED:
                _grow_decoding(p, s, step, a)
            step.decode_rows = s.num_decode
    else:
        if p.reserve == PAGED:
            _grow_decoding(p, s, step, a)
        left = p.token_budget - s.num_decode
        left = _continue_prefill(p, s, step, a, left)
        if step.preempted == 0 and may_refill:
            _admit_chunked(p, s, step, a, left)
        step.decode_rows = s.num_decode
    if step.decode_rows > 0:
        s.batch_open = 0
    step.sampled_rows += step.decode_rows

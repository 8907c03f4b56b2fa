"""Admit, grow, preempt: which rows a step runs and with how many tokens (docs/semantics.md section 3).

Pure decisions over the state: no clock passes here. Two facts keep a decision as cheap as what changes in it. A
decoding row asks for one token and for a block only when its growth list comes up. And at most one running row is
still prefilling, the last one: a row is admitted behind another only when that one's chunk was its whole rest.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined, part
from kvrm_sim.decoding import (
    READ_STAGED,
    drop_far,
    join_decoding,
    leave_decoding,
    row_computed,
    row_delivered,
    take_pending,
)
from kvrm_sim.meters import tally
from kvrm_sim.pager import (
    PAGED,
    blocks_for,
    can_take_run,
    grow,
    grow_much,
    held_blocks,
    most_blocks,
    release_row,
    run_length,
    share_chain,
    take_run,
)
from kvrm_sim.prefix import (
    TAIL_COPY,
    available_blocks,
    find_chain,
    give_keys,
)
from kvrm_sim.request import known_tokens, log_event
from kvrm_sim.rowlist import close_row, open_row
from kvrm_sim.state import EV_ADMIT, EV_PREEMPT, H_QUEUE, NONE, Arrays, Ints, Record, Records
from kvrm_sim.waiting import pop_waiting, return_to_waiting

PREFILL_NONE, PREFILL_CHUNKED, PREFILL_SEPARATE = range(3)
FULL_PROMPT, FIRST_CHUNK = range(2)
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
    """Preempt the victim by recomputation: blocks released, computed lost, back to waiting. Returns its row."""
    row = _victim(p, s, a.requests, a.rows)
    request = a.rows[row].request
    q = a.requests[request]
    lost = row_computed(s, a.rows, row)
    if a.rows[row].decoding:
        q.delivered = row_delivered(s, a.rows, a.requests, row)
        if not _is_newcomer(s, a.rows, row):
            q.last_token_ns = s.last_decode_end_ns
        leave_decoding(p, s, a.requests, a.rows, a.heads, a.table, row)
    else:
        s.used_prefill = 0  # it is the one row that was still prefilling
    q.preemptions += 1
    q.recomputed_tokens += lost
    q.lost_tokens = lost
    s.recomputed_tokens += lost
    s.preemptions += 1
    step.preempted += 1
    release_row(p, s, a.rows, a.blocks, a.tree, a.table, row, blocks_for(p, q.reserved_tokens))
    close_row(s, a.rows, row)
    return_to_waiting(p, s, a.requests, request)
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


@kernel
def _grow_decoding(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """Give each decoding row that needs one its next block; who cannot get it preempts the victim, possibly itself."""
    count = _rows_to_grow(s, a.rows, a.heads)
    for at in range(count):
        row = a.rows["growing"][at]
        # A row without a request was preempted for an earlier one.
        if p.kept_blocks > 0 and a.rows[row].request != NONE:
            drop_far(p, s, a, row)
        while a.rows[row].request != NONE and available_blocks(s) == 0:
            preempt(p, s, step, a)
        if a.rows[row].request == NONE:
            continue
        grow(p, s, a, row, 1)
        if p.read == READ_STAGED:
            take_pending(s, a.rows, a.table, row)


@kernel
def _plan_prefill(p: Record, s: Record, step: Record, a: Arrays, row: int, tokens: int) -> None:
    computed = a.rows[row].computed
    a.rows[row].planned = tokens
    a.rows["prefill"][s.num_prefill] = row
    s.num_prefill += 1
    step.prefill_rows += 1
    step.prefill_tokens += tokens
    history = computed - a.rows[row].dropped * p.block_size
    step.prefill_read_tokens += history + tokens
    step.prefill_pairs += tokens * history + tokens * (tokens + 1) // 2
    if computed + tokens == known_tokens(a.requests[a.rows[row].request]):
        step.sampled_rows += 1


@part
def _continue_prefill(p: Record, s: Record, step: Record, a: Arrays, left: int) -> int:
    """The next chunk of the one row that is still prefilling; the budget that is left."""
    row = s.running_tail
    if row == NONE or a.rows[row].decoding or left == 0:
        return left
    computed = a.rows[row].computed
    tokens = min(known_tokens(a.requests[a.rows[row].request]) - computed, left)
    if p.reserve == PAGED:
        needed = held_blocks(p, a.rows, row, computed + tokens) - a.rows[row].blocks
        while needed > available_blocks(s):
            if preempt(p, s, step, a) == row:
                return left
            left += 1  # a decoding row's token
        if needed > 0:
            grow_much(p, s, a, row, needed)
    _plan_prefill(p, s, step, a, row, tokens)
    return left - tokens


@part
def _fits(p: Record, s: Record, a: Arrays, wanted: int, shared: int) -> bool:
    """Whether the first waiting request's blocks can be had, `shared` of which are cached."""
    margin = 0 if s.num_running == 0 else p.watermark_blocks
    room = available_blocks(s) - margin
    if wanted - shared > room:
        return False
    if p.reserve != PAGED:
        return can_take_run(p, a.blocks, a.tree, wanted)
    # Of the available blocks, those that are to be shared cannot be given out.
    return shared == 0 or wanted - shared <= room - s.chain_evictable


@part
def _admit(p: Record, s: Record, step: Record, a: Arrays, wanted: int, shared: int) -> int:
    """Admit the first waiting request, whose blocks can be had; its row."""
    request = pop_waiting(p, s, a.requests)
    s.chain_request = NONE
    q = a.requests[request]
    row = open_row(s, a.rows, request)
    if p.reserve == PAGED:
        if shared > 0:
            share_chain(s, a, row)
        grow_much(p, s, a, row, wanted - shared)
    else:
        take_run(p, s, a.rows, a.blocks, a.tree, row, wanted, blocks_for(p, q.reserved_tokens))
    step.admitted += 1
    s.admitted += 1
    if q.admitted_ns == NONE:
        q.admitted_ns = s.now_ns
        tally(a.tallies[H_QUEUE], a.histograms[H_QUEUE], s.now_ns - q.arrival_ns, 1)
    log_event(p, s, a.events, EV_ADMIT, s.now_ns, q.row)
    return row


@kernel
def _count_hit(s: Record, step: Record, q: Record, tokens: int) -> None:
    """A first admission's cached tokens are a hit; a later one's were not lost after all."""
    if q.hit_tokens == NONE:
        q.hit_tokens = tokens
        s.hit_tokens += tokens
        step.hit_tokens += tokens
    else:
        kept = min(tokens, q.lost_tokens)
        q.recomputed_tokens -= kept
        s.recomputed_tokens -= kept


@part
def _begin_row(p: Record, s: Record, step: Record, a: Arrays, row: int, shared: int, copied_from: int) -> None:
    """Where an admitted row begins: behind what is cached of its prompt (`none`: all of it is there)."""
    q = a.requests[a.rows[row].request]
    known = known_tokens(q)
    computed = shared * p.block_size
    if copied_from != 0:
        computed = known - 1
        a.rows[row].copied_from = copied_from
        step.copied_blocks += 1
    _count_hit(s, step, q, computed)
    if p.prefill != PREFILL_NONE:
        a.rows[row].computed = computed
        s.used_prefill += computed
        return
    a.rows[row].dropped = blocks_for(p, known) - a.rows[row].blocks if p.kept_blocks > 0 else 0
    end = min(q.num_keys, (known - 1) // p.block_size)
    if shared < end:
        give_keys(p, s, a.blocks, a.keys, a.ids, a.table, row, q.ids_at, shared, end)
    join_decoding(p, s, a, row, known - 1)


@outlined
def _admit_waiting(p: Record, s: Record, step: Record, a: Arrays, left: int) -> None:
    """Admit waiting requests in order while the budget, the slots and the pool allow; stop at the first that does
    not fit. Whole prompts (`separate`): the first one whatever its length.
    """
    whole = p.prefill == PREFILL_SEPARATE
    while s.waiting_head != NONE and (left > 0 or whole) and s.num_running < p.slots:
        q = a.requests[s.waiting_head]
        known = known_tokens(q)
        shared = 0
        copied_from = 0
        if q.num_keys > 0:
            most = (known - 1) // p.block_size
            find_chain(p, s, a.blocks, a.keys, a.ids, a.chain, s.waiting_head, q.ids_at, q.num_keys, most)
            shared = s.chain_shared
            if p.partial_tail == TAIL_COPY and s.chain_blocks > shared:
                copied_from = a.chain[shared]
        start = known - 1 if copied_from != 0 or p.prefill == PREFILL_NONE else shared * p.block_size
        tokens = known - start
        if whole:
            if step.prefill_rows > 0 and tokens > left:
                return
        else:
            tokens = min(tokens, left)
        wanted = blocks_for(p, start + tokens) if p.admission == FIRST_CHUNK else most_blocks(p, known)
        if p.reserve != PAGED:
            wanted = run_length(p, q.reserved_tokens)
        if not _fits(p, s, a, wanted, shared):
            return
        row = _admit(p, s, step, a, wanted, shared)
        _begin_row(p, s, step, a, row, shared, copied_from)
        if p.prefill != PREFILL_NONE:
            _plan_prefill(p, s, step, a, row, tokens)
            left -= tokens


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
            if p.reserve == PAGED:
                _grow_decoding(p, s, step, a)
            if decodes_first:
                left = _continue_prefill(p, s, step, a, p.token_budget - s.num_decode)
                admits = admits and step.preempted == 0
        elif admits and s.waiting_head != NONE and s.num_running < p.slots:
            _admit_waiting(p, s, step, a, left)
    if decodes_first or step.prefill_rows == 0:
        step.decode_rows = s.num_decode
    if step.decode_rows > 0:
        s.batch_open = 0
    step.sampled_rows += step.decode_rows

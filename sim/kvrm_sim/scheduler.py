"""Admit, grow, preempt: which rows a step runs and with how many tokens (docs/semantics.md section 3).

Pure decisions over the state: no clock passes here. Two facts keep a decision as cheap as what changes in it. A
decoding row asks for one token and for a block only when its growth list comes up. And at most one running row is
still prefilling, the last one: a row is admitted behind another only when that one's chunk was its whole rest.
"""

from __future__ import annotations

from kvrm_sim.ahead import release_ended
from kvrm_sim.compaction import COMPACT_NEVER, compact
from kvrm_sim.compiled import kernel, outlined, part
from kvrm_sim.cost import host_copy_ns
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
from kvrm_sim.links import IN, submit_transfer
from kvrm_sim.meters import tally
from kvrm_sim.moves import MOVE_TAIL, log_move
from kvrm_sim.offload import count_loads, find_on_host, pin_on_host, unpin_on_host
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
from kvrm_sim.rowlist import close_row, join_running, open_stage_row
from kvrm_sim.speculation import count_drafts, drafts_of
from kvrm_sim.state import EV_ADMIT, EV_PREEMPT, H_QUEUE, NONE, Arrays, Ints, Record, Records
from kvrm_sim.swap import can_swap, first_ready, load_costs_less, swap_in, swap_out
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
    _plan_prefill(p, s, step, a, row, tokens)
    return left - tokens


@part
def _fits(p: Record, s: Record, a: Arrays, wanted: int, shared: int) -> bool:
    """Whether the first waiting request's blocks can be had, `shared` of which are cached."""
    margin = 0 if s.num_running + s.num_moving == 0 else p.watermark_blocks
    room = available_blocks(s) - margin
    if wanted - shared > room:
        return False
    if p.reserve != PAGED:
        if p.compaction != COMPACT_NEVER and not can_take_run(p, a.blocks, a.tree, wanted):
            compact(p, s, a)
        return can_take_run(p, a.blocks, a.tree, wanted)
    # Of the available blocks, those that are to be shared cannot be given out.
    return shared == 0 or wanted - shared <= room - s.chain_evictable


@part
def _admit(p: Record, s: Record, step: Record, a: Arrays, wanted: int, shared: int, moves: bool) -> int:
    """Admit the first waiting request, whose blocks can be had; its row. Not yet in running when it `moves`."""
    request = pop_waiting(p, s, a.requests)
    s.chain_request = NONE
    q = a.requests[request]
    row = open_stage_row(s, a.rows, request)
    if not moves:
        join_running(s, a.rows, row)
    if p.reserve == PAGED:
        if shared > 0:
            share_chain(s, a, row)
        grow_much(p, s, a, row, wanted - shared)
    else:
        take_run(p, s, a.rows, a.blocks, a.tree, row, wanted, blocks_for(p, q.reserved_tokens))
    step.admitted += 1
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
        step.hit_tokens += tokens
    else:
        kept = min(tokens, q.lost_tokens)
        q.recomputed_tokens -= kept
        s.recomputed_tokens -= kept


@part
def _begin_row(p: Record, s: Record, step: Record, a: Arrays, row: int, cached: int, copied_from: int) -> None:
    """Where an admitted row begins: behind the blocks of its prompt that are cached (`none`: all of it is there)."""
    q = a.requests[a.rows[row].request]
    known = known_tokens(q)
    computed = cached * p.block_size
    if copied_from != 0:
        computed = known - 1
        a.rows[row].copied_from = copied_from
        log_move(p, s, a, MOVE_TAIL, copied_from, a.table[row, cached])
        step.copied_blocks += 1
    _count_hit(s, step, q, computed)
    if p.prefill != PREFILL_NONE:
        a.rows[row].computed = computed
        return
    a.rows[row].dropped = blocks_for(p, known) - a.rows[row].blocks if p.kept_blocks > 0 else 0
    end = min(q.num_keys, (known - 1) // p.block_size)
    if cached < end:
        give_keys(p, s, a.blocks, a.keys, a.ids, a.table, row, q.ids_at, cached, end)
    join_decoding(p, s, a, row, known - 1)


@outlined
def _admit_swapped(p: Record, s: Record, step: Record, a: Arrays) -> int:
    """Try to admit the first waiting request, which is on the host: -1 if it does not fit, else the tokens it takes."""
    q = a.requests[s.waiting_head]
    known = known_tokens(q)
    wanted = blocks_for(p, known)
    moves = p.host_overlap != 0
    # Who comes in is no step by itself: where it comes before the running rows grow, it would take what was freed for
    # one of them, be preempted for it, and come in for ever.
    comes_again = p.prefill == PREFILL_SEPARATE and s.again and s.num_running > 0
    if q.host_ready == 0 or comes_again or not _fits(p, s, a, wanted, 0):
        return NONE
    row = _admit(p, s, step, a, wanted, 0, moves)
    swap_in(p, s, a, row)
    if moves:
        return 0
    join_decoding(p, s, a, row, known - 1)
    return 1


@kernel
def _host_blocks(p: Record, s: Record, a: Arrays, shared: int, most: int) -> int:
    """Blocks of the first waiting request's prompt, behind the cached ones, that are loaded from the host."""
    q = a.requests[s.waiting_head]
    if p.prefill == PREFILL_NONE or shared != s.chain_blocks:
        return 0
    found = find_on_host(p, a, q.ids_at, shared, min(q.num_keys, most))
    if found == 0 or not load_costs_less(p, shared * p.block_size, found * p.block_size, found):
        return 0
    return found


@part
def _load(p: Record, s: Record, a: Arrays, row: int, first: int, count: int) -> None:
    """The host's blocks `first`, … of a prompt go to the row's blocks: in this step, or on the link."""
    q = a.requests[a.rows[row].request]
    groups = count_loads(p, s, a, row, q.ids_at, first, count)
    if p.host_overlap == 0:
        unpin_on_host(p, a, q.ids_at, first, count)
        give_keys(p, s, a.blocks, a.keys, a.ids, a.table, row, q.ids_at, first, first + count)
        return
    a.rows[row].loaded = count
    a.rows[row].loaded_from = first
    submit_transfer(p, s, a.rows, row, IN, host_copy_ns(p, count, groups, p.host_in_block_ns))


@outlined
def _admit_waiting(p: Record, s: Record, step: Record, a: Arrays, left: int) -> None:
    """Admit waiting requests in order while the budget, the slots and the pool allow; stop at the first that does
    not fit. Whole prompts (`separate`): the first one whatever its length.
    """
    whole = p.prefill == PREFILL_SEPARATE
    while s.waiting_head != NONE and (left > 0 or whole) and s.num_running + s.num_moving < p.slots:
        q = a.requests[s.waiting_head]
        if q.host_first != 0:
            if whole and step.prefill_rows > 0 and left < 0:
                return
            taken = _admit_swapped(p, s, step, a)
            if taken == NONE:
                return
            left -= 0 if whole else taken
            continue
        known = known_tokens(q)
        shared, loaded = 0, 0
        copied_from = 0
        if q.num_keys > 0:
            most = (known - 1) // p.block_size
            find_chain(p, s, a.blocks, a.keys, a.ids, a.chain, s.waiting_head, q.ids_at, q.num_keys, most)
            shared = s.chain_shared
            if p.partial_tail == TAIL_COPY and s.chain_blocks > shared:
                copied_from = a.chain[shared]
            if p.offload:
                loaded = _host_blocks(p, s, a, shared, most)
        moves = loaded > 0 and p.host_overlap != 0
        start = (shared + loaded) * p.block_size
        if copied_from != 0 or p.prefill == PREFILL_NONE:
            start = known - 1
        tokens = known - start
        if whole:
            if step.prefill_rows > 0 and (0 if moves else tokens) > left:  # what is loaded is computed in another step
                return
        else:
            tokens = min(tokens, left)
        if p.reserve != PAGED:
            wanted = run_length(p, q.reserved_tokens)
        elif p.admission == FIRST_CHUNK and not moves:
            wanted = blocks_for(p, start + tokens)
        else:
            wanted = most_blocks(p, known)
        if not _fits(p, s, a, wanted, shared):
            return
        if loaded > 0:
            pin_on_host(p, a, q.ids_at, shared, loaded)
        row = _admit(p, s, step, a, wanted, shared, moves)
        if loaded > 0:
            _load(p, s, a, row, shared, loaded)
        _begin_row(p, s, step, a, row, shared + loaded, copied_from)
        if moves:
            s.moving_tokens += a.rows[row].computed
        elif p.prefill != PREFILL_NONE:
            s.used_prefill += a.rows[row].computed
            _plan_prefill(p, s, step, a, row, tokens)
            left -= tokens


@outlined
def _join_ready(p: Record, s: Record, step: Record, a: Arrays, left: int) -> int:
    """Rows whose blocks have come from the host run, as that was noticed; the budget that is left."""
    whole = p.prefill == PREFILL_SEPARATE
    row = first_ready(s, a.rows)
    while row != NONE and (left > 0 or whole):
        r = a.rows[row]
        tokens = known_tokens(a.requests[r.request]) - r.computed
        if r.loaded > 0 and whole and step.prefill_rows > 0 and tokens > left:
            return left
        s.num_moving = forget_row(a.rows["moving"], s.num_moving, row)
        s.moving_tokens -= r.computed
        join_running(s, a.rows, row)
        if r.loaded == 0:
            join_decoding(p, s, a, row, r.computed)
            left -= 0 if whole else 1
        else:
            tokens = tokens if whole else min(tokens, left)
            s.used_prefill += r.computed
            _plan_prefill(p, s, step, a, row, tokens)
            left -= tokens
        row = first_ready(s, a.rows)
    return left


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
                left = _join_ready(p, s, step, a, left)
            if admits and s.waiting_head != NONE and s.num_running + s.num_moving < p.slots:
                _admit_waiting(p, s, step, a, left)
    if decodes_first or step.prefill_rows == 0:
        step.decode_rows = s.num_decode
    step.drafted_tokens = 0
    if step.decode_rows > 0:
        s.batch_open = 0
        if p.draft_tokens > 0:
            count_drafts(s, step, a)
    step.sampled_rows += step.decode_rows + step.drafted_tokens

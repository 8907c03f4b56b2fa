"""Who joins the running rows: waiting requests as far as they fit, and rows whose blocks have come from the host
(docs/semantics.md section 3).
"""

from __future__ import annotations

from kvrm_sim.compaction import COMPACT_NEVER, compact
from kvrm_sim.compiled import kernel, outlined, part
from kvrm_sim.cost import host_copy_ns
from kvrm_sim.decoding import (
    forget_row,
    join_decoding,
)
from kvrm_sim.links import IN, submit_transfer
from kvrm_sim.meters import tally
from kvrm_sim.moves import MOVE_TAIL, log_move
from kvrm_sim.offload import count_loads, find_on_host, pin_on_host, unpin_on_host
from kvrm_sim.pager import (
    PAGED,
    blocks_for,
    can_take_run,
    grow_much,
    most_blocks,
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
from kvrm_sim.rowlist import join_running, open_stage_row
from kvrm_sim.state import EV_ADMIT, H_QUEUE, NONE, Arrays, Record
from kvrm_sim.swap import first_ready, load_costs_less, swap_in
from kvrm_sim.waiting import pop_waiting

PREFILL_NONE, PREFILL_CHUNKED, PREFILL_SEPARATE = range(3)
FULL_PROMPT, FIRST_CHUNK = range(2)


@kernel
def plan_prefill(p: Record, s: Record, step: Record, a: Arrays, row: int, tokens: int) -> None:
    """The next tokens of a row's prompt are part of this step."""
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
def admit_waiting(p: Record, s: Record, step: Record, a: Arrays, left: int) -> None:
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
            plan_prefill(p, s, step, a, row, tokens)
            left -= tokens


@outlined
def join_ready(p: Record, s: Record, step: Record, a: Arrays, left: int) -> int:
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
            plan_prefill(p, s, step, a, row, tokens)
            left -= tokens
        row = first_ready(s, a.rows)
    return left

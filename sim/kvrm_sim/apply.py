"""The end of a step: tokens and gaps, prompts that are complete, finishes and their frees (docs/semantics.md
section 4).
"""

from __future__ import annotations

from kvrm_sim.ahead import release_ended, sort_by_slot
from kvrm_sim.compiled import kernel, outlined, part
from kvrm_sim.decoding import READ_STAGED, forget_row, join_decoding
from kvrm_sim.fences import STAMPS
from kvrm_sim.meters import (
    SPIKE_WINDOW_NS,
    add_step,
    close_spike_window,
    close_window,
    sample_pool,
    tally,
    tally_gap,
    weigh_memory,
)
from kvrm_sim.pager import PAGED, blocks_for, drop_middle
from kvrm_sim.prefix import give_keys
from kvrm_sim.request import finish_request, known_tokens, log_event
from kvrm_sim.speculation import deliver_drafted
from kvrm_sim.state import EV_FINISH, EV_FIRST_TOKEN, H_TTFT, NONE, Arrays, Record
from kvrm_sim.wheel import finish_list


@kernel
def _deliver_decoded(p: Record, s: Record, step: Record, a: Arrays) -> int:
    """Every decoding row has one token more (or several); the rows that end are listed in `finishing`. How many."""
    if p.draft_tokens > 0:
        row = s.running_head
        while row != NONE:
            if a.rows[row].decoding:
                _deliver(p, s, a, a.requests[a.rows[row].request])
            row = a.rows[row].next
        count = deliver_drafted(p, s, step, a)
        s.num_newcomers = 0
        s.decode_counter += 1
        s.sum_computed += s.num_decode
        return count
    settled = s.num_decode - s.num_newcomers - s.num_ended
    for at in range(s.num_newcomers):
        r = a.rows[a.rows["newcomer"][at]]
        if r.ended:
            settled += 1  # it is neither
        else:
            _deliver(p, s, a, a.requests[r.request])
    if settled > 0:
        tally_gap(s, a, s.now_ns - s.last_decode_end_ns, settled)
    s.num_newcomers = 0
    s.last_decode_end_ns = s.now_ns
    s.decode_counter += 1
    s.growth_at = s.growth_at + 1 if s.growth_at + 1 < p.block_size else 0
    s.sum_computed += s.num_decode
    s.stage_blocks += s.pending_blocks
    s.stage_runs += s.pending_runs
    s.pending_blocks = 0
    s.pending_runs = 0
    count = 0
    row = a.heads[finish_list(p, s.decode_counter)]
    while row != NONE:
        if a.rows[row].finish_at == s.decode_counter:
            a.rows["finishing"][count] = row
            count += 1
        row = a.rows[row].finish_next
    return count


@kernel
def _deliver(p: Record, s: Record, a: Arrays, q: Record) -> None:
    """A token whose gap is the request's own: its first, or the first since it joined or came back."""
    if q.first_token_ns == NONE:
        q.first_token_ns = s.now_ns
        tally(a.tallies[H_TTFT], a.histograms[H_TTFT], s.now_ns - q.arrival_ns, 1)
        log_event(p, s, a.events, EV_FIRST_TOKEN, s.now_ns, q.row)
    else:
        tally_gap(s, a, s.now_ns - q.last_token_ns, 1)
    q.last_token_ns = s.now_ns


@kernel
def _end_prefills(p: Record, s: Record, a: Arrays, finishing: int) -> int:
    """Apply the step's chunks; a prompt that is complete gives a token and decodes from now on. The finishing rows
    so far.
    """
    s.used_prefill = 0
    for at in range(s.num_prefill):
        row = a.rows["prefill"][at]
        r = a.rows[row]
        q = a.requests[r.request]
        written = r.computed // p.block_size
        r.begun = 1
        r.computed += r.planned
        keyed = min(r.computed // p.block_size, q.num_keys)
        if written < keyed:
            give_keys(p, s, a.blocks, a.keys, a.ids, a.table, row, q.ids_at, written, keyed)
        if p.kept_blocks > 0 and blocks_for(p, r.computed) - r.dropped > p.kept_blocks:
            count = blocks_for(p, r.computed) - r.dropped - p.kept_blocks
            drop_middle(p, s, a.rows, a.blocks, a.tree, a.table, row, count)
        if r.computed < known_tokens(q):
            s.used_prefill += r.computed - r.dropped * p.block_size
            continue
        _deliver(p, s, a, q)
        q.delivered += 1
        if q.delivered == q.output_tokens:
            a.rows["finishing"][finishing] = row
            finishing += 1
        else:
            join_decoding(p, s, a, row, r.computed)
    s.num_prefill = 0
    return finishing


@kernel
def _runs_on(p: Record, a: Arrays, row: int) -> bool:
    """Whether a row runs on behind its end, which nobody has noticed; not where its length was known to end there."""
    q = a.requests[a.rows[row].request]
    if p.reserve == PAGED:
        return p.limit_tokens - q.prompt_tokens - q.output_tokens >= p.run_ahead
    return q.reserved_tokens - (q.prompt_tokens + q.output_tokens - 1) >= p.run_ahead


@outlined
def _run_on(p: Record, s: Record, a: Arrays, count: int) -> int:
    """Of the rows in `finishing` leave those that are released now: without those that run on (run-ahead), with those
    whose end is noticed only now. How many.
    """
    finishing, ended = a.rows["finishing"], a.rows["ended_row"]
    kept = 0
    for at in range(s.num_ended_rows):
        row = ended[at]
        if a.rows[row].release_at <= s.steps:
            a.rows["growing"][kept] = row
            kept += 1
    for at in range(kept):
        s.num_ended_rows = forget_row(ended, s.num_ended_rows, a.rows["growing"][at])
    for at in range(count):
        row = finishing[at]
        r = a.rows[row]
        if not _runs_on(p, a, row):
            a.rows["growing"][kept] = row
            kept += 1
            continue
        r.ended = 1
        r.release_at = s.steps + p.run_ahead
        ended[s.num_ended_rows] = row
        s.num_ended_rows += 1
        if r.decoding:
            s.num_ended += 1
        else:
            join_decoding(p, s, a, row, r.computed)
    for at in range(kept):
        finishing[at] = a.rows["growing"][at]
    sort_by_slot(a, kept)
    return kept


@kernel
def _finish_rows(p: Record, s: Record, a: Arrays, count: int) -> None:
    """End the requests of the rows that are done, lowest batch row first, and release their rows."""
    finishing = a.rows["finishing"]
    sort_by_slot(a, count)
    for at in range(count):
        request = a.rows[finishing[at]].request
        log_event(p, s, a.events, EV_FINISH, s.now_ns, a.requests[request].row)
        finish_request(p, s, a.requests, request, a.out, a.tallies, a.histograms)
    if p.run_ahead > 0:
        count = _run_on(p, s, a, count)
    for at in range(count):
        release_ended(p, s, a, finishing[at])


@part
def apply(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """What the end of a step changes: tokens, gaps, finishes, frees."""
    s.now_ns = step.end_ns
    s.fence_clock = (s.fence_clock + 1) % STAMPS  # what is given back from here on, the next decision may not have
    weigh_memory(s, step)
    if step.waiting > 0:
        tenth = step.start_ns // p.backlog_tenth_ns
        if tenth < 10:
            a.waiting_tenths[tenth] += step.waiting * float(step.duration_ns)
    if s.now_ns >= s.spike_end_ns:
        close_spike_window(s, a.tallies, a.histograms)
        s.spike_end_ns = (s.now_ns // SPIKE_WINDOW_NS + 1) * SPIKE_WINDOW_NS
    if s.now_ns >= s.window_end_ns:
        close_window(s, a)
        if p.window_ns > 0:  # otherwise every step is a window of its own
            s.window_end_ns = (s.now_ns // p.window_ns + 1) * p.window_ns
    finishing = 0
    if step.decode_rows > 0:
        finishing = _deliver_decoded(p, s, step, a)
        if step.prefill_rows == 0 and p.read == READ_STAGED:
            s.num_unstaged = 0
    if step.prefill_rows > 0:
        finishing = _end_prefills(p, s, a, finishing)
    if p.steady_from_ns <= s.now_ns <= p.steady_until_ns:
        s.steady_tokens += step.delivered_tokens
    step.finished = finishing
    add_step(s, step, a)
    if finishing + s.num_ended_rows > 0:
        _finish_rows(p, s, a, finishing)
    if s.now_ns >= s.next_pool_sample_ns:
        sample_pool(p, s, a)
        s.next_pool_sample_ns = s.now_ns + p.pool_sample_ns

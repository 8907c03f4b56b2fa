"""The end of a step: tokens and gaps, prompts that are complete, finishes and their frees (docs/semantics.md
section 4).
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, part
from kvrm_sim.cost import GRAPH, PIECEWISE
from kvrm_sim.decoding import READ_STAGED, join_decoding, leave_decoding
from kvrm_sim.meters import (
    SPIKE_WINDOW_NS,
    add_step_to_window,
    close_spike_window,
    close_window,
    sample_pool,
    tally,
    tally_gap,
    weigh_memory,
)
from kvrm_sim.pager import blocks_for, drop_middle, release_row
from kvrm_sim.prefix import give_keys
from kvrm_sim.request import finish_request, known_tokens, log_event
from kvrm_sim.rowlist import close_row
from kvrm_sim.state import EV_FINISH, EV_FIRST_TOKEN, H_TTFT, NONE, Arrays, Ints, Record
from kvrm_sim.wheel import finish_list


@kernel
def _account(p: Record, s: Record, step: Record, waiting_tenths: Ints) -> None:
    """Add an ended step to the run's totals."""
    s.steps += 1
    if step.prefill_rows == 0:
        s.decode_steps += 1
    else:
        s.mixed_steps += 1
    if step.launch_kind == GRAPH:
        s.graph_steps += 1
        s.padded_rows += step.padded_rows
        s.padded_live_rows += step.decode_rows
    elif step.launch_kind == PIECEWISE:
        s.piecewise_steps += 1
    else:
        s.eager_steps += 1
    s.off_ladder_steps += step.off_ladder
    s.over_capacity_steps += step.over_capacity
    s.row_moves += step.row_moves
    s.prefill_tokens += step.prefill_tokens
    s.groups += step.groups
    s.segments += step.segments
    s.moved_blocks += step.moved_blocks
    s.needed_tokens += step.needed_tokens
    s.rounds += step.rounds
    s.read_tokens += step.read_tokens
    s.copied_blocks += step.copied_blocks
    s.captures += step.captured
    s.submit_ns += step.submit_ns
    s.move_ns += step.move_ns
    weigh_memory(s, step)
    if step.waiting > 0:
        tenth = step.start_ns // p.backlog_tenth_ns
        if tenth < 10:
            waiting_tenths[tenth] += step.waiting * float(step.duration_ns)


@kernel
def _deliver_decoded(p: Record, s: Record, a: Arrays) -> int:
    """Every decoding row has one token more; the rows that end are listed in `finishing`. How many."""
    settled = s.num_decode - s.num_newcomers
    if settled > 0:
        tally_gap(s, a, s.now_ns - s.last_decode_end_ns, settled)
    for at in range(s.num_newcomers):
        q = a.requests[a.rows[a.rows["newcomer"][at]].request]
        _deliver(p, s, a, q)
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
def _finish_rows(p: Record, s: Record, a: Arrays, count: int) -> None:
    """Release the rows that ended, lowest batch row first."""
    finishing = a.rows["finishing"]
    for at in range(1, count):
        row = finishing[at]
        before = at
        while before > 0 and a.rows[finishing[before - 1]].slot > a.rows[row].slot:
            finishing[before] = finishing[before - 1]
            before -= 1
        finishing[before] = row
    for at in range(count):
        row = finishing[at]
        request = a.rows[row].request
        q = a.requests[request]
        if a.rows[row].decoding:
            leave_decoding(p, s, a.requests, a.rows, a.heads, a.table, row)
            q.delivered = q.output_tokens
        release_row(p, s, a.rows, a.blocks, a.tree, a.table, row, blocks_for(p, q.reserved_tokens))
        close_row(s, a.rows, row)
        log_event(p, s, a.events, EV_FINISH, s.now_ns, q.row)
        finish_request(p, s, a.requests, request, a.out, a.tallies, a.histograms)


@part
def apply(p: Record, s: Record, step: Record, a: Arrays) -> None:
    """What the end of a step changes: tokens, gaps, finishes, frees."""
    s.now_ns = step.end_ns
    _account(p, s, step, a.waiting_tenths)
    if s.now_ns >= s.spike_end_ns:
        close_spike_window(s, a.tallies, a.histograms)
        s.spike_end_ns = (s.now_ns // SPIKE_WINDOW_NS + 1) * SPIKE_WINDOW_NS
    if s.now_ns >= s.window_end_ns:
        close_window(s, a.histograms, a.windows)
        if p.window_ns > 0:  # otherwise every step is a window of its own
            s.window_end_ns = (s.now_ns // p.window_ns + 1) * p.window_ns
    finishing = 0
    if step.decode_rows > 0:
        finishing = _deliver_decoded(p, s, a)
        if step.prefill_rows == 0 and p.read == READ_STAGED:
            s.num_unstaged = 0
    if step.prefill_rows > 0:
        finishing = _end_prefills(p, s, a, finishing)
    s.tokens_delivered += step.sampled_rows
    if p.steady_from_ns <= s.now_ns <= p.steady_until_ns:
        s.steady_tokens += step.sampled_rows
    if finishing > 0:
        _finish_rows(p, s, a, finishing)
    add_step_to_window(s, step, a.windows[s.num_windows], step.sampled_rows, finishing)
    if s.now_ns >= s.next_pool_sample_ns:
        sample_pool(p, s, a)
        s.next_pool_sample_ns = s.now_ns + p.pool_sample_ns

"""Requests: the arena of those waiting or in flight, and what becomes of each.

The arena grows with the requests in flight, not with the trace.
"""

from __future__ import annotations

from kvrm_sim.bittree import highest_bit
from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.meters import tally
from kvrm_sim.pager import BUCKET, DECLARED, MAX_LEN, PAGED, POW2, most_blocks, run_length
from kvrm_sim.prefix import keyed_blocks
from kvrm_sim.state import (
    COMPLETED,
    E_NO_DECLARED,
    E_OVER_LIMIT,
    EV_REJECT,
    H_E2E,
    H_NORMALIZED,
    H_TPOT_EXCLUSIVE,
    H_TPOT_INCLUSIVE,
    NEVER,
    NONE,
    OK,
    R_CONTEXT_LIMIT,
    R_DECLARED_LIMIT,
    R_OVER_LIMIT,
    R_TRACE_END,
    R_UNSERVABLE,
    REJECTED,
    TRUNCATED,
    Ints,
    Record,
    Records,
)
from kvrm_sim.waiting import join_waiting

OVER_REJECT, OVER_TRUNCATE, OVER_ERROR = range(3)


@kernel
def log_event(p: Record, s: Record, events: Records, kind: int, time_ns: int, row: int) -> None:
    """Log what an observer may wait for; nothing unless the run asks for events."""
    if p.log_events:
        e = events[s.num_events]
        e.kind = kind
        e.time_ns = time_ns
        e.row = row
        s.num_events += 1


@kernel
def open_arena(s: Record, requests: Records, first: int) -> None:
    """Chain the records from `first` on into the free list (at the start, and after the arena has grown)."""
    for request in range(first, len(requests)):
        requests[request].next = request + 1 if request + 1 < len(requests) else s.arena_free
        requests[request].ids_at = NEVER
    s.arena_free = first


@kernel
def known_tokens(q: Record) -> int:
    """Tokens whose entries a request needs before it can give its next one."""
    return q.prompt_tokens + q.delivered


@kernel
def _reserved_tokens(p: Record, ladders: Ints, prompt: int, output: int, declared: int) -> int:
    if p.reserve == MAX_LEN:
        return p.limit_tokens
    if p.reserve == POW2:
        power = highest_bit(output)
        rounded = output if output == 1 << power else 2 << power
        return min(p.limit_tokens, prompt + rounded)
    if p.reserve == DECLARED:
        return prompt + declared - 1
    written = prompt + output - 1
    if p.reserve == BUCKET:
        for at in range(p.buckets_at, p.buckets_at + p.num_buckets):
            if ladders[at] >= written:
                return ladders[at]
    return written  # oracle; and the paged row's final need


@kernel
def _limits(p: Record, arrival: Record) -> tuple[int, int, int, int]:
    """(status, output to deliver or 0 when over the limit, declared maximum, why it is cut or NONE) of an arrival."""
    room = p.limit_tokens - arrival.prompt_tokens
    output = arrival.output_tokens
    if p.reserve == DECLARED:
        declared = arrival.declared_max_tokens if arrival.declared_max_tokens != NONE else p.declared_default_tokens
        if declared == NONE:
            return E_NO_DECLARED, 0, 0, NONE
        if room <= 0:
            return OK, 0, 0, NONE
        allowed = min(declared, room)
        if output > allowed:
            return OK, allowed, allowed, R_CONTEXT_LIMIT if allowed < declared else R_DECLARED_LIMIT
        return OK, output, allowed, NONE
    if output <= room:
        return OK, output, 0, NONE
    if p.over_limit == OVER_ERROR:
        return E_OVER_LIMIT, 0, 0, NONE
    if p.over_limit == OVER_REJECT or room <= 0:
        return OK, 0, 0, NONE
    return OK, room, 0, R_CONTEXT_LIMIT


@kernel
def _emit_rejected(p: Record, s: Record, arrival: Record, out: Records, events: Records, reason: int) -> None:
    o = out[s.num_out]
    o.row = arrival.row
    o.outcome = REJECTED
    o.reason = reason
    o.arrival_ns = arrival.arrival_ns
    o.admitted_ns = NONE
    o.first_token_ns = NONE
    o.finish_ns = NONE
    o.prompt_tokens = arrival.prompt_tokens
    o.output_tokens = arrival.output_tokens
    o.delivered = 0
    o.preemptions = 0
    o.recomputed_tokens = 0
    o.hit_tokens = NONE
    s.num_out += 1
    s.rejected += 1
    log_event(p, s, events, EV_REJECT, max(s.now_ns, arrival.arrival_ns), arrival.row)


@outlined
def arrive(
    p: Record, s: Record, ladders: Ints, arrival: Record, requests: Records, out: Records, events: Records
) -> int:
    """Take one arrival in: into waiting, or rejected at once. Returns a status; the arena and `out` have room
    (checked).
    """
    status, output, declared, truncation = _limits(p, arrival)
    if status != OK:
        return status
    if s.injected == 0:
        s.first_arrival_ns = arrival.arrival_ns
    s.injected += 1
    s.last_arrival_ns = arrival.arrival_ns
    if output == 0:
        _emit_rejected(p, s, arrival, out, events, R_OVER_LIMIT)
        return OK
    reserved = _reserved_tokens(p, ladders, arrival.prompt_tokens, output, declared)
    needed = most_blocks(p, reserved) if p.reserve == PAGED else run_length(p, reserved)
    if needed > p.max_run_blocks:
        _emit_rejected(p, s, arrival, out, events, R_UNSERVABLE)
        return OK
    request = s.arena_free
    q = requests[request]
    s.arena_free = q.next
    q.row = arrival.row
    q.arrival_ns = arrival.arrival_ns
    q.prompt_tokens = arrival.prompt_tokens
    q.output_tokens = output
    q.recorded_output_tokens = arrival.output_tokens
    q.reserved_tokens = 0 if p.reserve == PAGED else reserved
    q.truncation = truncation
    q.delivered = 0
    q.admitted_ns = NONE
    q.first_token_ns = NONE
    q.last_token_ns = NONE
    q.preemptions = 0
    q.recomputed_tokens = 0
    q.hit_tokens = NONE
    q.lost_tokens = 0
    q.priority = arrival.priority
    q.num_keys = 0
    if p.sharing and arrival.num_ids > 0:
        q.num_keys = keyed_blocks(p, arrival.prompt_tokens, arrival.num_ids)
        q.ids_at = arrival.ids_at
    if p.run_ahead == 0:
        join_waiting(p, s, requests, request)
        return OK
    # The decisions to come know of it later (ahead.py).
    q.next = NONE
    if s.unseen_tail != NONE:
        requests[s.unseen_tail].next = request
    else:
        s.unseen_head = request
    s.unseen_tail = request
    s.num_unseen += 1
    return OK


@kernel
def emit(s: Record, q: Record, out: Records, outcome: int, reason: int, finish_ns: int) -> None:
    """Write the record of a request that was admitted or waited."""
    o = out[s.num_out]
    o.row = q.row
    o.outcome = outcome
    o.reason = reason
    o.arrival_ns = q.arrival_ns
    o.admitted_ns = q.admitted_ns
    o.first_token_ns = q.first_token_ns
    o.finish_ns = finish_ns
    o.prompt_tokens = q.prompt_tokens
    o.output_tokens = q.recorded_output_tokens
    o.delivered = q.delivered
    o.preemptions = q.preemptions
    o.recomputed_tokens = q.recomputed_tokens
    o.hit_tokens = q.hit_tokens
    s.num_out += 1


@outlined
def finish_request(
    p: Record, s: Record, requests: Records, request: int, out: Records, tallies: Records, histograms: Ints
) -> None:
    """A request's last token was delivered now: its record, and what it counts for. Its place is freed apart."""
    q = requests[request]
    q.delivered = q.output_tokens
    if q.truncation == NONE:
        emit(s, q, out, COMPLETED, R_TRACE_END, s.now_ns)
        s.completed += 1
    else:
        emit(s, q, out, TRUNCATED, q.truncation, s.now_ns)
        s.truncated += 1
    s.last_finish_ns = s.now_ns
    if p.steady_from_ns <= s.now_ns <= p.steady_until_ns:
        s.steady_finishes += 1
    e2e = s.now_ns - q.arrival_ns
    tally(tallies[H_E2E], histograms[H_E2E], e2e, 1)
    tally(tallies[H_NORMALIZED], histograms[H_NORMALIZED], e2e // q.delivered, 1)
    if q.delivered > 1:
        tally(
            tallies[H_TPOT_EXCLUSIVE],
            histograms[H_TPOT_EXCLUSIVE],
            (s.now_ns - q.first_token_ns) // (q.delivered - 1),
            1,
        )
        tally(tallies[H_TPOT_INCLUSIVE], histograms[H_TPOT_INCLUSIVE], e2e // q.delivered, 1)


@kernel
def free_request(s: Record, requests: Records, request: int) -> None:
    """Nothing points at an ended request any more: its place is free."""
    requests[request].ids_at = NEVER  # its hashes may be dropped
    requests[request].next = s.arena_free
    s.arena_free = request

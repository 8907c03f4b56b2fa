"""One replica, decided and applied: ``span`` advances it over a stretch of time in one compiled loop.

At one instant: finishes and their frees, then arrivals, then the decision. ``span`` handles finishes and arrivals
with time <= until and decisions with time < until, so a step in flight at ``until`` stays in flight and an arrival at
``until`` that comes later is still seen by the decision of that instant. Results do not depend on ``until``,
``max_steps`` or how arrivals are cut into chunks.
"""

from __future__ import annotations

from kvrm_sim.ahead import drain, see_arrivals
from kvrm_sim.apply import apply
from kvrm_sim.bundle import arrays_at
from kvrm_sim.compiled import entry, kernel, part
from kvrm_sim.decide import decide
from kvrm_sim.decoding import row_delivered
from kvrm_sim.links import IN, next_completion_ns
from kvrm_sim.meters import (
    BUCKETS,
    close_spike_window,
    close_window,
    open_gaps,
)
from kvrm_sim.pool import open_pool
from kvrm_sim.request import arrive, emit, open_arena
from kvrm_sim.rowlist import open_rows
from kvrm_sim.state import (
    DECIDED,
    DONE,
    E_NO_PROGRESS,
    ERROR,
    EVENT,
    FLUSH,
    FLYING,
    GO_ON,
    GROW,
    IDLE,
    NEED_ARRIVALS,
    NEVER,
    NONE,
    OK,
    R_STOPPED,
    READY,
    STOP_AT_DECISIONS,
    STOP_AT_EVENTS,
    UNFINISHED,
    UNTIL,
    WORK,
    Arrays,
    Record,
    Records,
)
from kvrm_sim.waiting import pop_waiting

#: Decisions in a row that plan nothing while requests wait before that is called an error.
STUCK_DECISIONS = 1000

OPEN, GREW, CLOSE = range(3)


@kernel
def open_replica(p: Record, s: Record, a: Arrays) -> None:
    """The state before the first arrival."""
    s.phase = IDLE
    s.waiting_head = NONE
    s.waiting_tail = NONE
    s.unseen_head = NONE
    s.unseen_tail = NONE
    s.arena_free = NONE
    s.chain_request = NONE
    s.chain_awaits = NONE
    s.known_until_ns = 0
    s.spike_low = BUCKETS
    s.spike_high = NONE
    s.window_low = BUCKETS
    s.window_high = NONE
    a.heads[:] = NONE
    open_arena(s, a.requests, 0)
    open_rows(p, s, a.rows)
    open_pool(p, s, a.blocks, a.tree)
    if p.host_blocks > 0:
        a.host_scalars[0].chain_request = NONE
        a.host_scalars[0].chain_awaits = NONE
        open_pool(a.host_params[0], a.host_scalars[0], a.host_blocks, a.host_tree)
    s.blocks_taken = 0
    s.blocks_freed = 0
    open_gaps(a.windows[0])


@kernel
def _take_arrivals(p: Record, s: Record, a: Arrays, latest_ns: int, flags: int) -> int:
    """Take in every supplied arrival up to a time. GO_ON, or what has to be seen to first (a refusal is an event)."""
    while s.next_arrival < s.num_arrivals and a.arrivals[s.next_arrival].arrival_ns <= latest_ns:
        if s.arena_free == NONE:
            return GROW
        if s.num_out >= len(a.out) or s.num_events + 2 >= len(a.events):
            return FLUSH
        arrival = a.arrivals[s.next_arrival]
        status = arrive(p, s, a.ladders, arrival, a.requests, a.out, a.events)
        if status != OK:
            s.status = status
            s.error_request = arrival.row
            s.error_detail = arrival.prompt_tokens + arrival.output_tokens
            return ERROR
        s.next_arrival += 1
        if flags & STOP_AT_EVENTS and s.num_events > 0:
            return EVENT
    return GO_ON


@kernel
def _buffers_full(p: Record, s: Record, a: Arrays) -> bool:
    """Whether a step's end or a decision might not find room for its records."""
    room = 4 * p.slots + 4
    return (
        s.num_out + p.slots > len(a.out)
        or s.num_windows + 2 > len(a.windows)
        or s.num_pool_samples + 1 > len(a.samples)
        or (p.log_events and s.num_events + room > len(a.events))
    )


@part
def _land(p: Record, s: Record, step: Record, a: Arrays, until_ns: int, flags: int) -> int:
    """Take in what arrives before the step in flight ends, then end it, unless it ends after `until_ns`."""
    latest_ns = min(step.end_ns - 1, until_ns)
    reason = _take_arrivals(p, s, a, latest_ns, flags)
    if reason != GO_ON:
        return reason
    if step.end_ns > until_ns:
        return UNTIL
    if s.known_until_ns < step.end_ns:
        return NEED_ARRIVALS
    if _buffers_full(p, s, a):
        return FLUSH
    apply(p, s, step, a)
    s.phase = READY
    return GO_ON


@kernel
def _wake(p: Record, s: Record, a: Arrays, until_ns: int) -> int:
    """An idle replica goes on at the next arrival or end of a transfer, unless that is later or not known."""
    known = s.next_arrival < s.num_arrivals
    next_ns = a.arrivals[s.next_arrival].arrival_ns if known else s.known_until_ns
    if s.active_out + s.active_in > 0:
        done_ns = next_completion_ns(p, s, a.rows)
        if done_ns < next_ns or known or next_ns == NEVER:
            next_ns = min(next_ns, done_ns)
            known = True
    if not known:
        if next_ns == NEVER:
            return DONE
        return UNTIL if next_ns >= until_ns else NEED_ARRIVALS
    if next_ns > until_ns:
        return UNTIL
    s.now_ns = max(s.now_ns, next_ns)
    s.phase = READY
    return GO_ON


@kernel
def _take_off(p: Record, s: Record, step: Record, a: Arrays, planned: bool) -> int:
    """After a decision: the step flies, or the replica is idle, or it decides again (and not for ever)."""
    s.again = 0 if planned or (s.again == 0 and step.preempted == 0) else 1
    if planned:
        s.phase = FLYING
        s.idle_decisions = 0
        return DECIDED
    if drain(p, s, a):
        s.carried_preemptions += step.preempted
        return GO_ON
    if s.num_waiting == 0 and s.num_running == 0 and s.num_moving == 0:
        s.phase = IDLE
        return GO_ON
    if step.preempted == 0 and s.active_out + s.active_in > 0:
        s.phase = IDLE  # until a transfer is done, or somebody arrives
        s.again = 0
        return GO_ON
    s.carried_preemptions += step.preempted
    s.idle_decisions += 1
    if s.idle_decisions < STUCK_DECISIONS:
        return GO_ON
    s.status = E_NO_PROGRESS
    s.error_request = a.requests[s.waiting_head].row if s.waiting_head != NONE else NONE
    return ERROR


@entry
def span(
    params: Records, scalars: Records, steps: Records, until_ns: int, max_steps: int, flags: int, handle: int
) -> int:
    """Advance one replica; returns why it stopped (state.REASONS). The caller sees to that and calls again.

    ``handle``: the replica's arrays (bundle.py).
    """
    p, s, step, a = params[0], scalars[0], steps[0], arrays_at(handle)
    done = 0
    while True:
        if s.phase == FLYING:
            if done >= max_steps and step.end_ns <= until_ns:
                return WORK
            done += 1
            reason = _land(p, s, step, a, until_ns, flags)
            if reason == GO_ON and flags & STOP_AT_EVENTS and s.num_events > 0:
                return EVENT
        else:
            reason = _wake(p, s, a, until_ns) if s.phase == IDLE else GO_ON
        if reason == GO_ON:
            reason = _take_arrivals(p, s, a, s.now_ns, flags)
        if reason != GO_ON:
            return reason
        if s.now_ns >= s.known_until_ns and s.known_until_ns < until_ns:
            return NEED_ARRIVALS
        if s.now_ns >= until_ns:
            return UNTIL
        planned = decide(p, s, step, a)
        reason = _take_off(p, s, step, a, planned)
        if reason == ERROR or (reason == DECIDED and flags & STOP_AT_DECISIONS):
            return reason
        if flags & STOP_AT_EVENTS and s.num_events > 0:
            return EVENT


@kernel
def _emit_unfinished(p: Record, s: Record, a: Arrays) -> None:
    row = s.running_head
    while row != NONE:
        request = a.rows[row].request
        if a.rows[row].ended == 0:
            a.requests[request].delivered = row_delivered(s, a.rows, a.requests, row)
            emit(s, a.requests[request], a.out, UNFINISHED, R_STOPPED, NONE)
        row = a.rows[row].next
    for at in range(s.num_moving):
        # Who leaves is among those who wait.
        if a.rows[a.rows["moving"][at]].direction == IN:
            emit(s, a.requests[a.rows[a.rows["moving"][at]].request], a.out, UNFINISHED, R_STOPPED, NONE)
            s.unfinished += 1
    see_arrivals(p, s, a, NEVER)
    s.unfinished += s.num_running - s.num_ended_rows + s.num_waiting
    while s.waiting_head != NONE:
        request = pop_waiting(p, s, a.requests)
        emit(s, a.requests[request], a.out, UNFINISHED, R_STOPPED, NONE)


@entry
def replica_edge(edge: int, params: Records, scalars: Records, handle: int, first: int) -> None:
    """What happens at the edges of a run: OPEN it, GREW the arena from record `first` on, or CLOSE it.

    Closing writes a record for each request that is not finished (running in admission order, then waiting; `out` has
    room, the caller sees to it) and ends the open windows. One entry point, so that there is one binary to compile.
    """
    s, a = scalars[0], arrays_at(handle)
    if edge == OPEN:
        open_replica(params[0], s, a)
    elif edge == GREW:
        open_arena(s, a.requests, first)
    else:
        _emit_unfinished(params[0], s, a)
        close_spike_window(s, a.tallies, a.histograms)
        close_window(s, a)

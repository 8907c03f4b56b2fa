"""Deciding ahead of the steps in flight: what a decision may know, and what becomes free when (docs/semantics.md
section 3, Run-ahead).

With a depth d > 0 a decision knows what was known at its *horizon*, about d steps ago. Everything else of it is that of
the present: between the two only happens what was decided before.
"""

from __future__ import annotations

from kvrm_sim.compaction import COMPACT_THRESHOLD, compact_by_threshold
from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.decoding import leave_decoding, unstall_row
from kvrm_sim.fences import STAMPS
from kvrm_sim.links import complete_transfers, next_to_notice
from kvrm_sim.pager import PAGED, release_row
from kvrm_sim.pool import release_block, release_run
from kvrm_sim.prefix import keep_again
from kvrm_sim.request import free_request
from kvrm_sim.rowlist import close_row
from kvrm_sim.state import NONE, Arrays, Record
from kvrm_sim.swap import notice_transfers
from kvrm_sim.waiting import join_waiting

MOST_RUN_AHEAD = 2


@outlined
def begin_decision(p: Record, s: Record, a: Arrays) -> None:
    """What a decision begins with: fences are lifted, transfers noticed, arrivals seen, the pool compacted."""
    if p.run_ahead > 0:
        lift_fences(p, s, a, False)
    if s.num_moving > 0:
        complete_transfers(p, s, a.rows, s.now_ns)
        notice_transfers(p, s, a, horizon_ns(p, s))
    if p.run_ahead > 0:
        see_arrivals(p, s, a, horizon_ns(p, s))
    if p.compaction == COMPACT_THRESHOLD:
        compact_by_threshold(p, s, a)


@kernel
def horizon_ns(p: Record, s: Record) -> int:
    """Up to when the coming decision knows what has happened."""
    back = min(p.run_ahead, s.steps - s.first_step)
    if back <= 0:
        return int(s.now_ns)
    return int(s.start_1_ns if back == 1 else s.start_2_ns)


@kernel
def follows(p: Record, s: Record) -> int:
    """1 when the coming step is decided with the one before it in flight."""
    return 1 if p.run_ahead > 0 and s.steps > s.first_step else 0


@kernel
def see_arrivals(p: Record, s: Record, a: Arrays, latest_ns: int) -> None:
    """Arrivals up to a time join those who wait."""
    while s.unseen_head != NONE and a.requests[s.unseen_head].arrival_ns <= latest_ns:
        request = s.unseen_head
        s.unseen_head = a.requests[request].next
        if s.unseen_head == NONE:
            s.unseen_tail = NONE
        s.num_unseen -= 1
        join_waiting(p, s, a.requests, request)


@outlined
def lift_fences(p: Record, s: Record, a: Arrays, every: bool) -> None:
    """Blocks whose last possible reader has ended (or `every` one, when nothing is in flight) are free."""
    while s.fence_head != 0:
        block = s.fence_head
        b = a.blocks[block]
        if not every and (s.fence_clock - b.stamp) % STAMPS < p.run_ahead:
            return
        count = b.fenced
        s.fence_head = b.next
        if s.fence_head == 0:
            s.fence_tail = 0
        b.fenced = 0
        s.fenced_blocks -= count
        if p.reserve != PAGED:
            release_run(p, s, a.blocks, a.tree, block, count)
        elif p.sharing and b.key != NONE:
            keep_again(s, a.blocks, block)
        else:
            release_block(p, s, a.blocks, a.tree, block)


@outlined
def release_ended(p: Record, s: Record, a: Arrays, row: int) -> None:
    """A row whose request has ended gives everything back."""
    r = a.rows[row]
    request = r.request
    if r.decoding:
        leave_decoding(p, s, a.requests, a.rows, a.heads, a.table, row)
    elif r.waits:
        unstall_row(p, s, a.rows, row)
    release_row(p, s, a, row, False)
    close_row(s, a.rows, row)
    free_request(s, a.requests, request)


@kernel
def sort_by_slot(a: Arrays, count: int) -> None:
    """Order the first `count` of `finishing` by batch row."""
    finishing = a.rows["finishing"]
    for at in range(1, count):
        row = finishing[at]
        before = at
        while before > 0 and a.rows[finishing[before - 1]].slot > a.rows[row].slot:
            finishing[before] = finishing[before - 1]
            before -= 1
        finishing[before] = row


@outlined
def drain(p: Record, s: Record, a: Arrays) -> bool:
    """Nothing was planned, so nothing is in flight: all that waited for steps to end happens. Whether there was any."""
    s.first_step = s.steps
    if p.run_ahead == 0:
        return False
    complete_transfers(p, s, a.rows, s.now_ns)
    unnoticed = next_to_notice(s, a.rows, s.now_ns) != NONE
    any_left: bool = unnoticed or s.num_ended_rows > 0 or s.fence_head != 0 or s.unseen_head != NONE
    for at in range(s.num_ended_rows):
        a.rows["finishing"][at] = a.rows["ended_row"][at]
    count = s.num_ended_rows
    s.num_ended_rows = 0
    sort_by_slot(a, count)
    for at in range(count):
        release_ended(p, s, a, a.rows["finishing"][at])
    lift_fences(p, s, a, True)
    return any_left

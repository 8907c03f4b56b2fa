"""Who is admitted next: a queue (``fcfs``), or the least score (docs/semantics.md section 3).

The queue is a linked list: arrivals join its tail, preempted requests its front. Any other order keeps a heap on
(score, turn) in the column ``heap`` of the arena. Waiting makes all scores fall alike, so aging needs no update: what
counts is the arrival's time beside the key. ``waiting_head`` is the first in both.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.state import NONE, Ints, Record, Records

FCFS, SHORTEST_PROMPT, SHORTEST_TOTAL, PRIORITY = range(4)


@kernel
def waiting_score(p: Record, q: Record) -> int:
    """What orders a waiting request: the least goes first."""
    if p.queue_order == SHORTEST_PROMPT:
        key = q.prompt_tokens
    elif p.queue_order == SHORTEST_TOTAL:
        key = q.prompt_tokens + q.output_tokens
    else:
        key = q.priority
    return key * p.aging_ns + q.arrival_ns if p.aging_ns > 0 else key


@kernel
def _before(requests: Records, one: int, other: int) -> bool:
    if requests[one].score != requests[other].score:
        return requests[one].score < requests[other].score
    return requests[one].turn < requests[other].turn


@outlined
def _push(s: Record, requests: Records, heap: Ints, request: int) -> None:
    at = s.num_waiting
    while at > 0:
        parent = (at - 1) >> 1
        if not _before(requests, request, heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = request
    s.num_waiting += 1
    s.waiting_head = heap[0]


@outlined
def _pop(s: Record, requests: Records, heap: Ints) -> None:
    s.num_waiting -= 1
    size = s.num_waiting
    last = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(requests, heap[child + 1], heap[child]):
            child += 1
        if not _before(requests, heap[child], last):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    s.waiting_head = heap[0] if size > 0 else NONE


@kernel
def join_waiting(p: Record, s: Record, requests: Records, request: int) -> None:
    """A request arrives: behind everybody (``fcfs``), or at its place in the order."""
    q = requests[request]
    q.turn = s.turns
    s.turns += 1
    if p.queue_order != FCFS:
        q.score = waiting_score(p, q)
        _push(s, requests, requests["heap"], request)
        return
    q.next = NONE
    if s.waiting_tail != NONE:
        requests[s.waiting_tail].next = request
    else:
        s.waiting_head = request
    s.waiting_tail = request
    s.num_waiting += 1


@kernel
def return_to_waiting(p: Record, s: Record, requests: Records, request: int) -> None:
    """A preempted request: before everybody (``fcfs``), or at its old place in the order."""
    if p.queue_order != FCFS:
        _push(s, requests, requests["heap"], request)
        return
    requests[request].next = s.waiting_head
    if s.waiting_head == NONE:
        s.waiting_tail = request
    s.waiting_head = request
    s.num_waiting += 1


@kernel
def pop_waiting(p: Record, s: Record, requests: Records) -> int:
    """Take the first."""
    request = s.waiting_head
    if p.queue_order != FCFS:
        _pop(s, requests, requests["heap"])
        return request
    s.waiting_head = requests[request].next
    if s.waiting_head == NONE:
        s.waiting_tail = NONE
    s.num_waiting -= 1
    return request

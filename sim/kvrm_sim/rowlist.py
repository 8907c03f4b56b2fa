"""The rows of the static batch: who runs, in which order, in which slot.

``running`` is a doubly linked list in admission order over stage rows. A row's stage row never changes while it
lives; its batch row (``slot``) moves only when a smaller captured batch becomes usable. Free slots and free stage
rows are binary heaps, so the lowest is given out.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.state import NONE, Ints, Record, Records


@kernel
def heap_push(heap: Ints, size: int, value: int) -> None:
    """Add a value to a min-heap of `size` entries."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= value:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = value


@kernel
def heap_pop(heap: Ints, size: int) -> int:
    """Take the least value of a min-heap of `size` > 0 entries."""
    least = heap[0]
    last = heap[size - 1]
    size -= 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    return least


@kernel
def open_rows(p: Record, s: Record, rows: Records) -> None:
    """No row lives; every slot and stage row is free."""
    for row in range(p.slots):
        rows[row].request = NONE
        rows[row].at_slot = NONE
        rows[row].free_slot = row
        rows[row].free_stage = row
    s.num_slots_free = p.slots
    s.num_stage_free = p.slots
    s.highest_slot = NONE
    s.running_head = NONE
    s.running_tail = NONE


@kernel
def open_stage_row(s: Record, rows: Records, request: int) -> int:
    """The lowest free stage row, for a request that does not run yet."""
    row = heap_pop(rows["free_stage"], s.num_stage_free)
    s.num_stage_free -= 1
    r = rows[row]
    r.request = request
    r.slot = NONE
    r.decoding = 0
    r.computed = 0
    r.planned = 0
    r.blocks = 0
    r.runs = 0
    r.begun = 0
    r.rewrites = 0
    r.drafts = 0
    r.noticed = 0
    r.loaded = 0
    r.dropped = 0
    r.waits = 0
    r.was_staged = 0
    r.ended = 0
    return row


@kernel
def join_running(s: Record, rows: Records, row: int) -> None:
    """A row runs: the last in running, in the lowest free slot."""
    slot = heap_pop(rows["free_slot"], s.num_slots_free)
    s.num_slots_free -= 1
    r = rows[row]
    r.slot = slot
    r.order = s.admissions
    rows[slot].at_slot = row
    s.highest_slot = max(s.highest_slot, slot)
    s.admissions += 1
    r.previous = s.running_tail
    r.next = NONE
    if s.running_tail != NONE:
        rows[s.running_tail].next = row
    else:
        s.running_head = row
    s.running_tail = row
    s.num_running += 1


@outlined
def close_row(s: Record, rows: Records, row: int) -> None:
    """Take a row out of the running list; its slot and stage row are free again."""
    leave_running(s, rows, row)
    free_stage_row(s, rows, row)


@kernel
def free_stage_row(s: Record, rows: Records, row: int) -> None:
    """A stage row that holds nothing is free again."""
    rows[row].request = NONE
    heap_push(rows["free_stage"], s.num_stage_free, row)
    s.num_stage_free += 1


@outlined
def leave_running(s: Record, rows: Records, row: int) -> None:
    """Take a row out of the running list; its slot is free again."""
    before, after = rows[row].previous, rows[row].next
    if before != NONE:
        rows[before].next = after
    else:
        s.running_head = after
    if after != NONE:
        rows[after].previous = before
    else:
        s.running_tail = before
    s.num_running -= 1
    _vacate(s, rows, rows[row].slot)
    rows[row].slot = NONE


@kernel
def _vacate(s: Record, rows: Records, slot: int) -> None:
    rows[slot].at_slot = NONE
    heap_push(rows["free_slot"], s.num_slots_free, slot)
    s.num_slots_free += 1
    while s.highest_slot >= 0 and rows[s.highest_slot].at_slot == NONE:
        s.highest_slot -= 1


@outlined
def move_rows_below(s: Record, rows: Records, batch: int) -> int:
    """Move the last live row into the lowest hole until all are below `batch`; how many moved."""
    moves = 0
    while s.highest_slot >= batch:
        slot = s.highest_slot
        row = rows[slot].at_slot
        hole = heap_pop(rows["free_slot"], s.num_slots_free)
        s.num_slots_free -= 1
        rows[hole].at_slot = row
        rows[row].slot = hole
        _vacate(s, rows, slot)
        moves += 1
    return moves

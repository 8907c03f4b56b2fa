"""Calendars of the decoding rows.

Every decoding row advances by one token in each step that decodes, so when a row needs its next block, and when it
ends, are known as values of the decode counter. Two wheels of doubly linked lists hold them: ``growth`` has one list
for each residue of the block size, ``finish`` one for each residue of FINISH_LISTS (entries of a later lap stay in
their list). A decode step therefore costs the rows that have something to do, not the rows that are there.

``heads`` is one int64 array: the growth lists first, then the finish lists. Rows are stage rows; -1 ends a list.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel
from kvrm_sim.state import NONE, Ints, Record, Records

#: Lists of the finish wheel, a power of two.
FINISH_LISTS = 1024


@kernel
def growth_list(p: Record, counter: int) -> int:
    """The list visited when the decode counter has this residue."""
    return counter % p.block_size


@kernel
def finish_list(p: Record, counter: int) -> int:
    """The list visited when the decode counter reaches this value."""
    return p.block_size + (counter & (FINISH_LISTS - 1))


@kernel
def add_to_wheels(p: Record, rows: Records, heads: Ints, row: int) -> None:
    """Enter a row whose `origin` and `finish_at` are set."""
    at = growth_list(p, -rows[row].origin)
    first = heads[at]
    rows[row].grow_previous = NONE
    rows[row].grow_next = first
    if first != NONE:
        rows[first].grow_previous = row
    heads[at] = row
    at = finish_list(p, rows[row].finish_at)
    first = heads[at]
    rows[row].finish_previous = NONE
    rows[row].finish_next = first
    if first != NONE:
        rows[first].finish_previous = row
    heads[at] = row


@kernel
def remove_from_wheels(p: Record, rows: Records, heads: Ints, row: int) -> None:
    """Take a row out of both wheels."""
    before, after = rows[row].grow_previous, rows[row].grow_next
    if before != NONE:
        rows[before].grow_next = after
    else:
        heads[growth_list(p, -rows[row].origin)] = after
    if after != NONE:
        rows[after].grow_previous = before
    before, after = rows[row].finish_previous, rows[row].finish_next
    if before != NONE:
        rows[before].finish_next = after
    else:
        heads[finish_list(p, rows[row].finish_at)] = after
    if after != NONE:
        rows[after].finish_previous = before

"""The host link: transfers that share it fairly, in two directions that slow each other down (docs/semantics.md section
3, Swapping; D11).

Each direction keeps a virtual time, which is what every transfer in it has been served; a transfer is done when that
reaches its mark. At most one transfer belongs to a row, so its record is the row's.
"""

from __future__ import annotations

import math

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.state import NEVER, NONE, Record, Records

OUT, IN = range(2)


@kernel
def _spread(p: Record, s: Record, direction: int) -> float:
    """How many times longer than alone a transfer of a busy direction takes just now."""
    if direction == OUT:
        return float(s.active_out * (p.out_slowdown if s.active_in > 0 else 1.0))
    return float(s.active_in * (p.in_slowdown if s.active_out > 0 else 1.0))


@kernel
def _advance(p: Record, s: Record, time_ns: int) -> None:
    if s.active_out > 0:
        s.out_virtual += (time_ns - s.link_at_ns) / _spread(p, s, OUT)
    if s.active_in > 0:
        s.in_virtual += (time_ns - s.link_at_ns) / _spread(p, s, IN)
    s.link_at_ns = time_ns


@outlined
def submit_transfer(p: Record, s: Record, rows: Records, row: int, direction: int, alone_ns: int) -> None:
    """A row's transfer joins the link now; alone on it, it would take so long."""
    _advance(p, s, s.now_ns)
    r = rows[row]
    if direction == OUT:
        r.mark_ns = s.out_virtual + alone_ns
        s.active_out += 1
    else:
        r.mark_ns = s.in_virtual + alone_ns
        s.active_in += 1
    r.direction = direction
    r.done_ns = NONE
    r.noticed = 0  # a row that came in and goes out again was noticed once
    s.transfers += 1
    rows["moving"][s.num_moving] = row
    s.num_moving += 1


@kernel
def _first(s: Record, rows: Records, direction: int) -> int:
    """The row whose transfer is done first in a direction, or -1."""
    found = NONE
    for at in range(s.num_moving):
        row = rows["moving"][at]
        r = rows[row]
        # In the order of submission: of equal marks the first stays.
        if r.direction == direction and r.done_ns == NONE and (found == NONE or r.mark_ns < rows[found].mark_ns):
            found = row
    return found


@kernel
def _done_ns(p: Record, s: Record, rows: Records, direction: int) -> int:
    """When the next transfer of a direction is done; NEVER where there is none."""
    row = _first(s, rows, direction)
    if row == NONE:
        return NEVER
    virtual = s.out_virtual if direction == OUT else s.in_virtual
    done_ns: int = s.link_at_ns + math.ceil((rows[row].mark_ns - virtual) * _spread(p, s, direction))
    return done_ns


@outlined
def next_completion_ns(p: Record, s: Record, rows: Records) -> int:
    """When the next transfer on the link is done; NEVER when it is idle."""
    return min(_done_ns(p, s, rows, OUT), _done_ns(p, s, rows, IN))


@outlined
def complete_transfers(p: Record, s: Record, rows: Records, until_ns: int) -> None:
    """End every transfer that is done by a time, one after another: each that ends leaves more to the others."""
    while s.active_out + s.active_in > 0:
        out_ns, in_ns = _done_ns(p, s, rows, OUT), _done_ns(p, s, rows, IN)
        time_ns = min(out_ns, in_ns)
        if time_ns > until_ns:
            return
        direction = OUT if out_ns <= in_ns else IN
        row = _first(s, rows, direction)
        _advance(p, s, time_ns)
        rows[row].done_ns = time_ns
        if direction == OUT:
            s.active_out -= 1
            s.out_virtual = rows[row].mark_ns if s.active_out > 0 else 0.0
        else:
            s.active_in -= 1
            s.in_virtual = rows[row].mark_ns if s.active_in > 0 else 0.0


@outlined
def next_to_notice(s: Record, rows: Records, latest_ns: int) -> int:
    """Of the transfers done by a time and not noticed, the row of the first (out before in, then as submitted), or
    -1.
    """
    found = NONE
    for at in range(s.num_moving):
        row = rows["moving"][at]
        r = rows[row]
        if r.done_ns == NONE or r.done_ns > latest_ns or r.noticed:
            continue
        first = found == NONE or r.done_ns < rows[found].done_ns
        if first or (r.done_ns == rows[found].done_ns and r.direction < rows[found].direction):
            found = row
    return found

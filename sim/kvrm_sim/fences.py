"""Blocks behind a fence: given back, but steps in flight may still read them (docs/semantics.md section 3, Run-ahead).

They are in a queue, in the order in which they were given back, each with the number of steps that had ended by then.
ahead.py lifts the fences. Nobody holds such a block, and it is not free.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel
from kvrm_sim.state import Record, Records

#: Stamps are int32: steps are counted modulo this. Only differences of up to two are ever looked at.
STAMPS = 1 << 30


@kernel
def pending_blocks(s: Record) -> int:
    """Blocks that will be free without anybody's doing."""
    return int(s.fenced_blocks + s.leaving_blocks)


@kernel
def fence(s: Record, blocks: Records, block: int, count: int) -> None:
    """Put a block behind a fence, or the first one of a reservation's run of `count`."""
    blocks[block].fenced = count
    blocks[block].stamp = s.fence_clock
    blocks[block].next = 0
    if s.fence_tail != 0:
        blocks[s.fence_tail].next = block
    else:
        s.fence_head = block
    s.fence_tail = block
    s.fenced_blocks += count

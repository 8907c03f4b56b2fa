"""What a device has to copy before a step, block by block, in the order in which it was decided.

Nobody needs it to count: groups and blocks are counted as they are decided. It is written for whoever executes the
step (``log_moves``), who has to carry the moves out in this order, since one may read what another has written.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel
from kvrm_sim.state import Arrays, Record

#: From device block to device block: compaction, and the copied tail of a cached prompt. Swapped out and in, evicted to
#: the host, loaded from it: between a block of the device and one of the host.
MOVE_COMPACT, MOVE_TAIL, MOVE_OUT, MOVE_IN, MOVE_OFFLOAD, MOVE_LOAD = range(6)
MOVE_KINDS = ("compact", "tail", "out", "in", "offload", "load")


@kernel
def log_move(p: Record, s: Record, a: Arrays, kind: int, source: int, target: int) -> None:
    """Write a move down, if anybody asks for them; ``source`` and ``target`` are ids in their pools."""
    if p.log_moves == 0:
        return
    if s.num_moves < len(a.moves):
        a.moves[s.num_moves, 0] = kind
        a.moves[s.num_moves, 1] = source
        a.moves[s.num_moves, 2] = target
    s.num_moves += 1  # more than there is room for: Python raises


@kernel
def starts_group(merges: int, source: int, target: int, last_source: int, last_target: int) -> int:
    """1 when a block is copied in another group than the one before it, which it joins when both ids follow, else 0."""
    return 0 if merges and source == last_source + 1 and target == last_target + 1 else 1

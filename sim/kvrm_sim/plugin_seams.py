"""Where a user's part sits in the core: what a private copy of the core runs instead of its own functions.

Never run as it lies here. plugin_core.py makes a private copy of the core's modules, this one among them, binds the
``user_*`` names to the part's functions, and puts :data:`SEAMS` in the place of the functions that they name.
"""

from __future__ import annotations

from typing import Any

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.decoding import row_computed, row_delivered
from kvrm_sim.plugins import Pool, RunningRow, WaitingRequest
from kvrm_sim.pool import free_all
from kvrm_sim.state import Ints, Record, Records

#: Bound by plugin_core.py, from ``open``, ``take``, ``release``, ``weight`` and ``score``.
user_open: Any = None
user_take: Any = None
user_release: Any = None
user_weight: Any = None
user_score: Any = None


@kernel
def _pool(p: Record, s: Record, blocks: Records, tree: Ints) -> Pool:
    """What a placement is handed. Its memory lies where the tree of the others would: replica.py sees to that."""
    return Pool(blocks["free"], int(p.pool_blocks), int(s.free_blocks), tree)


@outlined
def open_pool(p: Record, s: Record, blocks: Records, tree: Ints) -> None:
    """``pool.open_pool`` under a user's placement."""
    free_all(p, s, blocks)
    user_open(_pool(p, s, blocks, tree))


@outlined
def take_block(p: Record, s: Record, blocks: Records, tree: Ints, last: int) -> int:
    """``pool.take_block``. Compiled, what is not a free block is noted and the lowest free one taken: the state is
    whole until the span returns, and the run then ends with the error (replica.py).
    """
    block = user_take(_pool(p, s, blocks, tree), int(last))
    if block < 1 or block > p.pool_blocks or blocks[block].free == 0:
        if s.plugin_error == 0:
            s.plugin_error = 1
            s.plugin_value = block
        block = 1
        while blocks[block].free == 0:
            block += 1
    blocks[block].free = 0
    s.free_blocks -= 1
    return block


@outlined
def release_block(p: Record, s: Record, blocks: Records, tree: Ints, block: int) -> None:
    """``pool.release_block``."""
    blocks[block].free = 1
    s.free_blocks += 1
    user_release(_pool(p, s, blocks, tree), int(block))


@kernel
def victim_weight(p: Record, s: Record, requests: Records, rows: Records, row: int) -> int:  # noqa: ARG001  # a seam
    """``scheduler.victim_weight``."""
    q = requests[rows[row].request]
    return user_weight(
        RunningRow(
            int(row_computed(s, rows, row)),
            int(rows[row].blocks),
            int(q.prompt_tokens),
            int(row_delivered(s, rows, requests, row)),
            int(q.priority),
            int(q.preemptions),
            int(q.arrival_ns),
        )
    )


@kernel
def waiting_score(p: Record, q: Record) -> int:  # noqa: ARG001  # a seam
    """``waiting.waiting_score``. No aging here: a part that wants it has the time of arrival."""
    return user_score(WaitingRequest(int(q.prompt_tokens), int(q.output_tokens), int(q.priority), int(q.arrival_ns)))


#: By kind: what stands in, for which module's function of the same name.
SEAMS = {
    "placement": {"pool": (open_pool, take_block, release_block)},
    "victim": {"scheduler": (victim_weight,)},
    "order": {"waiting": (waiting_score,)},
}

"""Compaction's cases on the core: holes close on demand or by a threshold, and what that costs (cases B20, B21)."""

from __future__ import annotations

import numpy as np
import pytest

from kvrm_sim.compaction import COMPACT_DEMAND, COMPACT_NEVER
from kvrm_sim.replica import Replica
from tests.sim.core_runs import CoreRun
from tests.sim.small_replays import S, contiguous, core, paged, total
from tests.sim.test_cases_pager import HOLES

pytestmark = pytest.mark.core

#: A step lasts 1 s. A compaction: 1 ms for its kernel, 0.1 s a group (one layer), 0.01 s a block.
COSTS = {"host_step_ns": 1e9, "tail_kernel_ns": 1e6, "copy_segment_ns": 1e8, "copy_block_ns": 1e7}


def free_runs(replica: Replica) -> list[tuple[int, int]]:
    """(first id, blocks) of each maximal run of free blocks."""
    free = replica.blocks["free"][1:-1] != 0  # the null block before, a guard behind
    edges = np.flatnonzero(np.diff(np.concatenate(([0], free.astype(int), [0]))))
    return [(int(start) + 1, int(end - start)) for start, end in edges.reshape(-1, 2)]


def moves(run: CoreRun) -> list[tuple[int, int, int]]:
    """(second, blocks, groups) of each step that compacts."""
    return [
        (step["start_ns"] // S, step["compacted_blocks"], step["compaction_groups"])
        for step in run.steps
        if step["compaction_groups"]
    ]


@pytest.mark.parametrize(("compaction", "admitted_at"), [(COMPACT_NEVER, 11), (COMPACT_DEMAND, 2)])
def test_a_reservation_that_no_hole_holds_waits_or_compacts(compaction: int, admitted_at: int) -> None:
    """B20: 60 of 100 cells free in three holes of 20, ask 30: it waits until a neighbour ends, or compacts and
    is admitted when it arrives.
    """
    config = contiguous("oracle", pool_blocks=100, block_size_tokens=1)
    run = core(config, *HOLES, compaction=compaction, compaction_max_moves=2)
    assert run.rows[6].admitted_ns == admitted_at * S
    # From the highest start down: 14 at 87 go to 1, 13 at 54 to 34; 13 at 21 stay, since 6 are left below them.
    assert moves(run) == ([] if compaction == COMPACT_NEVER else [(2, 14 + 13, 2)])
    assert [row.outcome for row in run.rows] == ["completed"] * 7


def test_what_a_compaction_moves_and_stalls_is_in_its_step() -> None:
    """B20, B21: 27 blocks in 2 moves: 1 ms to submit, 2 x 0.1 s and 27 x 0.01 s to move, on top of the step's 1 s."""
    config = contiguous("oracle", pool_blocks=100, block_size_tokens=1)
    run = core(config, *HOLES, costs=COSTS, compaction=COMPACT_DEMAND, compaction_max_moves=2)
    step = next(step for step in run.steps if step["compaction_groups"])
    assert (step["compacted_blocks"], step["compaction_groups"]) == (27, 2)
    assert (step["submit_ns"], step["move_ns"]) == (1_000_000, 470_000_000)
    assert step["transport_busy_ns"] == step["transport_exposed_ns"] == 471_000_000
    assert step["duration_ns"] == S + 471_000_000
    assert {other["duration_ns"] for other in run.steps if other is not step} == {S}
    assert total(run, "compacted_blocks") == 27


def test_no_more_moves_than_allowed() -> None:
    """B21: with one move allowed the 14 at 87 go to 1, and no other: 67 to 100 are one run, enough for the 30."""
    config = contiguous("oracle", pool_blocks=100, block_size_tokens=1)
    run = core(config, *HOLES, compaction=COMPACT_DEMAND, compaction_max_moves=1)
    assert moves(run) == [(2, 14, 1)]
    assert run.rows[6].admitted_ns == 2 * S


#: Both write 64 entries. The first ends at 1 s: a hole of 64 below the second one's blocks, and 64 free above them.
HOLE_OF_64 = [(0, 64, 1), (0, 61, 4)]


def test_one_move_of_a_reservation_closes_a_hole_of_64() -> None:
    """B21 (i): a reservation of 64 behind a hole of 64, one move allowed: a move counts as one, whatever its size, and
    all that is free is one run.
    """
    config = contiguous(
        "oracle", pool_blocks=192, block_size_tokens=1, compaction="threshold", compaction_ratio=0.1,
        compaction_max_moves=1,
    )  # fmt: skip
    run = core(config, *HOLE_OF_64, until_ns=2 * S)
    assert moves(run) == [(1, 64, 1)]
    assert free_runs(run.replica) == [(65, 128)]


def test_as_many_moves_of_single_blocks_close_a_hole_of_64() -> None:
    """B21 (i): the same in pages: the second one's 61 blocks are 61 moves and, as neighbours, one group; what is free
    is one run.
    """
    config = paged(
        pool_blocks=192, block_size_tokens=1, placement="lowest", compaction="threshold", compaction_ratio=0.1,
        compaction_max_moves=64,
    )  # fmt: skip
    run = core(config, *HOLE_OF_64, until_ns=2 * S)
    assert moves(run)[0] == (1, 61, 1)
    assert free_runs(run.replica) == [(63, 130)], "it has grown by a block in the same decision"
    assert run.replica.table[1, :62].tolist() == list(range(1, 63))


@pytest.mark.parametrize(("hole", "expected"), [(0, []), (1, []), (2, [(1, 2, 1)])])
def test_room_at_the_end_is_not_a_hole(hole: int, expected: list[tuple[int, int, int]]) -> None:
    """B21 (ii): 20 used of a pool of 32 and a threshold of 0.1: free room at the end is no hole, so 0 moves; nor is a
    hole of 1, since 1 is not above 0.1 of the 12 that are free. Into a hole of 2 go the two highest.
    """
    config = paged(pool_blocks=32, placement="lowest", compaction="threshold", compaction_ratio=0.1)
    # 10 blocks, what leaves the hole at 1 s, 10 blocks more, and what leaves room at the end.
    leaves_hole = [(0, 16 * hole, 1)] if hole else []
    run = core(config, (0, 152, 4), *leaves_hole, (0, 152, 4), (0, 16 * (12 - hole), 1), until_ns=2 * S)
    assert [step["allocated_blocks"] for step in run.steps] == [32, 20]
    assert moves(run) == expected
    assert free_runs(run.replica) == ([(11, 1), (22, 11)] if hole == 1 else [(21, 12)])

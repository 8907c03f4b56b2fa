"""Fences of steps in flight, on the core: who waits for them, and that nobody is preempted in vain (case B09)."""

from __future__ import annotations

import pytest

from tests.sim.small_replays import S, core, free_blocks, paged, total

pytestmark = pytest.mark.core

#: Four rows on a pool of 4 blocks of 16: the first needs a second block in step 1, no other ever does.
FULL = [(0, 16, 6), (0, 8, 4), (0, 8, 4), (0, 8, 4)]


@pytest.mark.parametrize("depth", [1, 2])
def test_one_victim_and_then_a_wait_for_its_fence(depth: int) -> None:
    """B09: free 0, 4 running, one block needed: one victim, whose block is free `depth` decisions later; until then
    the row waits, the two others decode, and nobody else is preempted.
    """
    run = core(paged(pool_blocks=4), *FULL, run_ahead=depth)
    waits = [
        (step["preempted"], step["stalled_rows"], step["decode_rows"], step["pending_blocks"])
        for step in run.steps[1 : 2 + depth]
    ]
    assert waits == [(1, 1, 2, 1), *[(0, 1, 2, 1)] * (depth - 1), (0, 0, 3, 0)]
    assert total(run, "preemptions") == 1
    assert [row.preemptions for row in run.rows] == [0, 0, 0, 1], "the last admitted"
    assert run.rows[3].recomputed_tokens == 8, "its prompt"
    assert run.rows[0].finish_ns == (6 + depth) * S, "six tokens, one a step, and the steps in which it waited"
    assert [row.finish_ns for row in run.rows[1:3]] == [4 * S] * 2, "nobody else is late"
    assert [row.delivered for row in run.rows] == [6, 4, 4, 4]
    assert free_blocks(run) == 4


def test_without_steps_in_flight_the_block_is_free_at_once() -> None:
    """B09: the same with every step decided after the one before: one victim, and nobody waits."""
    run = core(paged(pool_blocks=4), *FULL)
    step = run.steps[1]
    assert (step["preempted"], step["stalled_rows"], step["decode_rows"], step["pending_blocks"]) == (1, 0, 3, 0)
    assert total(run, "preemptions") == 1
    assert run.rows[0].finish_ns == 6 * S


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_that_all_need_a_block_do_not_evict_each_other(depth: int) -> None:
    """B09: free 0 and all four rows need a block: the first takes the last one's. While it waits nothing could run, so
    nothing is in flight and no fence holds; the second then takes the third's, and waits for that while the first runs.
    """
    run = core(paged(pool_blocks=4), *[(0, 16, 6)] * 4, run_ahead=depth)
    assert [step["preempted"] for step in run.steps[:3]] == [0, 2, 0]
    assert [step["stalled_rows"] for step in run.steps[: 2 + depth]] == [0] + [1] * depth + [0]
    assert [row.preemptions for row in run.rows] == [0, 0, 1, 1]
    assert [row.finish_ns for row in run.rows[:2]] == [6 * S, (6 + depth) * S]
    assert [row.delivered for row in run.rows] == [6] * 4

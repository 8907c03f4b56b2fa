"""The reference's order of waiting, victims and withdrawn plans, by hand: one-token blocks, steps of one second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.strategies import constant

SECOND = 1_000_000_000


def paged(**changes: object) -> ReferenceConfig:
    """Paged, one-token blocks, chunked prefill, eager, table reads; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=1000, pool_blocks=1000, block_size_tokens=1, placement="lifo", slots=8,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live",
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def admissions(result: ReferenceResult) -> list[int]:
    """Rows in the order in which they were admitted."""
    return [event.row for event in result.events if event.kind == "admit"]


def preempted(result: ReferenceResult, second: int) -> list[int]:
    """Rows that had to go at this instant, in order."""
    return [event.row for event in result.events if event.kind == "preempt" and event.time_ns == second * SECOND]


@pytest.mark.parametrize(
    ("order", "rows"),
    [
        ("fcfs", [0, 1, 2, 3]),
        ("shortest_prompt", [1, 2, 3, 0]),  # 3 3 4 5: of equals the earlier
        ("shortest_total", [2, 3, 0, 1]),  # 4 5 6 12
        ("priority", [1, 3, 0, 2]),  # 0 1 2 2
    ],
)
def test_orders_and_their_ties(order: str, rows: list[int]) -> None:
    lengths = [(5, 1, 2), (3, 9, 0), (3, 1, 2), (4, 1, 1)]
    requests = [Arrival(row, 0, p, o, priority=priority) for row, (p, o, priority) in enumerate(lengths)]
    for prefill in ("none", "chunked", "separate"):
        result = simulate(paged(order=order, slots=1, prefill=prefill), requests, constant(SECOND))
        assert admissions(result) == rows


def test_a_total_is_of_what_will_be_delivered() -> None:
    """Limit 10, truncated: 6 + 4 and 2 + 8 are equal, so the earlier goes first, although it asked for 100."""
    requests = [Arrival(0, 0, 6, 100), Arrival(1, 0, 2, 8)]
    config = paged(order="shortest_total", slots=1, limit_tokens=10, over_limit="truncate")
    assert admissions(simulate(config, requests, constant(SECOND))) == [0, 1]


def test_the_first_of_waiting_is_not_overtaken_by_one_that_fits() -> None:
    """Pool of 10, of which row 0 holds 6 to 8. Row 1 (5 tokens) does not fit; row 2 (one token) would, and waits."""
    requests = [Arrival(0, 0, 6, 3, priority=0), Arrival(1, 0, 5, 1, priority=1), Arrival(2, 0, 1, 1, priority=2)]
    result = simulate(paged(order="priority", pool_blocks=10), requests, constant(SECOND))
    assert [r.admitted_ns for r in result.requests] == [0, 3 * SECOND, 3 * SECOND]


@pytest.mark.parametrize(
    ("aging_ns", "rows"),
    [
        (None, [0, 3, 2, 1]),
        (SECOND, [0, 1, 2, 3]),  # 8 + 0, 5 + 3, 4 + 5 s: of equals the earlier
        (SECOND - 1, [0, 1, 2, 3]),  # 8 s - 8, 8 s - 5, 9 s - 4
        (SECOND + 1, [0, 2, 1, 3]),  # 8 s + 8, 8 s + 5, 9 s + 4
        (3 * SECOND, [0, 3, 2, 1]),  # 24, 18, 17 s
    ],
)
def test_waiting_weighs_as_much_as_units_of_the_key(aging_ns: int | None, rows: list[int]) -> None:
    """Row 0 runs for 10 s, the others wait for it."""
    requests = [
        Arrival(0, 0, 1, 10), Arrival(1, 0, 8, 1), Arrival(2, 3 * SECOND, 5, 1), Arrival(3, 5 * SECOND, 4, 1),
    ]  # fmt: skip
    config = paged(order="shortest_prompt", slots=1, aging_ns=aging_ns)
    assert admissions(simulate(config, requests, constant(SECOND))) == rows


#: Pool of 8, two slots. Rows 0 and 1 hold 4 blocks each at 1 s; at 2 s row 0 needs a fifth and row 1 goes, with 5 known
#: tokens. Row 0 ends at 5 s; then both that wait fit.
PREEMPTED = [Arrival(0, 0, 3, 5), Arrival(1, 0, 3, 5, priority=2), Arrival(2, SECOND, 3, 1, priority=1)]


@pytest.mark.parametrize(
    ("order", "planned"),
    [
        ("fcfs", ((1, 5), (2, 3))),  # to the front
        ("shortest_prompt", ((1, 5), (2, 3))),  # equal keys: it kept its turn
        ("priority", ((2, 3), (1, 5))),  # back behind the more urgent one
    ],
)
def test_a_preempted_request_keeps_its_turn(order: str, planned: tuple[tuple[int, int], ...]) -> None:
    result = simulate(paged(order=order, pool_blocks=8, slots=2), PREEMPTED, constant(SECOND))
    assert preempted(result, 2) == [1]
    assert result.steps[5].start_ns == 5 * SECOND
    assert result.steps[5].planned == planned


@pytest.mark.parametrize(
    ("victim", "row", "planned"),
    [
        ("last", 2, ((0, 1), (1, 1))),
        ("least_computed", 0, ((1, 1), (2, 1))),  # the row that needs the block: the loop goes on after it
        ("largest", 1, ((0, 1), (2, 1))),
        ("lowest_priority", 1, ((0, 1), (2, 1))),
    ],
)
def test_victims(victim: str, row: int, planned: tuple[tuple[int, int], ...]) -> None:
    """Pool of 13. At 2 s the rows hold 3, 6 and 4 blocks, all full, and row 0 needs one."""
    requests = [Arrival(0, 0, 2, 9, priority=1), Arrival(1, 0, 5, 9, priority=3), Arrival(2, 0, 3, 9, priority=2)]
    result = simulate(paged(pool_blocks=13, victim=victim), requests, constant(SECOND))
    assert preempted(result, 2) == [row]
    assert result.steps[2].planned == planned
    assert result.requests[row].recomputed_tokens >= [3, 6, 4][row]


@pytest.mark.parametrize("victim", ["last", "least_computed", "largest", "lowest_priority"])
def test_of_equal_victims_the_later_goes(victim: str) -> None:
    """Pool of 12: at 2 s each row holds 4 blocks and row 0 needs one."""
    requests = [Arrival(row, 0, 3, 9) for row in range(3)]
    result = simulate(paged(pool_blocks=12, victim=victim), requests, constant(SECOND))
    assert preempted(result, 2) == [2]


def test_a_victim_that_was_planned_is_not() -> None:
    """Pool of 11, the largest goes. At 2 s row 0 grows from 7 blocks to 8, the last; row 1 needs one more.

    Row 0 gives back 8 and has lost 7 entries; the one that was planned had not been computed. Taken: its block and
    row 1's.
    """
    result = simulate(
        paged(pool_blocks=11, victim="largest"), [Arrival(0, 0, 6, 6), Arrival(1, 0, 2, 6)], constant(SECOND)
    )
    step = result.steps[2]
    assert preempted(result, 2) == [0]
    assert step.planned == ((1, 1),)
    assert (step.plan["blocks_taken"], step.plan["blocks_freed"], step.allocated_blocks) == (2, 8, 4)
    assert result.requests[0].recomputed_tokens == 7


def test_a_withdrawn_plan_gives_its_tokens_back() -> None:
    """Pool of 9, budget 4, the largest goes; admission by the first chunk.

    0 s: row 0 computes 4. 1 s: row 0 one, row 1 two, row 2 (of 7) one. 2 s: row 0 takes the ninth block, row 1 needs
    one: row 0 goes. Row 1 has 1 of 4 tokens, so row 2 gets 3, not 2.
    """
    requests = [Arrival(0, 0, 4, 6), Arrival(1, SECOND, 2, 4), Arrival(2, SECOND, 7, 1)]
    config = paged(pool_blocks=9, token_budget=4, slots=3, victim="largest", admission="first_chunk")
    result = simulate(config, requests, constant(SECOND))
    assert [step.planned for step in result.steps[:3]] == [((0, 4),), ((0, 1), (1, 2), (2, 1)), ((1, 1), (2, 3))]
    assert preempted(result, 2) == [0]


def test_victims_may_be_several() -> None:
    """Pool of 12, budget 10, the least computed go. At 1 s rows 0 and 1 have grown to 3 blocks: nothing is free.

    Row 2, with 6 of 10 tokens, needs 4 blocks. Rows 0 and 1 have computed 2 each: the later goes first and frees 3, so
    the other goes, too. Both were planned; row 2 runs alone.
    """
    requests = [Arrival(0, 0, 2, 5), Arrival(1, 0, 2, 5), Arrival(2, 0, 10, 1)]
    config = paged(pool_blocks=12, token_budget=10, slots=3, victim="least_computed", admission="first_chunk")
    result = simulate(config, requests, constant(SECOND))
    assert [step.planned for step in result.steps[:2]] == [((0, 2), (1, 2), (2, 6)), ((2, 4),)]
    assert preempted(result, 1) == [1, 0]
    # Back at the front in the order of their turns, since the one that went last stands first.
    assert result.steps[2].planned == ((0, 3), (1, 3))

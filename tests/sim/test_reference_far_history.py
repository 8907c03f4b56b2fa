"""The reference's far history against small cases by hand: blocks of two tokens unless said otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.strategies import constant

SECOND = 1_000_000_000


def forgetting(**changes: object) -> ReferenceConfig:
    """Paged, one near block and no summary, a stack, whole prompts in one step, table reads; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=1000, pool_blocks=100, block_size_tokens=2, placement="lifo", slots=8,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live", near_blocks=1,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def run(config: ReferenceConfig, *requests: tuple[int, int]) -> ReferenceResult:
    """Requests of (prompt, output) that arrive at 0, steps of one second, tables kept."""
    arrivals = [Arrival(row, 0, prompt, output) for row, (prompt, output) in enumerate(requests)]
    return simulate(config, arrivals, constant(SECOND), tables=True)


def tables(result: ReferenceResult, row: int) -> list[tuple[int, ...]]:
    """The blocks of a row in each step in which it runs."""
    return [t.blocks for step in result.steps for t in (step.tables or {}).values() if t.row == row]


def dropped(result: ReferenceResult, row: int) -> list[int]:
    """Blocks that a row has dropped, in each step in which it runs."""
    return [t.dropped for step in result.steps for t in (step.tables or {}).values() if t.row == row]


def planned(result: ReferenceResult, name: str) -> list[int]:
    """An integer of the plan, by step."""
    return [step.plan[name] for step in result.steps]


def test_a_decoding_row_drops_before_it_takes() -> None:
    """One near block. Entries 2, 4 and 6 begin a block: what is dropped is on top of the stack and taken again."""
    result = run(forgetting(), (2, 6))
    assert tables(result, 0) == [(1,)] * 6
    assert dropped(result, 0) == [0, 1, 1, 2, 2, 3]
    assert planned(result, "read_tokens") == [0, 3 - 2, 4 - 2, 5 - 4, 6 - 4, 7 - 6]
    assert planned(result, "blocks_taken") == [1, 1, 0, 1, 0, 1]
    assert planned(result, "blocks_freed") == [0, 1, 0, 1, 0, 1]
    assert [step.used_tokens for step in result.steps] == [0, 2 - 2, 3 - 2, 4 - 4, 5 - 4, 6 - 6]
    assert [step.allocated_blocks for step in result.steps] == [1] * 6


@pytest.mark.parametrize(
    ("placement", "lists"),
    [("lifo", [(1, 2, 3), (1, 3, 2), (1, 2, 3), (1, 3, 2)]), ("fifo", [(1, 2, 3), (1, 3, 4), (1, 4, 5), (1, 5, 6)])],
)
def test_the_first_s_and_the_last_n_stay(placement: str, lists: list[tuple[int, ...]]) -> None:
    """One summary, two near blocks: the second of the list goes at entries 6, 8 and 10."""
    result = run(forgetting(near_blocks=2, summary_blocks=1, placement=placement), (5, 8))
    first, second, third, fourth = lists
    assert tables(result, 0) == [first, first, second, second, third, third, fourth, fourth]
    assert dropped(result, 0) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert planned(result, "read_tokens") == [0, 6, 7 - 2, 8 - 2, 9 - 4, 10 - 4, 11 - 6, 12 - 6]


@pytest.mark.parametrize(
    ("summary_blocks", "near_blocks", "lists"),
    [
        (1, 1, [(1, 2), (1, 2), (1, 2), (1, 2)]),  # the list ends in the summary: the block after it is free again
        # 3, the next wholly free extent; 4 goes on in it; 1: the extent of 1 and 2 became wholly free last.
        (0, 2, [(1, 2), (2, 3), (3, 4), (4, 1)]),
    ],
)
def test_growth_goes_on_after_what_the_drop_leaves(
    summary_blocks: int, near_blocks: int, lists: list[tuple[int, ...]]
) -> None:
    config = forgetting(
        placement="extent", extent_blocks=2, block_size_tokens=1, summary_blocks=summary_blocks, near_blocks=near_blocks
    )
    assert tables(run(config, (2, 4)), 0) == lists


def test_a_prefill_row_drops_at_the_ends_of_chunks() -> None:
    """One summary, one near block, chunks of 4, 4, 4 and 1 tokens, then two tokens more.

    The second chunk ends with 4 blocks: 2, then 3 are dropped, so the third takes 3, then 2. It drops 4 and 3. The
    last chunk takes 3 and drops 2. What the end of a step drops counts in the next step's `blocks_freed`.
    """
    config = forgetting(summary_blocks=1, token_budget=4, slots=4, admission="first_chunk")
    result = run(config, (13, 3))
    assert tables(result, 0) == [(1, 2), (1, 2, 3, 4), (1, 4, 3, 2), (1, 2, 3), (1, 3), (1, 3)]
    assert dropped(result, 0) == [0, 0, 2, 4, 5, 6]
    assert planned(result, "blocks_taken") == [2, 2, 2, 1, 0, 1]
    assert planned(result, "blocks_freed") == [0, 0, 2, 2, 1, 1]
    assert planned(result, "prefill_read_tokens") == [4, 8, 8 - 4 + 4, 12 - 8 + 1, 0, 0]
    assert planned(result, "prefill_pairs") == [10, 4 * 4 + 10, 4 * (8 - 4) + 10, 1 * (12 - 8) + 1, 0, 0]
    assert planned(result, "read_tokens") == [0, 0, 0, 0, 14 - 10, 15 - 12]
    assert [step.used_tokens for step in result.steps] == [0, 4, 8 - 4, 12 - 8, 13 - 10, 14 - 12]
    # A drop is the release of one block: there is nothing to sort.
    assert run(replace(config, release_order="sorted"), (13, 3)) == result
    # At once what it holds at most: S + N and the blocks of a chunk. From the second step on nothing differs.
    ahead = run(replace(config, admission="full_prompt"), (13, 3))
    assert planned(ahead, "blocks_taken") == [4, 0, 2, 1, 0, 1]
    assert [step.allocated_blocks for step in ahead.steps] == [4, 4, 4, 3, 2, 2]
    assert ahead.steps[2:] == result.steps[2:]


def test_a_chunk_that_ends_inside_a_block() -> None:
    """Chunks of 3 end with 3, 6, 9 and 12 entries; after them 3, 4, 3 and 4 are left in two blocks."""
    result = run(forgetting(summary_blocks=1, token_budget=3, slots=3, admission="first_chunk"), (12, 2))
    assert dropped(result, 0) == [0, 0, 1, 3, 5]
    assert [step.allocated_blocks for step in result.steps] == [2, 3, 4, 3, 2]
    assert planned(result, "prefill_read_tokens") == [3, 3 + 3, 4 + 3, 3 + 3, 0]
    assert planned(result, "prefill_pairs") == [6, 3 * 3 + 6, 3 * 4 + 6, 3 * 3 + 6, 0]
    # The last chunk dropped to 12 - 8 = 4; entry 12 begins a block.
    assert planned(result, "read_tokens") == [0, 0, 0, 0, 13 - 10]


def test_separate_holds_the_whole_prompt_for_a_step() -> None:
    """Seven blocks; at the step's end 2 to 6 go. Entry 14 drops 7 and takes it again."""
    result = run(forgetting(prefill="separate", summary_blocks=1), (13, 3))
    assert tables(result, 0) == [(1, 2, 3, 4, 5, 6, 7), (1, 7), (1, 7)]
    assert dropped(result, 0) == [0, 5, 6]
    assert planned(result, "blocks_freed") == [0, 5, 1]
    assert planned(result, "read_tokens") == [0, 14 - 10, 15 - 12]
    assert planned(result, "prefill_pairs") == [13 * 14 // 2, 0, 0]


def test_with_none_the_middle_never_exists() -> None:
    """13 tokens are known, in 7 blocks: 2 are taken, none is freed; 12 are computed, 2 of them left."""
    result = run(forgetting(prefill="none", summary_blocks=1), (13, 3), (3, 1))
    assert tables(result, 0) == [(1, 2)] * 3
    assert dropped(result, 0) == [5, 5, 6]
    assert planned(result, "blocks_taken") == [2 + 2, 0, 1]
    assert planned(result, "blocks_freed") == [0, 2, 1]
    assert planned(result, "read_tokens") == [13 - 10 + 3, 14 - 10, 15 - 12]
    assert result.steps[0].used_tokens == 12 - 10 + 2
    # Three tokens are two blocks, all that a row keeps.
    assert (tables(result, 1), dropped(result, 1)) == ([(3, 4)], [0])


def test_drops_come_before_finishes() -> None:
    """One-token blocks. Row 0 drops 1 and 2, row 1 drops 4 and 5, then row 0 ends and releases 3.

    At 1 s row 2 takes them, the last released first.
    """
    config = forgetting(prefill="separate", block_size_tokens=1)
    arrivals = [Arrival(0, 0, 3, 1), Arrival(1, 0, 3, 9), Arrival(2, SECOND, 5, 1)]
    result = simulate(config, arrivals, constant(SECOND), tables=True)
    assert tables(result, 2)[0] == (3, 5, 4, 2, 1)
    assert result.steps[1].plan["blocks_freed"] == 5


def test_drops_come_in_the_order_of_the_plan() -> None:
    """One-token blocks, six tokens a step. At 1 s row 2 gets batch row 0, and stands after row 1 in the plan.

    0 s: row 0 takes 1, row 1 takes 2 to 8, drops 2 to 5; row 0 gives back 1. 1 s: row 1 takes 1 and 5 (it holds 6, 7,
    8, 1, 5), row 2 takes 4 and 3. Row 1 drops 6, 7, 8, 1, then row 2 drops 4; row 1 ends and gives back 5. 2 s: row 2
    drops 3 and takes it, row 3 takes the rest.
    """
    config = forgetting(block_size_tokens=1, token_budget=6, slots=2)
    result = run(config, (1, 1), (9, 1), (2, 2), (6, 1))
    assert result.steps[1].planned == ((1, 4), (2, 2))
    assert sorted(result.steps[1].tables or {}) == [0, 1]
    assert (result.steps[1].tables or {})[0].row == 2
    assert tables(result, 3)[0] == (5, 4, 1, 8, 7, 6)


@pytest.mark.parametrize(("placement", "merged"), [("lifo", [0, 1, 1, 1, 1]), ("fifo", [0, 1, 2, 1, 2])])
def test_staging_moves_what_is_left_and_runs_go_across_the_gap(placement: str, merged: list[int]) -> None:
    """One summary, one near block. In the step that begins a block only the summary is history.

    The stack gives 2 again: 1 2 is one run although blocks are missing between them. The queue gives 3, then 4.
    """
    config = forgetting(summary_blocks=1, placement=placement, read_what="staged", layers=3)
    result = run(config, (4, 5))
    assert dropped(result, 0) == [0, 1, 1, 2, 2]
    assert planned(result, "groups") == merged
    assert planned(result, "moved_blocks") == [0, 1, 2, 1, 2]
    assert planned(result, "needed_tokens") == [0, 4 - 2, 5 - 2, 6 - 4, 7 - 4]
    assert planned(result, "segments") == [3 * groups for groups in merged]
    assert planned(run(replace(config, merge="none"), (4, 5)), "groups") == [0, 1, 2, 1, 2]


@pytest.mark.parametrize(("context", "kinds"), [(4, [1, 1, 1]), (3, [0, 0, 0]), (13, [1, 1, 1])])
def test_the_captured_context_is_that_of_what_a_row_keeps(context: int, kinds: list[int]) -> None:
    """Contexts of 13, 14 and 15 in two blocks. Three tokens are left at 13 and 15; still four have to be captured."""
    config = forgetting(
        prefill="none", summary_blocks=1, launch="graph", batch_sizes=(1,), context_buckets_tokens=(context,)
    )
    result = run(config, (13, 3))
    assert planned(result, "launch_kind") == kinds
    assert [step.off_ladder for step in result.steps] == [kind == 0 for kind in kinds]
    assert planned(result, "read_tokens") == [3, 4, 3]
    bucket = run(replace(config, read_extent="bucket"), (13, 3))
    assert planned(bucket, "read_tokens") == ([context] * 3 if kinds[0] else [3, 4, 3])


def test_below_what_a_row_keeps_the_captured_context_is_its_own() -> None:
    """Three blocks, so six tokens at most; contexts of 4, 5, 6, 7 and 8, of which four are captured."""
    config = forgetting(prefill="none", near_blocks=3, launch="graph", batch_sizes=(1,), context_buckets_tokens=(4, 6))
    assert planned(run(config, (4, 5)), "context_bucket") == [4, 6, 6, 6, 6]


@pytest.mark.parametrize(
    ("prefill", "request_", "most"),
    [
        ("chunked", (40, 21), 3 + 4),  # S + N, and 7 tokens are 4 blocks
        ("none", (40, 21), 3),
        ("separate", (40, 21), 30),  # 60 entries
        ("chunked", (3, 2), 2),  # 4 entries
        ("none", (3, 2), 2),
    ],
)
def test_what_a_row_holds_at_most_decides_whether_it_can_be_served(
    prefill: str, request_: tuple[int, int], most: int
) -> None:
    budget = 7 if prefill == "chunked" else 2048
    config = forgetting(
        prefill=prefill, near_blocks=2, summary_blocks=1, token_budget=budget, slots=2, pool_blocks=most
    )
    (served,) = run(config, request_).requests
    assert (served.outcome, served.preemptions) == ("completed", 0)
    (rejected,) = run(replace(config, pool_blocks=most - 1), request_).requests
    assert (rejected.outcome, rejected.reason) == ("rejected", "unservable")


def test_in_a_full_pool_a_row_beyond_its_window_needs_no_free_block() -> None:
    """Two rows of three blocks fill the pool of six and go on for 30 tokens each."""
    result = run(forgetting(prefill="none", near_blocks=2, summary_blocks=1, pool_blocks=6), (9, 30), (9, 30))
    assert [step.allocated_blocks for step in result.steps] == [6] * 30
    assert [r.preemptions for r in result.requests] == [0, 0]
    # Without: 38 entries are 19 blocks.
    plain = run(forgetting(prefill="none", near_blocks=0, pool_blocks=6), (9, 30))
    assert plain.requests[0].reason == "unservable"


def test_a_row_inside_its_window_still_preempts() -> None:
    """One-token blocks, two near ones, pool of three; the less urgent row goes.

    0 s: row 0 knows 5 and holds 1 and 2. 1 s: it slides; row 1 takes 3. 2 s: row 0 slides once more, the pool is full;
    row 1 needs its second block, so row 0 goes: 6 computed are lost, not the 1 that is left. Freed: one dropped, two
    released; taken: row 0's, withdrawn with it, and row 1's. 6 s: row 0 is back, with 7 known.
    """
    config = forgetting(prefill="none", block_size_tokens=1, near_blocks=2, pool_blocks=3, victim="lowest_priority")
    arrivals = [Arrival(0, 0, 5, 6, priority=1), Arrival(1, SECOND, 1, 5, priority=0)]
    result = simulate(config, arrivals, constant(SECOND), tables=True)
    step = result.steps[2]
    assert step.planned == ((1, 1),)
    assert (step.plan["blocks_taken"], step.plan["blocks_freed"]) == (2, 3)
    assert [(r.preemptions, r.recomputed_tokens) for r in result.requests] == [(1, 6), (0, 0)]
    assert result.steps[6].start_ns == 6 * SECOND
    assert dropped(result, 0)[:3] == [3, 4, 7 - 2]


def test_a_preempted_row_begins_with_nothing_dropped() -> None:
    """One-token blocks, four near ones, pool of 9, three tokens a step: row 0 decodes, row 1 gets two.

    The rows hold 1 + 2, 2 + 4, 3 + 6 blocks; then row 1 drops two. At 3 s row 0 takes its fourth, one is free, and row
    1 needs two: it goes with 6 computed, and starts again at 4 s. Freed at 3 s: the two dropped and the four left.
    """
    config = forgetting(
        block_size_tokens=1, near_blocks=4, pool_blocks=9, token_budget=3, slots=2, admission="first_chunk"
    )
    result = run(config, (1, 6), (12, 1))
    assert [step.planned for step in result.steps[2:5]] == [((0, 1), (1, 2)), ((0, 1),), ((0, 1), (1, 2))]
    assert result.steps[3].plan["blocks_freed"] == 6
    assert [(r.preemptions, r.recomputed_tokens) for r in result.requests] == [(0, 0), (1, 6)]
    assert dropped(result, 1) == [0, 0, 0, 0, 0, 0, 3, 6]
    assert [len(blocks) for blocks in tables(result, 1)] == [2, 4, 6, 2, 4, 7, 7, 6]
    assert [step.plan["prefill_read_tokens"] for step in result.steps[4:]] == [2, 4, 7, 7 - 3 + 3, 10 - 6 + 2]


def test_the_largest_victim_is_the_one_that_holds_most() -> None:
    """Row 0 has computed most but keeps two blocks; of equal ones the later, row 2, goes when row 1 needs its second.

    One-token blocks, two near ones, pool of five: at 0 s 2 + 1 + 2 blocks.
    """
    config = forgetting(prefill="none", block_size_tokens=1, near_blocks=2, pool_blocks=5, victim="largest", slots=3)
    result = run(config, (9, 3), (1, 3), (2, 3))
    assert [step.planned for step in result.steps[:2]] == [((0, 1), (1, 1), (2, 1)), ((0, 1), (1, 1))]
    assert [r.preemptions for r in result.requests] == [0, 0, 1]

"""The reference's packed staging against small cases by hand: blocks of two tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.strategies import constant

SECOND = 1_000_000_000
TRANSPORT = ("groups", "moved_blocks", "needed_tokens", "segments", "rounds")


def packed(blocks: int = 100, **changes: object) -> ReferenceConfig:
    """Paged, a stack, whole prompts in one step, eager, packed staging of ``blocks`` blocks; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=1000, pool_blocks=100, block_size_tokens=2, placement="lifo", slots=4,
        prefill="chunked", token_budget=1000, read_what="staged", read_extent="live", layers=3, packed_blocks=blocks,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def run(config: ReferenceConfig, *requests: tuple[int, int], at: tuple[int, ...] = ()) -> ReferenceResult:
    """Requests of (prompt, output) that arrive at 0, or at so many seconds; steps of one second."""
    seconds = at or (0,) * len(requests)
    arrivals = [
        Arrival(row, second * SECOND, prompt, output)
        for row, (second, (prompt, output)) in enumerate(zip(seconds, requests, strict=True))
    ]
    return simulate(config, arrivals, constant(SECOND))


def planned(result: ReferenceResult, name: str) -> list[int]:
    """An integer of the plan, by step."""
    return [step.plan[name] for step in result.steps]


def off_ladder(result: ReferenceResult) -> list[int]:
    """The steps that were off the ladder."""
    return [number for number, step in enumerate(result.steps) if step.off_ladder]


def strided(config: ReferenceConfig) -> ReferenceConfig:
    """The same with a staging row for each."""
    return replace(config, packed_blocks=0)


def test_the_end_of_a_row_and_the_beginning_of_the_next_are_one_group() -> None:
    """Histories 1 2 | 3 4, one group; then 1 2 5 | 3 4 6 twice: 5 and 3 do not follow each other, so four."""
    result = run(packed(), (4, 4), (4, 4))
    assert planned(result, "groups") == [0, 1, 4, 4]
    assert planned(result, "moved_blocks") == [0, 4, 6, 6]
    assert planned(result, "needed_tokens") == [0, 8, 10, 12]
    assert planned(result, "segments") == [0, 3, 12, 12]
    assert planned(result, "rounds") == [0, 1, 1, 1]
    assert planned(run(strided(packed()), (4, 4), (4, 4)), "groups") == [0, 2, 4, 4]


def test_a_group_goes_over_many_rows_from_whole_block_to_whole_block() -> None:
    """Histories 1 2 | 3 | 4 5 of 3, 1 and 3 entries: each begins at the next whole block, so all are one group."""
    result = run(packed(), (3, 2), (1, 2), (3, 2))
    assert planned(result, "groups") == [0, 1]
    assert planned(result, "moved_blocks") == [0, 5]
    assert planned(result, "needed_tokens") == [0, 7]
    assert planned(run(strided(packed()), (3, 2), (1, 2), (3, 2)), "groups") == [0, 3]


@pytest.mark.parametrize(("placement", "groups"), [("lifo", [0, 2, 1]), ("fifo", [0, 2, 4])])
def test_rows_with_a_gap_between_them_are_not_merged(placement: str, groups: list[int]) -> None:
    """Row 1 ends with the prompts and leaves the hole 3: 1 2 | 4 5, two groups.

    The stack gives 3 to row 0: 1 2 3 | 4 5 6 is one group in the next step. The queue gives 6: 1 2 6 | 4 5 7, four.
    """
    config = packed(placement=placement)
    assert planned(run(config, (4, 3), (2, 1), (4, 3)), "groups") == groups


def test_rows_are_merged_in_the_order_of_running_not_of_their_batch_rows() -> None:
    """Slots and blocks of the lowest; X is in batch row 0 with block 1, A in row 1 with 2 3, and X ends at 1 s.

    B comes in as batch row 0 and takes 4, since A takes 1 before it. Running is A, B: 2 3 | 4 is one group of three
    blocks; by batch rows it would be 4 | 2 3. Then A's history is 2 3 1, and B's is 4 5: three groups.
    """
    config = packed(placement="lowest", prefill="none")
    result = run(config, (2, 1), (4, 3), (3, 3), at=(0, 0, 1))
    assert planned(result, "moved_blocks") == [1 + 2, 2 + 1, 3 + 2, 2]
    assert planned(result, "groups") == [1, 1, 3, 1]


def test_a_row_without_history_takes_no_place_between_two_others() -> None:
    """With `none` a prompt of one token begins without history.

    X holds 1, A 2 3, of which 2 is history: one group. X ends; B takes 1 and C 4 5. Histories of A, B, C are
    2 3 | - | 4: one group of three blocks. Then 2 3 | 1 | 4 5: three groups.
    """
    config = packed(placement="lowest", prefill="none")
    result = run(config, (2, 1), (3, 3), (1, 2), (3, 2), at=(0, 0, 1, 1))
    assert planned(result, "groups") == [1, 1, 3]
    assert planned(result, "moved_blocks") == [2, 3, 5]
    assert planned(result, "needed_tokens") == [1 + 2, 3 + 0 + 2, 4 + 1 + 3]


def test_without_merging_each_block_is_a_group() -> None:
    """1 2 | 3 4, then 1 2 5 | 3 4 6 twice: as with a staging row for each."""
    config = packed(merge="none", layout="block_major")
    assert planned(run(config, (4, 4), (4, 4)), "groups") == [0, 4, 6, 6]
    assert planned(run(config, (4, 4), (4, 4)), "segments") == [0, 12, 18, 18]
    assert run(config, (4, 4), (4, 4)) == run(strided(config), (4, 4), (4, 4))


@pytest.mark.parametrize(("blocks", "rounds"), [(100, [0, 1, 4, 4]), (0, [0, 2, 4, 4])])
def test_rounds_are_of_groups_across_rows(blocks: int, rounds: list[int]) -> None:
    """Model scope, one group a round, and a segment for each: one for 1 2 | 3 4 if packed."""
    config = packed(blocks, scope="model", group_capacities=(1,), layout="block_major")
    result = run(config, (4, 4), (4, 4))
    assert planned(result, "rounds") == rounds
    assert planned(result, "segments") == rounds


@pytest.mark.parametrize(("blocks", "kinds"), [(100, [0, 1, 0, 0]), (0, [0, 0, 0, 0])])
def test_the_capacity_of_a_graph_is_of_groups_across_rows(blocks: int, kinds: list[int]) -> None:
    """Layer scope, one group at most: 1 2 | 3 4 is one only if packed. Then there are four either way."""
    config = packed(blocks, launch="graph", batch_sizes=(2,), context_buckets_tokens=(64,), group_capacities=(1,))
    assert planned(run(config, (4, 4), (4, 4)), "launch_kind") == kinds


@pytest.mark.parametrize(("launch", "kinds"), [("eager", [0] * 6), ("graph", [0, 1, 0, 0, 1, 1])])
@pytest.mark.parametrize("merge", ["none", "adjacent"])
def test_what_does_not_fit_is_not_gathered_and_what_fits_again_is(launch: str, kinds: list[int], merge: str) -> None:
    """C = 4. Histories of 2 + 2 blocks fit, 3 + 3 twice do not; row 1 ends, and row 0 has 4 twice.

    Contexts are 5, 6, 7 and then 8 and 9 alone. Two rows run eagerly on two rows, not on the captured four.
    """
    ladders = {"batch_sizes": (4,), "context_buckets_tokens": (64,)} if launch == "graph" else {}
    result = run(packed(4, launch=launch, merge=merge, **ladders), (4, 6), (4, 4))
    assert planned(result, "moved_blocks") == [0, 4, 0, 0, 4, 4]
    assert off_ladder(result) == [2, 3]
    assert planned(result, "launch_kind") == kinds
    for step in result.steps[2:4]:
        assert [step.plan[name] for name in TRANSPORT] == [0] * 5
        assert (step.plan["padded_rows"], step.plan["dense_tokens"], step.plan["context_bucket"]) == (2, 2, 0)
    assert planned(result, "read_tokens") == [0, 10, 12, 14, 8, 9]
    assert planned(result, "padded_rows") == [2, *((2, 2, 2, 1, 1) if launch == "eager" else (4, 2, 2, 4, 4))]


def test_a_step_that_does_not_fit_captures_nothing() -> None:
    """C = 3: 2 + 2 blocks do not fit. Row 1 ends; row 0 has 3 twice, and the first of these captures (2, 64)."""
    config = packed(3, launch="graph", batch_sizes=(2,), context_buckets_tokens=(64,), capture="first_use")
    assert planned(run(config, (4, 4), (4, 2)), "captured") == [0, 0, 1, 0]
    assert planned(run(strided(config), (4, 4), (4, 2)), "captured") == [0, 1, 0, 0]


@pytest.mark.parametrize(("blocks", "moves"), [(0, [0, 0, 1, 0, 0]), (3, [0, 0, 1, 0, 0]), (2, [0, 0, 0, 0, 0])])
def test_a_step_that_does_not_fit_moves_no_rows(blocks: int, moves: list[int]) -> None:
    """Row 0 ends at 2 s, and row 1 moves to its place when a graph of one row serves it: with 3, 3 and 4 blocks."""
    config = packed(blocks, launch="graph", batch_sizes=(1, 2), context_buckets_tokens=(64,))
    assert [step.row_moves for step in run(config, (4, 2), (4, 5)).steps] == moves


def test_a_mixed_step_stages_nothing_and_fits() -> None:
    """C = 1. At 1 s row 0 decodes beside a prompt, with two blocks; then it has three alone, twice: too many."""
    result = run(packed(1), (4, 4), (4, 1), at=(0, 1))
    assert planned(result, "prefill_rows") == [1, 1, 0, 0]
    assert off_ladder(result) == [2, 3]
    assert planned(result, "moved_blocks") == [0] * 4


def test_of_far_history_what_is_left_has_to_fit() -> None:
    """One summary, one near block: 1 | 3 and 1 2 | 3 4 by turns, since in every other step the near one is new.

    2 begins no run of 3 while it is not history. With C = 3 every other step does not fit.
    """
    config = packed(near_blocks=1, summary_blocks=1)
    result = run(config, (4, 5), (4, 5))
    assert planned(result, "groups") == [0, 2, 1, 2, 1]
    assert planned(result, "moved_blocks") == [0, 2, 4, 2, 4]
    assert planned(result, "needed_tokens") == [0, 4, 6, 4, 6]
    assert planned(run(strided(config), (4, 5), (4, 5)), "groups") == [0, 2, 2, 2, 2]
    small = run(replace(config, packed_blocks=3), (4, 5), (4, 5))
    assert planned(small, "moved_blocks") == [0, 2, 0, 2, 0]
    assert off_ladder(small) == [2, 4]
    assert planned(small, "read_tokens") == planned(result, "read_tokens") == [0, 6, 8, 6, 8]


def test_blocks_that_are_taken_for_drafts_need_not_fit() -> None:
    """C = 2, two drafts, never right. The row holds 4 blocks for 7 tokens, of which 2 are history; then 3 are."""
    result = run(packed(2, draft_tokens=2), (4, 4))
    assert planned(result, "drafted_tokens") == [0, 2, 2, 2]
    assert planned(result, "moved_blocks") == [0, 2, 0, 0]
    assert off_ladder(result) == [2, 3]
    assert planned(result, "dense_tokens") == [4, 3, 3, 3]
    assert planned(result, "read_tokens") == [0, 7, 8, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"read_what": "table"}, "nothing is packed that is not staged"),
        ({"read_extent": "bucket"}, "packed staging has no extents"),
        ({"staging": "delta", "scope": "model"}, "nothing stays where it was"),
        ({"packed_blocks": -1}, "packed staging of -1 blocks"),
    ],
)
def test_what_packed_staging_does_not_go_with_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        packed(**changes)

"""The reference's speculation against small cases by hand: blocks of one token, steps of one second."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.reference_records import Request
from tests.sim.reference_speculation import accepted_tokens, is_accepted
from tests.sim.strategies import constant

SECOND = 1_000_000_000

#: The first draws of a generator that counts in steps of 0x9E3779B97F4A7C15 from 0, as fractions.
DRAWS = (0.88331, 0.43153, 0.02643, 0.97088, 0.10634)


def paged(**changes: object) -> ReferenceConfig:
    """Paged on 20 blocks, eager, three drafts that are all wrong; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=1000, pool_blocks=20, block_size_tokens=1, placement="lifo", slots=4,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live",
        draft_tokens=3, acceptance=0.0,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def run(config: ReferenceConfig, *requests: tuple[int, int]) -> ReferenceResult:
    """Requests of (prompt, output) that all arrive at 0."""
    arrivals = [Arrival(row, 0, prompt, output) for row, (prompt, output) in enumerate(requests)]
    return simulate(config, arrivals, constant(SECOND), tables=True)


def planned(result: ReferenceResult, name: str) -> list[int]:
    """An integer of the plan, by step."""
    return [step.plan[name] for step in result.steps]


def tables(result: ReferenceResult, step: int) -> dict[int, list[int]]:
    """The blocks of each running request in a step."""
    return {table.row: list(table.blocks) for table in (result.steps[step].tables or {}).values()}


def finishes(result: ReferenceResult) -> list[float]:
    return [(r.finish_ns or 0) / SECOND for r in result.requests]


def test_a_row_delivers_its_token_and_the_drafts_that_are_right() -> None:
    """4 + 8, all drafts right: 1 token at 1 s, 4 at 2 s and, of 4, the last 3 at 3 s. 11 entries are written.

    The second step computes entries 5 to 8 and takes 4 blocks, the third 9 to 12, of which the last is given back.
    """
    result = run(paged(acceptance=1.0), (4, 8))
    assert result.itl_ns == [SECOND, 0, 0, 0, SECOND, 0, 0]
    assert finishes(result) == [3.0]
    assert result.requests[0].delivered == 8
    assert result.accepted_tokens == 3 + 2
    assert planned(result, "drafted_tokens") == [0, 3, 3]
    assert planned(result, "sampled_rows") == [1, 4, 4]
    assert planned(result, "dense_tokens") == [4, 4, 4]
    assert planned(result, "padded_rows") == [1, 1, 1]
    assert planned(result, "decode_rows") == [0, 1, 1]
    assert planned(result, "read_tokens") == [0, 8, 12]
    assert planned(result, "blocks_taken") == [4, 4, 4]
    assert planned(result, "blocks_freed") == [0, 0, 0]
    assert [step.used_tokens for step in result.steps] == [0, 4, 8]
    assert [step.allocated_blocks for step in result.steps] == [4, 8, 12]
    assert result.free_blocks == 20


def test_wrong_drafts_cost_their_computing_and_their_blocks() -> None:
    """A token a step; each takes four blocks and gives three back."""
    result = run(paged(), (4, 3))
    assert (result.itl_ns, result.accepted_tokens) == ([SECOND, SECOND], 0)
    assert planned(result, "drafted_tokens") == [0, 3, 3]
    assert planned(result, "dense_tokens") == [4, 4, 4]
    assert planned(result, "read_tokens") == [0, 8, 9]
    assert planned(result, "blocks_taken") == [4, 4, 4]
    assert planned(result, "blocks_freed") == [0, 0, 3]


def test_without_drafts_nothing_is_drafted() -> None:
    result = run(paged(draft_tokens=0, acceptance=1.0), (4, 3))
    assert planned(result, "drafted_tokens") == [0, 0, 0]
    assert planned(result, "blocks_taken") == [4, 1, 1]
    assert result.accepted_tokens == 0


@pytest.mark.parametrize(
    ("placement", "blocks"), [("lifo", [6, 7, 8, 9]), ("fifo", [9, 10, 11, 12]), ("lowest", [6, 7, 8, 9])]
)
def test_the_last_block_goes_first(placement: str, blocks: list[int]) -> None:
    """8, 7 and 6 are given back: a stack gives 6 next, a queue those that were free before."""
    result = run(paged(placement=placement), (4, 3))
    assert tables(result, 1) == {0: [1, 2, 3, 4, 5, 6, 7, 8]}
    assert tables(result, 2) == {0: [1, 2, 3, 4, 5, *blocks]}


def test_a_sorted_release_is_of_whole_requests_only() -> None:
    """A sorted queue would have 6, 7 and 8 in this order behind 9 and 10; given back last first they are 8, 7 and 6."""
    result = run(paged(placement="fifo", release_order="sorted", pool_blocks=10), (4, 3))
    assert tables(result, 2) == {0: [1, 2, 3, 4, 5, 9, 10, 8, 7]}


def test_rows_give_back_in_order_and_before_anybody_leaves() -> None:
    """Two drafts each. At 2 s 7, 6, then 10, 9 come back; row 1 has ended and leaves 8, 4, 3. Row 0 takes 3, 4, 8."""
    result = run(paged(draft_tokens=2), (2, 3), (2, 2))
    assert tables(result, 1) == {0: [1, 2, 5, 6, 7], 1: [3, 4, 8, 9, 10]}
    assert tables(result, 2) == {0: [1, 2, 5, 3, 4, 8]}
    assert planned(result, "blocks_freed") == [0, 0, 2 + 2 + 3]


def test_what_a_prefill_row_has_taken_ahead_stays() -> None:
    """Row 1 has the blocks of its prompt of 9 and computes 3 a step, beside row 0, which decodes."""
    arrivals = [Arrival(0, 0, 2, 4), Arrival(1, SECOND, 9, 1)]
    result = simulate(paged(token_budget=4), arrivals, constant(SECOND), tables=True)
    assert [len(tables(result, step)[1]) for step in (1, 2, 3)] == [9, 9, 9]
    assert planned(result, "prefill_tokens") == [2, 3, 3, 3]
    assert planned(result, "drafted_tokens") == [0, 3, 3, 3]


def test_drafts_end_at_the_limit() -> None:
    """6 + 4 under a limit of 10: 7, 8 and 9 tokens are known, so 3, 2 and 1 drafts; five were asked for."""
    assert planned(run(paged(limit_tokens=10, draft_tokens=5), (6, 4)), "drafted_tokens") == [0, 3, 2, 1]


def test_drafts_end_at_the_reservation_and_give_nothing_back() -> None:
    """A reservation of 9: 2, 1 and no drafts. With three right ones the row ends at 3 s all the same."""
    config = paged(reserve="oracle", placement="contiguous", read_what="live", draft_tokens=5)
    result = run(config, (6, 4))
    assert planned(result, "drafted_tokens") == [0, 2, 1, 0]
    assert planned(result, "read_tokens") == [0, 9, 9, 9]
    assert planned(result, "blocks_taken") == [9, 0, 0, 0]
    assert planned(result, "blocks_freed") == [0, 0, 0, 0]
    right = run(replace(config, acceptance=1.0), (6, 4))
    assert (finishes(right), right.accepted_tokens) == ([2.0], 2)


def test_a_row_that_is_admitted_drafts_nothing() -> None:
    """`none`: its first step gives one token, the first; then four more."""
    result = run(paged(prefill="none", token_budget=2048, acceptance=1.0), (4, 5))
    assert planned(result, "drafted_tokens") == [0, 3]
    assert planned(result, "decode_rows") == [1, 1]
    assert result.itl_ns == [SECOND, 0, 0, 0]


def test_separate_decode_steps_draft() -> None:
    result = run(paged(prefill="separate", acceptance=1.0), (4, 5), (4, 5))
    assert planned(result, "drafted_tokens") == [0, 6]
    assert result.itl_ns == [SECOND, 0, 0, 0] * 2


def test_the_budget_does_not_count_drafts() -> None:
    """A budget of 4: one for row 0, which verifies three drafts, and three for the prompt of row 1. 7 are computed."""
    arrivals = [Arrival(0, 0, 4, 3), Arrival(1, SECOND, 3, 1)]
    result = simulate(paged(token_budget=4), arrivals, constant(SECOND))
    assert planned(result, "prefill_tokens") == [4, 3, 0]
    assert planned(result, "dense_tokens") == [4, 7, 4]
    assert planned(result, "sampled_rows") == [1, 5, 4]


def test_piecewise_steps_count_drafts() -> None:
    """1 + 3 and 3 tokens are a step of 8; beyond the ladder of 4 it is eager."""
    arrivals = [Arrival(0, 0, 4, 2), Arrival(1, SECOND, 3, 1)]
    config = paged(
        launch="graph", batch_sizes=(4,), context_buckets_tokens=(16,), mixed="piecewise", token_sizes=(4, 8)
    )
    assert planned(simulate(config, arrivals, constant(SECOND)), "dense_tokens") == [4, 8]
    short = simulate(replace(config, token_sizes=(4,)), arrivals, constant(SECOND))
    assert [step.off_ladder for step in short.steps] == [False, True]
    assert planned(short, "dense_tokens") == [4, 7]


def test_a_graph_computes_all_drafts_of_all_its_rows_and_holds_their_contexts() -> None:
    """Two drafts: 5 + 3 entries are read in a context of 8, 6 + 3 in one of 16. A batch of two computes 2 x 3 tokens.

    At a limit of 9 the last step has one draft, and the graph computes as many tokens as ever.
    """
    config = paged(launch="graph", batch_sizes=(2,), context_buckets_tokens=(8, 16), draft_tokens=2)
    result = run(config, (5, 4))
    assert planned(result, "context_bucket") == [0, 8, 16, 16]
    assert planned(result, "dense_tokens") == [5, 6, 6, 6]
    assert planned(result, "padded_rows") == [1, 2, 2, 2]
    limited = run(replace(config, limit_tokens=9), (5, 4))
    assert planned(limited, "drafted_tokens") == [0, 2, 2, 1]
    assert planned(limited, "dense_tokens") == [5, 6, 6, 6]
    bucket = run(replace(config, read_extent="bucket"), (5, 4))
    assert planned(bucket, "read_tokens") == [0, 16, 32, 32]


def test_what_is_read_without_a_graph_counts_drafts_but_for_a_reservation() -> None:
    assert planned(run(paged(read_extent="bucket"), (4, 3)), "read_tokens") == [0, 8, 9]
    whole = paged(
        reserve="max_len", limit_tokens=20, placement="contiguous", read_what="reserved", read_extent="bucket"
    )
    assert planned(run(whole, (4, 3)), "read_tokens") == [0, 20, 20]


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_new_tokens_go_to_the_staging_row_too(acceptance: float) -> None:
    """Blocks of two: a prompt of 4 is staged once, whatever is drafted, accepted and given back later."""
    config = paged(block_size_tokens=2, read_what="staged", scope="model", staging="delta", acceptance=acceptance)
    result = run(config, (4, 9))
    assert sum(planned(result, "moved_blocks")) == planned(result, "moved_blocks")[1] == 2


def test_drafts_push_others_out() -> None:
    """Two of 3 + 3 in 10 blocks: at 1 s row 0 takes the four that are free, and row 1 needs four. It has to go."""
    result = run(paged(pool_blocks=10), (3, 3), (3, 3))
    assert [r.preemptions for r in result.requests] == [0, 1]
    assert tables(result, 1) == {0: [1, 2, 3, 7, 8, 9, 10]}
    assert [r.preemptions for r in run(paged(pool_blocks=10, draft_tokens=0), (3, 3), (3, 3)).requests] == [0, 0]


def test_a_row_that_has_to_go_gives_back_what_it_had_taken_for_drafts() -> None:
    """Row 0 takes four blocks for its drafts; row 1 finds none, and row 0, less urgent, goes with all seven."""
    arrivals = [Arrival(0, 0, 3, 3, priority=1), Arrival(1, 0, 3, 3, priority=0)]
    result = simulate(paged(pool_blocks=10, victim="lowest_priority"), arrivals, constant(SECOND), tables=True)
    assert [r.preemptions for r in result.requests] == [1, 0]
    assert planned(result, "drafted_tokens")[1] == 3
    assert planned(result, "blocks_freed")[1] == 7
    assert tables(result, 1) == {1: [4, 5, 6, 1, 2, 3, 7]}


def test_drafts_that_the_pool_cannot_hold_are_not_made() -> None:
    """5 + 4 in a pool of 9: at 2 s there is room for two drafts besides the token, then for one."""
    result = run(paged(pool_blocks=9), (5, 4))
    assert planned(result, "drafted_tokens") == [0, 3, 2, 1]
    assert result.requests[0].preemptions == 0
    assert finishes(result) == [4.0]


def test_draws_are_those_of_the_generator() -> None:
    """0x9E37… a draw, from 0 on with seed 0. The next seed is no shift of it: its draws are others."""
    for draft in range(1, 6):
        for acceptance, expected in ((DRAWS[draft - 1] + 1e-4, True), (DRAWS[draft - 1] - 1e-4, False)):
            config = paged(draft_tokens=5, acceptance=acceptance)
            assert is_accepted(config, 0, 0, draft) is expected
    by_seed = [
        tuple(is_accepted(paged(draft_tokens=1, acceptance=0.5, seed=seed), 0, 0, draft) for draft in range(1, 65))
        for seed in range(4)
    ]
    for one, other in pairwise(by_seed):
        assert one[1:] != other[:-1]
        assert 16 < sum(a == b for a, b in zip(one, other, strict=True)) < 48


def test_draws_depend_on_the_row_and_on_what_it_has_delivered() -> None:
    """Seed 7, row 3, from C with 64-bit integers: 0x654cdfe14c7c6c8c is the first draw after one token."""
    threshold = (0x654CDFE14C7C6C8C >> 11) * 2.0**-53
    config = paged(seed=7)
    assert not is_accepted(replace(config, acceptance=threshold), 3, 1, 1)
    assert is_accepted(replace(config, acceptance=threshold + 2.0**-53), 3, 1, 1)
    assert threshold == pytest.approx(0.3957, abs=1e-4)


def test_the_first_wrong_draft_ends_them() -> None:
    """At 0.9 the draws 0.88, 0.43, 0.03, 0.97, 0.11 make three right; at 0.5 the first is wrong. Two are to come."""
    r = Request(0, 0, 4, 100, None, drafts=5)
    assert accepted_tokens(paged(acceptance=0.9), r) == 3
    assert accepted_tokens(paged(acceptance=0.5), r) == 0
    r.drafts = 2
    assert accepted_tokens(paged(acceptance=0.9), r) == 2
    r.drafts, r.output = 5, 3
    assert accepted_tokens(paged(acceptance=0.9), r) == 2
    r.output = 1
    assert accepted_tokens(paged(acceptance=0.9), r) == 0


def test_a_run_follows_the_draws() -> None:
    """Seed 7, row 3, three drafts, right below 0.7.

    Draws (from C with 64-bit integers) after 1 token: 0.40, 0.12, 0.32; after 5: 0.91; after 6: 0.53, 0.86;
    after 8: 0.29, 0.07, 0.09. So 4, 1, 2, 4, and then the last one.
    """
    config = paged(seed=7, acceptance=0.7)
    result = simulate(config, [Arrival(3, 0, 2, 13)], constant(SECOND))
    gaps = [1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1]
    assert result.itl_ns == [gap * SECOND for gap in gaps]
    assert result.accepted_tokens == 3 + 0 + 1 + 3


@pytest.mark.parametrize("acceptance", [0.05, 0.3, 0.8])
def test_as_many_drafts_are_right_as_the_acceptance_says(acceptance: float) -> None:
    """Of 20,000 draws, within four standard deviations."""
    config = paged(acceptance=acceptance, seed=3)
    right = sum(
        is_accepted(config, row, delivered, draft)
        for row in range(50)
        for delivered in range(100)
        for draft in range(1, 5)
    )
    assert abs(right - 20_000 * acceptance) < 4 * (20_000 * acceptance * (1 - acceptance)) ** 0.5


def test_a_step_that_does_not_end_accepts_nothing() -> None:
    result = simulate(paged(acceptance=1.0), [Arrival(0, 0, 4, 8)], constant(SECOND), until_ns=2 * SECOND - 1)
    assert (planned(result, "drafted_tokens"), result.accepted_tokens) == ([0, 3], 0)


def test_what_is_refused() -> None:
    with pytest.raises(AssertionError, match="a row with far history drafts nothing"):
        paged(near_blocks=2)
    with pytest.raises(AssertionError, match=r"a chance of 1\.5"):
        paged(acceptance=1.5)
    with pytest.raises(AssertionError, match="drafts are counted"):
        paged(draft_tokens=-1)

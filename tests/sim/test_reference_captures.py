"""The captures of the reference against small cases by hand: blocks of two tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.strategies import constant, random_case

SECOND = 1_000_000_000


def first_use(**changes: object) -> ReferenceConfig:
    """Paged, a stack, whole prompts in one eager step, table reads, graphs captured at first use; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=1000, pool_blocks=100, block_size_tokens=2, placement="lifo", slots=4,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live",
        launch="graph", batch_sizes=(1, 2, 4), context_buckets_tokens=(8, 16), capture="first_use",
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def run(config: ReferenceConfig, *requests: tuple[int, int], apart_ns: int = 0) -> ReferenceResult:
    """Requests of (prompt, output) that arrive ``apart_ns`` after each other, steps of one second."""
    arrivals = [Arrival(row, row * apart_ns, prompt, output) for row, (prompt, output) in enumerate(requests)]
    return simulate(config, arrivals, constant(SECOND))


def planned(result: ReferenceResult, name: str) -> list[int]:
    """An integer of the plan, by step."""
    return [step.plan[name] for step in result.steps]


def test_a_shape_is_captured_by_the_first_step_that_it_serves() -> None:
    """Prefill, then (2, 8); row 0 ends: (1, 8) twice; at context 9 the context alone is new: (1, 16) to the end."""
    result = run(first_use(), (5, 2), (5, 8))
    assert planned(result, "captured") == [0, 1, 1, 0, 1, 0, 0, 0]
    assert planned(run(first_use(capture="warm"), (5, 2), (5, 8)), "captured") == [0] * 8


def test_what_was_captured_serves_all_later_requests() -> None:
    """The second request comes to an idle replica. It is one token longer, in the shape that the first left."""
    assert planned(run(first_use(), (5, 2), (5, 3), apart_ns=20 * SECOND), "captured") == [0, 1, 0, 0, 0]


def test_piecewise_steps_capture_their_token_size() -> None:
    """Prompts of 3 and 4 tokens share the size 4; 5 and 8 the size 8; 9 is beyond the ladder."""
    config = first_use(mixed="piecewise", token_sizes=(4, 8))
    result = run(config, (3, 1), (4, 1), (5, 1), (9, 1), (8, 1), apart_ns=SECOND)
    assert planned(result, "launch_kind") == [2, 2, 2, 0, 2]
    assert planned(result, "captured") == [1, 0, 1, 0, 0]


def test_a_decode_step_and_a_piecewise_one_of_equal_sizes_are_two_shapes() -> None:
    config = first_use(mixed="piecewise", token_sizes=(4,), batch_sizes=(4,), context_buckets_tokens=(4,))
    assert planned(run(config, (3, 2)), "captured") == [1, 1]


def test_steps_that_run_eagerly_capture_nothing() -> None:
    """Two rows are too many for the batch; then one at context 6, which is captured, and at 7, 8 and 9."""
    config = first_use(batch_sizes=(1,), context_buckets_tokens=(6,))
    result = run(config, (4, 2), (4, 6))
    assert [step.off_ladder for step in result.steps] == [False, True, False, True, True, True]
    assert planned(result, "captured") == [0, 0, 1, 0, 0, 0]
    eager = first_use(launch="eager", batch_sizes=(), context_buckets_tokens=())
    assert planned(run(eager, (4, 2), (4, 6)), "captured") == [0] * 6


@pytest.mark.parametrize(
    ("read_what", "scope", "captured", "eager_steps"),
    [
        ("staged", "layer", [0, 1, 0, 0, 1, 0, 0, 0, 0, 0], 3),
        ("staged", "model", [0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 1),
        ("table", "layer", [0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 1),
    ],
)
def test_the_group_capacity_is_part_of_a_shape_at_layer_scope_of_staged_reads(
    read_what: str, scope: str, captured: list[int], eager_steps: int
) -> None:
    """Histories of 2 to 10 entries: 1, 2, 2, 3, 3, 4, 4, 5 and 5 groups; capacities of 2 and 4. Five fit in none."""
    config = first_use(context_buckets_tokens=(64,), read_what=read_what, scope=scope, group_capacities=(2, 4))
    result = run(replace(config, merge="none"), (2, 10))
    assert planned(result, "captured") == captured
    assert planned(result, "launch_kind").count(0) == eager_steps


def test_without_groups_the_smallest_capacity_serves() -> None:
    """With `none` a prompt of one token begins without history. The second step has one group."""
    config = first_use(prefill="none", read_what="staged", group_capacities=(2, 4))
    result = run(config, (1, 2))
    assert planned(result, "groups") == [0, 1]
    assert planned(result, "captured") == [1, 0]


def test_an_unknown_capture_is_refused() -> None:
    with pytest.raises(AssertionError, match="no capture is called 'cold'"):
        first_use(capture="cold")


def test_a_batch_that_is_mostly_padding_runs_eagerly() -> None:
    """C05: three rows, batches 1, 2, 4 and 8: 4/3 is more than 9/8, so eager and off the ladder; two rows fit."""
    config = first_use(slots=8, batch_sizes=(1, 2, 4, 8), max_padding=9 / 8)
    result = run(config, (5, 2), (5, 3), (5, 3))
    assert planned(result, "decode_rows") == [0, 3, 2]
    assert planned(result, "launch_kind") == [0, 0, 1]
    assert [step.off_ladder for step in result.steps] == [False, True, False]
    assert planned(result, "padded_rows") == [3, 3, 2]
    assert planned(result, "captured") == [0, 0, 1]
    assert planned(run(replace(config, max_padding=None), (5, 2), (5, 3), (5, 3)), "padded_rows") == [3, 4, 2]


@pytest.mark.parametrize(("max_padding", "batch"), [(1.0, 3), (1.33, 3), (4 / 3, 4), (2.0, 4), (None, 4)])
def test_padding_up_to_the_bound_is_served(max_padding: float | None, batch: int) -> None:
    """Three rows in a batch of four: 1.33 times three is less than four, 4/3 times three is not."""
    result = run(first_use(max_padding=max_padding), (5, 2), (5, 2), (5, 2))
    assert planned(result, "padded_rows") == [3, batch]
    assert planned(result, "context_bucket") == [0, 8 if batch == 4 else 0]


def test_rows_stay_where_they_are_when_padding_keeps_them_off_the_ladder() -> None:
    """Rows 0 and 1 end: row 2 is in slot 2. One row in a batch of two is within 2; with 1.5 it is not, nor moved."""
    config = first_use(slots=3, batch_sizes=(2, 3), max_padding=2.0)
    requests = ((5, 1), (5, 1), (5, 3))
    assert [step.row_moves for step in run(config, *requests).steps] == [0, 1, 0]
    assert [step.row_moves for step in run(replace(config, max_padding=1.5), *requests).steps] == [0, 0, 0]


def test_padding_bounds_decode_steps_only() -> None:
    """A prompt of three tokens is padded to 16 in a piecewise step."""
    config = first_use(mixed="piecewise", token_sizes=(16,), max_padding=1.0)
    assert planned(run(config, (3, 1)), "dense_tokens") == [16]


def test_a_padding_that_no_batch_has_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"a padding of 0\.9 serves nobody"):
        first_use(max_padding=0.9)


def test_captures_of_random_cases() -> None:
    """The first step of a kind and size captures; nothing else in a replay depends on captures.

    Group capacities are not in the plan: at layer scope each (batch, context) has at most one capture for each.
    """
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(150):
        case = random_case(seed)
        config = case.config
        result = simulate(config, case.arrivals, case.step_cost)
        assert config.capture == "warm" or config.launch == "graph"
        seen[config.launch, config.capture] += 1
        by_shape: Counter[tuple[int, ...]] = Counter()
        served = set()
        for step in result.steps:
            plan = step.plan
            shape = (plan["launch_kind"], plan["context_bucket"], plan["dense_tokens"])
            assert plan["captured"] <= (plan["launch_kind"] != 0)
            if config.capture == "first_use" and plan["launch_kind"] != 0 and shape not in served:
                assert plan["captured"] == 1
            served.add(shape)
            by_shape[shape] += plan["captured"]
        with_capacities = config.read_what == "staged" and config.scope == "layer"
        most = len(config.group_capacities) if with_capacities else 1
        assert max(by_shape.values(), default=0) <= (most if config.capture == "first_use" else 0)
        warm = simulate(replace(config, capture="warm"), case.arrivals, case.step_cost)
        assert [_but_captured(step.plan) for step in warm.steps] == [_but_captured(step.plan) for step in result.steps]
        assert warm.requests == result.requests
    assert min(seen["eager", "warm"], seen["graph", "warm"], seen["graph", "first_use"]) > 30


def _but_captured(plan: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in plan.items() if name != "captured"}

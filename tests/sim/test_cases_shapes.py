"""Captured shapes, static reads and transfers: what padding, ladders and layouts do to a step (cases C, D)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.core_runs import parameters_for, run_core
from tests.sim.reference_records import ReferenceConfig
from tests.sim.small_replays import S, contiguous, core, paged, requests, total


def graphs(batch_sizes: tuple[int, ...], slots: int, **changes: Any) -> ReferenceConfig:
    """Decode only, in captured batches, one captured context."""
    return paged(
        prefill="none", slots=slots, pool_blocks=4 * slots, launch="graph", batch_sizes=batch_sizes,
        context_buckets_tokens=(1 << 20,), **changes,
    )  # fmt: skip


CAPTURE_32 = (1, 2, 4, 8, 16, 24, 32)


@pytest.mark.parametrize(("largest", "settles_at"), [(32, 92), (128, 23)])
def test_a_burst_over_the_largest_captured_batch_can_be_absorbing(largest: int, settles_at: int) -> None:
    """C01: 46 req/s, 100 tokens each, 5 ms a step up to 32 rows, else 20: after +20 it stays at 92, or goes to 23."""
    sizes = (*CAPTURE_32, *range(40, largest + 1, 8))
    config = graphs(sizes, slots=128)
    every = S // 46
    rows = sorted([(n * every, 1, 100) for n in range(46 * 60)] + [(20 * S, 1, 100)] * 20)
    costs = {"host_step_ns": 5e6, "first_launch_ns": 15e6}  # what an eager step pays on top
    run = run_core(parameters_for(config, costs, check=0, pool_sample_ns=1 << 60, window_ns=S), requests(*rows))
    running = [int(window["running"]) for part in run.windows for window in part]
    assert all(abs(n - 23) <= 2 for n in running[5:19]), "before the burst"
    assert all(abs(n - settles_at) <= 3 for n in running[45:59]), "long after it"


@pytest.mark.core
def test_the_largest_batches_run_off_a_ladder_that_ends_below_the_slots() -> None:
    """C02: sizes to 96, 100 slots: 97 to 100 rows run eager, and are counted; 100 among the sizes takes them in."""
    costs = {"host_step_ns": 1e6, "first_launch_ns": 3e6}
    rows = [(0, 1, 2)] * 96 + [(0, 1, 1)] * 4
    ladder = tuple(range(8, 97, 8))
    cliff = core(graphs(ladder, slots=100), *rows, costs=costs)
    assert [(s["decode_rows"], s["launch_kind"], s["padded_rows"], s["off_ladder"]) for s in cliff.steps] == [
        (100, 0, 100, 1), (96, 1, 96, 0)
    ]  # fmt: skip
    assert [s["duration_ns"] for s in cliff.steps] == [4e6, 1e6]
    covered = core(graphs((*ladder, 100), slots=100), *rows, costs=costs)
    assert [(s["launch_kind"], s["padded_rows"]) for s in covered.steps] == [(1, 100), (1, 96)]
    assert total(covered, "off_ladder_steps") == 0


@pytest.mark.core
@pytest.mark.parametrize(("max_padding", "kind", "computed"), [(9 / 8, 0, 3), (4 / 3, 1, 4), (0.0, 1, 4)])
def test_a_batch_that_would_be_padded_too_far_runs_eager(max_padding: float, kind: int, computed: int) -> None:
    """C05: batch 3, sizes 1, 2, 4, 8: 4/3 is above 9/8, so it is eager and counted; 4/3 or no bound (0) serve it."""
    config = graphs((1, 2, 4, 8), slots=8)
    run = core(config, *[(0, 1, 2)] * 3, (0, 1, 1), max_padding=max_padding)
    full, three = run.steps
    assert [full[name] for name in ("decode_rows", "launch_kind", "padded_rows", "off_ladder")] == [4, 1, 4, 0]
    assert [three[name] for name in ("decode_rows", "launch_kind", "padded_rows")] == [3, kind, computed]
    assert three["dense_tokens"] == computed
    assert three["off_ladder"] == total(run, "off_ladder_steps") == 1 - kind


@pytest.mark.core
def test_a_shape_that_was_never_seen_stalls_once() -> None:
    """C10: rows decode in batches of 2 until four come at t = 10: one stall for the batch of 4, none after it."""
    costs = {"host_step_ns": 1e9, "graph_capture_ns": 5e8}
    rows = [(0, 1, 4)] * 2 + [(10 * S, 1, 3)] * 4 + [(20 * S, 1, 2)] * 4 + [(30 * S, 1, 2)]
    cold = core(graphs((2, 4), slots=4, capture="first_use"), *rows, costs=costs)
    stalls = [(s["start_ns"] // S, s["padded_rows"]) for s in cold.steps if s["duration_ns"] > S]
    assert stalls == [(0, 2), (10, 4)]
    assert total(cold, "captures") == 2
    warm = core(graphs((2, 4), slots=4), *rows, costs=costs)
    assert [s["duration_ns"] for s in warm.steps] == [S] * len(warm.steps)
    assert total(warm, "captures") == 0, "they were made before the run"


@pytest.mark.core
@pytest.mark.parametrize(("contexts", "captures"), [((1152, 1280, 4096), 2), ((2048, 4096), 1)])
def test_a_cache_sized_by_each_call_captures_for_the_longer_one(contexts: tuple[int, ...], captures: int) -> None:
    """C11: prompts of 1024, outputs of 128 and then 256: 1151 and 1279 entries; one size of 2048 serves both."""
    config = graphs((1,), slots=1, capture="first_use")
    config = replace(config, context_buckets_tokens=contexts, limit_tokens=4096, pool_blocks=4096)
    run = core(config, (0, 1024, 128), (3600 * S, 1024, 256), costs={"host_step_ns": 1e6})
    assert total(run, "captures") == captures


@pytest.mark.core
def test_padding_to_the_next_captured_batch() -> None:
    """C06: 129 rows in a batch of 144: 11.6% more rows are computed than live."""
    config = graphs((128, 144, 160), slots=160)
    (step,) = core(config, *[(0, 1, 1)] * 129, costs={"dense_token_ns": 1000.0}).steps
    assert (step["decode_rows"], step["padded_rows"], step["dense_tokens"]) == (129, 144, 144)
    assert step["padded_rows"] / step["decode_rows"] - 1 == pytest.approx(0.116, abs=0.0005)
    assert step["dense_busy_ns"] == 144_000, "the dense work is that of the padded batch"


@pytest.mark.core
def test_static_reads_the_reserved_length_and_dynamic_the_live_one() -> None:
    """C12: 2000 + 50 tokens in a slot of 32,768: 6.26% of it is used, and each decode step reads all of it."""
    costs = {"attention_token_ns": 100.0}
    static = contiguous(
        "max_len", limit_tokens=32_768, pool_blocks=2048, slots=1, prefill="separate", token_budget=32_768,
        launch="graph", batch_sizes=(1,), context_buckets_tokens=(32_768,), read_what="reserved", read_extent="bucket",
    )  # fmt: skip
    dynamic = paged(limit_tokens=32_768, pool_blocks=2048, slots=1, prefill="separate")
    one, other = core(static, (0, 2000, 52), costs=costs), core(dynamic, (0, 2000, 52), costs=costs)
    last = one.steps[-1]
    assert last["reserved_blocks"] * 16 == 32_768
    assert last["used_tokens"] / 32_768 == pytest.approx(0.0626, abs=0.00005)
    reads = [[step["read_tokens"] for step in run.steps[1:]] for run in (one, other)]
    assert reads == [[32_768] * 51, list(range(2001, 2052))]
    assert [run.steps[-1]["attention_busy_ns"] for run in (one, other)] == [3_276_800, 205_100]
    assert other.steps[-1]["reserved_blocks"] == 129, "and it holds what it has written: 2051 tokens"


@pytest.mark.core
@pytest.mark.parametrize(("layout", "segments"), [("layer_major", 64), ("block_major", 1)])
def test_one_run_of_blocks_is_one_copy_a_layer_or_one_in_all(layout: str, segments: int) -> None:
    """D06: 64 layers, 10 blocks in one run: 64 copies where layers lie apart, 1 where a block holds all of them."""
    config = paged(
        pool_blocks=64, block_size_tokens=1, slots=1, placement="contiguous", read_what="staged", staging="delta",
        scope="model", layers=64, layout=layout,
    )  # fmt: skip
    run = core(config, (0, 10, 3))
    assert [(s["groups"], s["moved_blocks"], s["segments"]) for s in run.steps] == [
        (0, 0, 0), (1, 10, segments), (0, 0, 0)
    ]  # fmt: skip


@pytest.mark.core
@pytest.mark.parametrize(("merge", "groups"), [("adjacent", 2), ("none", 12)])
def test_neighbours_are_one_group_only_when_merged(merge: str, groups: int) -> None:
    """D01, D04: 12 blocks in two runs: 2 groups merged, 12 not; the blocks that move are the same."""
    # The first leaves 1 to 6 free; the third takes them and 6 from behind the second.
    config = paged(
        pool_blocks=64, block_size_tokens=1, slots=2, placement="lowest", prefill="separate", read_what="staged",
        merge=merge,
    )  # fmt: skip
    run = core(config, (0, 6, 1), (0, 4, 9), (S, 12, 2))
    step = next(s for s in run.steps if s["decode_rows"] == 2)
    held = run.replica.table[0, :13].tolist()
    assert held[:6] == [1, 2, 3, 4, 5, 6]
    # Its neighbour's history is one run of 4 blocks or more, merged, and so many groups otherwise.
    neighbour = step["moved_blocks"] - 12
    assert step["groups"] - (1 if merge == "adjacent" else neighbour) == groups


@pytest.mark.core
def test_recycled_blocks_scatter_where_they_come_back_as_a_stack() -> None:
    """D04: after churn a stack of free blocks hands out scattered ids; best fit keeps runs, and so fewer groups."""
    rng = random.Random(4)
    rows = [(n * S // 2, rng.randint(10, 90), rng.randint(2, 40)) for n in range(60)]
    found = {}
    for placement in ("lifo", "contiguous"):
        config = paged(
            pool_blocks=120, block_size_tokens=4, slots=6, placement=placement, prefill="none", read_what="staged",
        )  # fmt: skip
        run = core(config, *rows)
        found[placement] = (total(run, "groups"), total(run, "moved_blocks"))
    assert found["lifo"][1] == found["contiguous"][1], "the same blocks move"
    assert found["contiguous"][0] * 2 < found["lifo"][0]

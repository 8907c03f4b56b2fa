"""Ladders of captured shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.ladders import (
    VLLM_SIZES,
    batch_ladder,
    context_ladder,
    token_ladder,
    uncovered,
    with_limit,
    worst_padding,
)
from kvrm_sim.memory import plan_memory

MIB = 1 << 20


def test_vllm_sizes() -> None:
    assert VLLM_SIZES[:6] == (1, 2, 4, 8, 16, 24)
    assert VLLM_SIZES[-3:] == (480, 496, 512)
    assert len(VLLM_SIZES) == 51
    assert batch_ladder("vllm", 256)[-2:] == (248, 256)


def test_batch_ladders_are_cut_at_the_slots_and_gain_nothing() -> None:
    assert batch_ladder("full", 100) == (100,)
    assert batch_ladder("pow2", 100) == (1, 2, 4, 8, 16, 32, 64)
    assert batch_ladder("vllm", 100)[-1] == 96
    assert batch_ladder((3, 7, 200), 100) == (3, 7)


def test_context_ladders() -> None:
    assert context_ladder("limit", 8192) == (8192,)
    assert context_ladder("pow2", 1000) == (128, 256, 512, 1000)
    assert context_ladder("pow2", 1024) == (128, 256, 512, 1024)
    assert context_ladder("pow2", 100) == (100,)
    assert context_ladder((64, 4096), 1024) == (64,)


def test_reservation_buckets_end_at_the_limit() -> None:
    assert with_limit((128, 4096, 8192), 4096) == (128, 4096)
    assert with_limit((128, 8192), 5000) == (128, 5000)


def test_token_ladder_is_cut_at_the_budget() -> None:
    assert token_ladder("vllm", 2048) == VLLM_SIZES
    assert token_ladder("vllm", 100)[-1] == 96
    assert token_ladder((16, 300), 256) == (16,)


def test_batches_above_the_ladder_are_listed() -> None:
    """C02: sizes …, 88, 96 and a limit of 100: 97 to 100 are off the ladder, and adding 100 removes the cliff."""
    config = ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm")
    config = config.override({"policy.schedule.slots": 100})
    plan = plan_memory(config)
    assert plan.batch_sizes[-2:] == (88, 96)
    assert plan.uncovered_sizes == (97, 98, 99, 100)
    assert any("batches of 97 to 100 rows run off the ladder" in warning for warning in plan.warnings)
    covered = plan_memory(config.override({"policy.launch.batch_sizes": [*plan.batch_sizes, 100]}))
    assert covered.uncovered_sizes == ()
    assert not covered.warnings


@pytest.mark.parametrize(
    ("slots", "max_padding", "flagged"),
    [(8, 9 / 8, True), (8, 8 / 7, False), (16, 9 / 8, False), (8, None, False), (2, 1.0, False)],
)
def test_a_bound_under_which_nothing_is_ever_padded_is_flagged(
    slots: int, max_padding: float | None, flagged: bool
) -> None:
    """C05: sizes 1, 2, 4, 8 and a bound of 9/8: 7 rows in a batch of 8 are 8/7 already, so no batch but exactly a
    captured size is served. With 16 there is one more, 15 rows; and 1, 2 leave nothing to pad.
    """
    config = ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm")
    changes = {"schedule.slots": slots, "launch.batch_sizes": "pow2", "launch.max_padding": max_padding}
    plan = plan_memory(config.override({f"policy.{key}": value for key, value in changes.items() if value is not None}))
    found = [warning for warning in plan.warnings if "allows no padding" in warning]
    assert len(found) == flagged
    assert all("captured batches of 1, 2, 4, 8: every other batch" in warning for warning in found)


def test_a_ladder_needs_27_graphs_where_one_a_size_needs_256() -> None:
    """C06: 1, 2, 4, then by 8 to 128 and by 16 to 256: 27 graphs; the worst padding above 128 is 129 in 144, 11.6%."""
    ladder = [1, 2, 4, *range(8, 129, 8), *range(144, 257, 16)]
    assert len(ladder) == 27
    live, padded, share = worst_padding(ladder, above=128)
    assert (live, padded) == (129, 144)
    assert share == pytest.approx(0.116, abs=5e-4)
    assert worst_padding(ladder)[:2] == (9, 16)

    config = ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm")
    config = config.override({"policy.launch.mixed": None, "policy.launch.token_sizes": None})
    few = plan_memory(config.override({"policy.launch.batch_sizes": ladder}))
    every = plan_memory(config.override({"policy.launch.batch_sizes": list(range(1, 257))}))
    assert (few.num_graphs, every.num_graphs) == (27, 256)
    assert few.factors.graphs_bytes == 27 * 26 * MIB
    assert every.factors.graphs_bytes == 256 * 26 * MIB


@given(st.sampled_from(["full", "vllm", "pow2"]), st.integers(1, 2000))
def test_every_batch_is_covered_or_listed(spec: str, slots: int) -> None:
    ladder = batch_ladder(spec, slots)
    assert list(ladder) == sorted(set(ladder))
    assert ladder[-1] <= slots
    listed = uncovered(ladder, slots)
    assert [size for size in range(1, slots + 1) if size > ladder[-1]] == list(listed)

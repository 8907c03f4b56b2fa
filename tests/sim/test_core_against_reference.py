"""The compiled core against the plain reference: random traces under random policies give identical integers."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from kvrm_sim import state as st
from kvrm_sim.meters import bucket_of
from kvrm_sim.swap import load_costs_less, swap_costs_less
from tests.sim.core_runs import PLAN, CoreRun, parameters_for, random_costs, run_core, step_cost
from tests.sim.reference import ReferenceResult, simulate
from tests.sim.strategies import Case, random_case

pytestmark = pytest.mark.core

#: The interpreted core is slow; it runs the first tenth of the pairs.
PAIRS = 240 if os.environ.get("KVRM_CORE", "compiled") != "interpreted" else 24
BATCH = 24


def both(case: Case, until_ns: int | None = None) -> tuple[CoreRun, ReferenceResult]:
    parameters = parameters_for(case.config, random_costs(case.seed))
    p = parameters.record[0]
    expected = simulate(
        case.config,
        case.arrivals,
        step_cost(parameters),
        swap_is_cheaper=lambda computed, runs, blocks: bool(swap_costs_less(p, computed, runs, blocks)),
        load_is_cheaper=lambda start, tokens, blocks: bool(load_costs_less(p, start, tokens, blocks)),
        until_ns=until_ns,
    )
    return run_core(parameters, case.arrivals, until_ns=until_ns, keep_steps=True), expected


def assert_same(case: Case, until_ns: int | None = None) -> None:
    run, expected = both(case, until_ns)
    where = f"case {case.seed}"
    for number, (step, wanted) in enumerate(zip(run.steps, expected.steps, strict=False)):
        at = f"{where}, step {number} at {wanted.start_ns} ns"
        assert {name: step[name] for name in PLAN} == {name: wanted.plan[name] for name in PLAN}, at
        assert (step["start_ns"], step["end_ns"]) == (wanted.start_ns, wanted.end_ns), at
        assert bool(step["off_ladder"] or step["over_capacity"]) == wanted.off_ladder, at
        memory = (wanted.reserved_blocks, wanted.allocated_blocks, wanted.used_tokens, wanted.cached_blocks)
        names = ("reserved_blocks", "allocated_blocks", "used_tokens", "cached_blocks")
        assert tuple(step[name] for name in names) == memory, at
        assert step["row_moves"] == wanted.row_moves, at
    assert len(run.steps) == len(expected.steps), where
    assert run.rows == expected.requests, where
    gaps = Counter(bucket_of(gap) for gap in expected.itl_ns)
    found = run.replica.arrays.histograms[st.H_ITL]
    assert {int(b): int(found[b]) for b in found.nonzero()[0]} == dict(gaps), where
    assert int(run.replica.arrays.tallies[st.H_ITL].total) == sum(expected.itl_ns), where
    s = run.replica.scalars[0]
    assert (int(s.free_blocks + s.evictable), int(s.evictable)) == (expected.free_blocks, expected.cached_blocks), where


@pytest.mark.parametrize("batch", range(PAIRS // BATCH))
def test_random_traces_under_random_policies_give_identical_integers(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        assert_same(random_case(seed))


def test_a_stop_in_the_middle_leaves_the_same_requests_unfinished() -> None:
    """A22, E02: what had arrived and not ended at the stop is reported as unfinished."""
    for seed in range(5000, 5000 + PAIRS // 4):
        case = random_case(seed)
        whole = simulate(case.config, case.arrivals, step_cost(parameters_for(case.config, random_costs(seed))))
        ends = sorted({step.end_ns for step in whole.steps} | {a.arrival_ns for a in case.arrivals})
        for until_ns in (ends[len(ends) // 3], ends[len(ends) // 2] + 1):
            assert_same(case, until_ns)


#: Parts that random policies have only when they are asked for; each alone, and together where they go together.
PARTS = (
    ("compaction",),
    ("speculation",),
    ("max_padding",),
    ("packed",),
    ("compaction", "speculation", "max_padding"),
    ("packed", "compaction", "max_padding"),
    ("run_ahead",),
    ("host",),
    ("host", "run_ahead"),
    ("packed", "host", "run_ahead"),
    ("host", "compaction"),
    ("host", "speculation"),
    ("offload",),
    ("host", "offload"),
    ("host", "offload", "run_ahead"),
)


@pytest.mark.parametrize("parts", PARTS, ids="+".join)
def test_parts_of_policies_that_are_asked_for_give_identical_integers(parts: tuple[str, ...]) -> None:
    for seed in range(PAIRS // 4):
        assert_same(random_case(seed, **dict.fromkeys(parts, True)))


@pytest.mark.long
@pytest.mark.parametrize("parts", PARTS, ids="+".join)
@pytest.mark.parametrize("batch", range(2))
def test_more_pairs_with_each_part_give_identical_integers(batch: int, parts: tuple[str, ...]) -> None:
    for seed in range(20_000 + batch * BATCH, 20_000 + (batch + 1) * BATCH):
        assert_same(random_case(seed, **dict.fromkeys(parts, True)))


@pytest.mark.long
@pytest.mark.parametrize("batch", range(200))
def test_thousands_of_random_pairs_give_identical_integers(batch: int) -> None:
    for seed in range(10_000 + batch * BATCH, 10_000 + (batch + 1) * BATCH):
        assert_same(random_case(seed))

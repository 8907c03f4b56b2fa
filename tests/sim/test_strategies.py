"""Random cases are valid, repeatable and of every kind; the reference keeps its invariants on them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.reference import simulate
from tests.sim.strategies import Case, cases, horizons, random_case


def test_a_seed_is_a_case_and_a_case_is_a_result() -> None:
    for seed in range(20):
        one, two = random_case(seed), random_case(seed)
        assert one == two
        assert simulate(one.config, one.arrivals, one.step_cost) == simulate(two.config, two.arrivals, two.step_cost)
        assert random_case(seed, rows=3).arrivals == random_case(seed, rows=5).arrivals[:3]


def test_random_cases_are_of_every_kind() -> None:
    """200 seeds keep every invariant, and meet every word and outcome."""
    seen: set[str] = set()
    for seed in range(200):
        case = random_case(seed)
        result = simulate(case.config, case.arrivals, case.step_cost, tables=True)
        config = case.config
        seen |= {config.reserve, config.placement, config.prefill, config.admission, config.refill, config.launch}
        seen |= {config.mixed, config.read_what, config.layout, config.staging, config.scope, config.over_limit}
        seen |= {f"merge {config.merge}", f"extent {config.read_extent}"}
        seen |= {r.reason for r in result.requests}
        seen |= {"preempted" for r in result.requests if r.preemptions}
        seen |= {"moved" for step in result.steps if step.row_moves}
        seen |= {"off the ladder" for step in result.steps if step.off_ladder}
        seen |= {"rounds" for step in result.steps if step.plan["rounds"] > 1}
    assert seen == {
        "max_len", "pow2", "declared", "oracle", "bucket", "paged", "lifo", "lowest", "contiguous", "buddy",
        "none", "chunked", "separate", "full_prompt", "first_chunk", "continuous", "batch", "eager", "graph",
        "piecewise", "reserved", "live", "table", "staged", "layer_major", "block_major", "full", "delta", "layer",
        "model", "reject", "truncate", "error", "merge none", "merge adjacent", "extent live", "extent bucket",
        "trace_end", "over_limit", "unservable", "context_limit", "declared_limit",
        "preempted", "moved", "off the ladder", "rounds",
    }  # fmt: skip


@given(cases(max_rows=12), st.data())
@settings(max_examples=50)
def test_a_stop_cuts_a_replay_short_and_changes_nothing_before(case: Case, data: st.DataObject) -> None:
    until_ns = data.draw(horizons(case))
    whole = simulate(case.config, case.arrivals, case.step_cost)
    cut = simulate(case.config, case.arrivals, case.step_cost, until_ns=until_ns)
    end_ns = float("inf") if until_ns is None else until_ns
    assert cut.steps == [step for step in whole.steps if step.start_ns < end_ns]
    ended = [event for event in whole.events if event.time_ns < end_ns]
    assert [event for event in cut.events if event.time_ns < end_ns] == ended
    assert len(cut.requests) == sum(arrival.arrival_ns <= end_ns for arrival in case.arrivals)

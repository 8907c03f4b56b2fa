"""The executor's seam: predicted and recorded times give the decisions and results of the plain run."""

from __future__ import annotations

import pytest

from kvrm_sim import state as st
from kvrm_sim.errors import RunError
from kvrm_sim.executor import CostModelExecutor, RecordedExecutor, StepTiming, drive
from kvrm_sim.feed import Chunk
from tests.sim.core_runs import CoreRun, arrival_ids, arrival_records, new_run, parameters_for, random_costs, run_core
from tests.sim.strategies import Case, random_case

CASES = 40


def driven(case: Case, executor: CostModelExecutor | RecordedExecutor) -> tuple[CoreRun, list[str], list[StepTiming]]:
    run = new_run(parameters_for(case.config, random_costs(case.seed)))
    run.replica.know_until(0)
    feed = iter([Chunk(arrival_records(case.arrivals), st.NEVER, arrival_ids(case.arrivals))])
    digests, timings = [], []
    for plan, timing in drive(run.replica, feed, executor):
        assert plan.number == len(digests)
        assert sum(chunk.tokens for chunk in plan.chunks) == plan.step.prefill_tokens
        assert sum(chunk.gives_token for chunk in plan.chunks) + len(plan.decoding) == plan.step.sampled_rows
        digests.append(plan.digest())
        timings.append(timing)
    run.replica.close()
    return run, digests, timings


def test_the_cost_model_as_executor_gives_the_plain_run() -> None:
    for seed in range(CASES):
        case = random_case(seed)
        run, _, timings = driven(case, CostModelExecutor())
        plain = run_core(parameters_for(case.config, random_costs(seed)), case.arrivals, keep_steps=True)
        assert run.rows == plain.rows, f"case {seed}"
        assert [timing.duration_ns for timing in timings] == [step["duration_ns"] for step in plain.steps]


def test_a_rerun_on_recorded_times_decides_the_same() -> None:
    """The closed loop's check: times that no model gives, recorded, and every decision found again from them."""
    for seed in range(CASES):
        case = random_case(seed)
        _, _, predicted = driven(case, CostModelExecutor())
        measured = [
            StepTiming((*timing.exposed_ns[:-1], timing.exposed_ns[-1] + 37 * (number % 5)))
            for number, timing in enumerate(predicted)
        ]
        measured += [StepTiming((1000, 0, 0, 0, 0, 0, 0))] * (4 * len(measured) + 200)  # other times, other steps
        first, digests, _ = driven(case, RecordedExecutor(measured))
        again, digests_again, _ = driven(case, RecordedExecutor(measured))
        assert digests == digests_again
        assert first.rows == again.rows


def test_a_changed_decision_changes_the_digest() -> None:
    found = {tuple(driven(random_case(seed), CostModelExecutor())[1]) for seed in range(CASES)}
    assert len(found) == CASES


def test_running_past_the_recorded_steps_is_an_error() -> None:
    case = random_case(1)
    with pytest.raises(RunError, match="step 1: only 1 steps were recorded"):
        driven(case, RecordedExecutor([StepTiming((1, 0, 0, 0, 0, 0, 0))]))


def test_times_have_one_entry_a_part_and_none_is_negative() -> None:
    with pytest.raises(ValueError, match="should be 7 times, none negative"):
        StepTiming((1, 2))
    with pytest.raises(ValueError, match="none negative"):
        StepTiming((1, 0, 0, 0, 0, 0, -1))

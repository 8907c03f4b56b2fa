"""The errors of a validation: part by part, beside the spread of repeats, and what is called noise."""

from __future__ import annotations

import numpy as np
import pytest

from kvrm_gpu.validate import missed_goals
from kvrm_gpu.validate_report import END_TO_END, end_to_end_errors, part_errors, step_errors, together
from kvrm_gpu.validate_run import Run
from kvrm_sim import state as st
from kvrm_sim.executor import StepTiming


def run_of(times: list[dict[str, int]], predicted: list[dict[str, int]], **figures: float) -> Run:
    run = Run(figures=dict(figures))
    for measured, said in zip(times, predicted, strict=True):
        run.timings.append(StepTiming(tuple(measured.get(part, 0) for part in st.PARTS)))
        run.predicted.append(tuple(said.get(part, 0) for part in st.PARTS))
        run.raw_ns.append(run.timings[-1].duration_ns)
        run.mixed.append(False)
    return run


STEP = {"host": 100, "commit": 50, "attention": 300, "dense": 550}


def test_a_host_that_is_predicted_twice_as_slow_shows_in_its_part_alone() -> None:
    runs = [run_of([STEP, STEP], [STEP | {"host": 200}] * 2) for _ in range(3)]
    found = step_errors(runs, parts_known=True)
    assert found["parts"]["host"]["error"] == pytest.approx(1.0)
    assert found["parts"]["host"]["noise"] is False
    others = [figure["error"] for name, figure in found["parts"].items() if name != "host"]
    assert others == pytest.approx([0.0] * 3)
    assert found["step_time_median_abs_error"] == pytest.approx(0.1)
    assert found["total_time_error"] == pytest.approx(0.1)


def test_launches_are_compared_together_with_what_they_cannot_be_told_from() -> None:
    measured = np.array([[list(STEP.values())]])
    whole = np.zeros((1, 1, len(st.PARTS)), np.int64)
    for part, value in STEP.items():
        whole[..., st.PARTS.index(part)] = value
    assert measured.sum() == whole.sum()
    predicted = whole[0].copy()
    predicted[:, st.PARTS.index("launch")] = 250
    predicted[:, st.PARTS.index("dense")] = 300
    assert part_errors(whole, predicted, parts_known=True)["launch+dense+collectives"]["error"] == pytest.approx(0.0)
    unknown = part_errors(whole, predicted, parts_known=False)
    assert set(unknown) == {"host", "commit", "launch+transport+attention+dense+collectives"}


def test_an_error_within_the_spread_of_repeats_is_called_noise() -> None:
    repeats = [run_of([STEP], [STEP], ttft_p50=value, itl_p50=value) for value in (1.0, 1.1, 1.3)]
    found = end_to_end_errors(repeats, run_of([STEP], [STEP], ttft_p50=1.2, itl_p50=2.2))
    assert found["ttft_p50"]["error"] == pytest.approx(1.2 / 1.1 - 1)
    assert found["ttft_p50"]["repeat_spread"] == pytest.approx(0.3 / 1.1)
    assert found["ttft_p50"]["noise"] is True
    assert found["itl_p50"]["noise"] is False
    assert found["ttft_p99"] is None


def test_one_repeat_has_no_spread_and_nothing_is_called_noise() -> None:
    run = run_of([STEP], [STEP | {"host": 200}], ttft_p50=1.0)
    found = step_errors([run], parts_known=True)
    assert found["step_time_repeat_spread"] is None
    assert found["parts"]["host"] == {"error": 1.0, "repeat_spread": None, "noise": None, "share": 0.1}
    figures = end_to_end_errors([run], run_of([STEP], [STEP], ttft_p50=1.5))
    assert (figures["ttft_p50"]["repeat_spread"], figures["ttft_p50"]["noise"]) == (None, None)
    loop = {"0.5": dict.fromkeys(END_TO_END, figures["ttft_p50"])}
    policy = found | {"decisions_identical": True, "token_mismatches": 0, "steps": 1, "fitted": True}
    every = together({"static": policy | {"closed_loop": loop}})
    assert every["step_time_repeat_spread"] is None
    assert every["closed_loop"]["0.5"]["ttft_p50"] == {
        "median_abs_error": 0.5, "max_abs_error": 0.5, "max_repeat_spread": None, "noise": None,
    }  # fmt: skip
    lines = missed_goals({"policies": {"static": policy | {"closed_loop": loop, "step_time_median_abs_error": 0.2}}})
    assert len(lines) == 3
    assert all(line.endswith("(one repeat: its spread is unknown)") for line in lines)

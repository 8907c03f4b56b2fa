"""Simulate, execute, compare: the loop on a small replica, and that each thing it should notice is noticed."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from kvrm_gpu import validate as module
from kvrm_gpu.calibrate import calibrate
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_machine import Machine
from kvrm_gpu.measure_pace import PacedExecutor
from kvrm_gpu.profile_scale import POLICIES as EVERY_POLICY
from kvrm_gpu.prompts import random_prompt
from kvrm_gpu.reference_tokens import TokenCheck
from kvrm_gpu.validate import LOADS, missed_goals, notes_of, validate, verdict
from kvrm_gpu.validate_report import END_TO_END
from kvrm_gpu.validate_run import Run, run_recorded
from kvrm_sim import state as st
from kvrm_sim.config import load_hardware
from kvrm_sim.errors import ConfigError
from tests.gpu.plain_llama import continuation
from tests.gpu.small_scale import MODEL, calibration
from tests.gpu.small_validation import ROWS, small_loop, small_report


def test_decisions_and_tokens_hold_and_errors_stand_beside_their_spread() -> None:
    report = small_report()
    assert report["decisions_identical"] is True
    assert report["token_mismatches"] == 0
    assert verdict(report) == []
    assert report["steps"] == sum(found["steps"] for found in report["policies"].values()) > 0
    assert report["step_time_median_abs_error"] < 0.5
    assert set(report["parts"]) == {"host", "commit", "transport", "attention", "launch+dense+collectives"}
    assert set(report["closed_loop"]) == {"0.5"}
    assert not any("compare two machines" in note for note in report["notes"])
    for name in END_TO_END:
        figure = report["closed_loop"]["0.5"][name]
        assert figure["max_abs_error"] >= figure["median_abs_error"] >= 0
        assert figure["max_repeat_spread"] >= 0
    assert {policy: found["fitted"] for policy, found in report["policies"].items()} == {
        "dynamic": True,
        "kv-rm": False,
    }
    assert report["step_time_median_abs_error_unfitted"] == pytest.approx(
        report["policies"]["kv-rm"]["step_time_median_abs_error"]
    )


def test_errors_below_at_and_above_saturation_are_given_apart() -> None:
    """E06: a fit that is good at light load may drift once requests wait, so no figure is over several loads."""
    report = small_loop(loads=LOADS, policies=("dynamic",), repeats=1)
    saturation = report["policies"]["dynamic"]["saturation_requests_per_s"]
    for found in (report["closed_loop"], report["policies"]["dynamic"]["closed_loop"]):
        assert tuple(found) == ("0.5", "1", "1.5")
        assert all(set(END_TO_END) <= set(figures) for figures in found.values())
    rates = [found["requests_per_s"] for found in report["policies"]["dynamic"]["closed_loop"].values()]
    assert rates == pytest.approx([0.5 * saturation, saturation, 1.5 * saturation])


def test_the_report_is_plain_and_says_on_what_it_was_made() -> None:
    report = json.loads(json.dumps(small_report(), allow_nan=False))
    assert report["hardware"] == calibration().profile.name
    assert report["calibrated"] is True
    assert report["trace"]["rows"] == ROWS
    assert report["device"] == calibration().report["device"]
    if not torch.cuda.is_available():
        assert report["clock"] == "thread_cpu_time"
        assert set(report["pace"]) == {"operations", "loop"}


def test_another_decision_on_the_recorded_times_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def otherwise(*arguments: Any) -> Run:
        run = run_recorded(*arguments)
        run.digests[len(run.digests) // 2] = "other"
        return run

    monkeypatch.setattr(module, "run_recorded", otherwise)
    report = small_loop(policies=("dynamic",), repeats=1)
    assert not any("piecewise" in note or "queues" in note for note in report["notes"])
    assert report["decisions_identical"] is False
    assert report["policies"]["dynamic"]["closed_loop"]["0.5"]["decisions_identical"] is False
    assert [line.partition(":")[0] for line in verdict(report)] == ["dynamic"]


def test_a_wrong_token_of_the_device_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PacedExecutor.sequences.fget
    assert honest is not None

    def flipped(executor: PacedExecutor) -> dict[int, list[int]]:
        tokens = {row: list(known) for row, known in honest(executor).items()}
        tokens[ROWS - 1][-1] ^= 1
        return tokens

    monkeypatch.setattr(PacedExecutor, "sequences", property(flipped))
    report = small_loop(policies=("dynamic",), repeats=1)
    assert report["decisions_identical"] is True
    assert report["token_mismatches"] == 1
    assert ["1 delivered tokens" in line for line in verdict(report)] == [True]


def arrivals(*requests: tuple[int, int]) -> st.Records:
    return st.arrivals(np.array([(0, prompt, output) for prompt, output in requests]))


def test_tokens_are_compared_with_a_plain_forward() -> None:
    """Wrong, missing and surplus tokens, another request's prompt, a request that never came."""
    llama, prompt = Llama(MODEL, torch.device("cpu"), 0), random_prompt(MODEL.vocab_size, 5)
    requests = arrivals((9, 6), (4, 3))
    right = {}
    for row, (prompt_tokens, output) in enumerate(((9, 6), (4, 3))):
        start = prompt(row, prompt_tokens).tolist()
        generated, lead = continuation(llama, start, output)
        assert lead > 1e-3
        right[row] = start + generated
    check = TokenCheck(llama, requests, prompt)
    assert check.mismatches(right) == 0
    last = [*right[0][:-1], right[0][-1] ^ 1]
    assert check.mismatches(right | {0: last}) == 1
    assert check.mismatches(right | {0: right[0][:-2]}) == 2
    assert check.mismatches({0: right[0]}) == 3
    assert check.mismatches({0: right[1], 1: right[1]}) == 6
    assert check.mismatches(right) == 0, "what was wrong is not remembered as right, nor the other way round"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"policies": ()}, "policies: 0, should be at least 1"),
        ({"loads": ()}, "loads: 0"),
        ({"rows": 1}, "rows: 1, should be at least 2"),
        ({"repeats": 0}, "repeats: 0"),
    ],
)
def test_arguments_that_cannot_be_are_refused(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate("azure-conv-like", load_hardware("h200"), MODEL, device="cpu", **argument)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device here: it has no yardstick")
@pytest.mark.parametrize("own", [True, False], ids=["this machine", "another"])
def test_only_this_machines_yardsticks_are_a_measure(own: bool) -> None:
    """A profile of another machine must not make this one look as fast as that."""
    profile = calibration().profile
    if not own:
        profile = profile.model_copy(update={"description": "some other processor"})
    report = small_loop(hardware=profile, policies=("dynamic",), repeats=1)
    measures = {name: found["undisturbed_ns"] for name, found in report["pace"].items()}
    assert (measures == profile.yardsticks_ns) == own
    assert any("compare two machines" in note for note in report["notes"]) != own


def test_notes_are_of_what_was_run() -> None:
    profile = calibration().profile
    machine = Machine(backend="cpu", name=calibration().report["device"], versions="", date="", memory_bytes=1)
    assert notes_of(profile, machine, ["static", "kv-rm"], [0.5, 1.5]) == []
    (mixed,) = notes_of(profile, machine, ["static", "graph-paged"], [0.5])
    assert mixed.startswith("graph-paged runs mixed steps kernel by kernel")
    (queue,) = notes_of(profile, machine, ["static"], [0.5, 1.0])
    assert queue.startswith("the load of 1 is about the rate")


def test_progress_begins_with_what_is_done_and_names_each_phase() -> None:
    told: list[str] = []
    small_loop(policies=("dynamic",), repeats=2, progress=told.append)
    first, *phases = told
    assert re.fullmatch(r"validating on .*: 1 policies, each run 2 times on 16 requests, 2 repeats after a .*", first)
    names = [phase.partition(": ") for phase in phases]
    assert [detail for _, _, detail in names] == ["dynamic"] * 4
    expected = ("warming up", "repeat 1 of 2, about", "repeat 2 of 2, about", "comparing")
    assert all(phase.startswith(word) for (phase, _, _), word in zip(names, expected, strict=True))


def test_goals_that_are_missed_are_told_apart_from_failures() -> None:
    report = json.loads(json.dumps(small_report()))
    found = report["policies"]["dynamic"]
    found["step_time_median_abs_error"] = 0.2
    found["closed_loop"]["0.5"]["ttft_p50"] |= {"error": -0.3, "repeat_spread": 0.4}
    found["closed_loop"]["0.5"]["itl_p50"] |= {"error": 0.01}
    lines = [line for line in missed_goals(report) if line.startswith("dynamic")]
    assert len(lines) == 2
    assert "20.0%" in lines[0]
    assert "within the spread" in lines[1]
    assert verdict(report) == []


#: Median absolute error of the steps beyond which the model, not the machine, is at fault: a part that is left out or
#: charged twice makes more. How near the times come is for an idle machine and the command line to say (`kvrm validate`
#: names each goal that is missed; LOG.md keeps what was measured).
WRONG_MODEL = 0.25


@pytest.mark.long
def test_six_policies_at_three_loads() -> None:
    """E06: the whole loop as the commands run it, at 0.5, 1 and 1.5 of saturation, with fewer repeats and requests."""
    calibrated = calibrate("cpu", repeats=3)
    report = validate("azure-conv-like", calibrated.profile, device="cpu", rows=80, repeats=2)
    policies = report["policies"]
    assert tuple(policies) == EVERY_POLICY
    assert tuple(report["loads"]) == LOADS == (0.5, 1.0, 1.5)
    assert all(set(found["closed_loop"]) == {"0.5", "1", "1.5"} for found in policies.values())
    assert [policy for policy, found in policies.items() if not found["fitted"]] == ["bucketed", "kv-rm-delta"]
    assert verdict(report) == []
    held_out = [found["held_out_median_abs_error"] for found in calibrated.report["steps"].values()]
    assert max(held_out) <= WRONG_MODEL
    assert report["step_time_median_abs_error"] <= WRONG_MODEL
    assert report["step_time_median_abs_error_unfitted"] <= WRONG_MODEL

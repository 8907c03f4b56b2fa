"""``kvrm validate``: files, streams, exit codes and refusals, with the device made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvrm.main import run_command
from tests.analysis.made_up_measurements import validation_report
from tests.cli.made_up_device import Device, names, refused


def test_validate_prints_each_error_beside_the_spread_of_repeats(
    device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["validate", "azure-conv-like", "--hardware", "h200", "--rows", "20"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "decisions identical in 80 steps; 0 token mismatches" in lines
    assert "static 40 7.0% (15.0%) 2.0% 6.0% - -2.0% yes 0" in lines
    assert "static +25.0% (10%) - -4.0% (90%)" in lines
    assert "static +5.0% ± 2.0% -8.0% ± 2.0% ~+1.0% ± 2.0% - ~+0.0% ± 2.0%" in lines
    assert "static ~+5.0% ± 30.0% ~-8.0% ± 30.0% ~+1.0% ± 30.0% - ~+0.0% ± 30.0%" in lines
    assert "note: a note of the executor" in lines
    assert {key: device.asked[key] for key in ("trace", "hardware", "device", "loads", "rows", "repeats")} == {
        "trace": "azure-conv-like", "hardware": "h200", "device": "auto", "loads": (0.5, 1.0, 1.5), "rows": 20,
        "repeats": 3,
    }  # fmt: skip
    assert len(device.asked["policies"]) == 6


def test_one_repeat_has_no_spread(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    device.report["repeats"] = 1
    assert run_command(["validate", "azure-conv-like", "--hardware", "h200", "--repeats", "1"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "static 40 7.0% (15.0%) - 6.0% - -2.0% yes 0" in lines
    assert lines.count("static +5.0% -8.0% +1.0% - +0.0%") == 2
    assert "note: one repeat: its spread is unknown, and so is which errors are noise" in lines


def test_validate_writes_report_steps_and_figures(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["validate", "azure-conv-like", "--hardware", "h200", "-o", str(tmp_path / "v"), "--json"]
    assert run_command([*arguments, "--policy", "static", "--load", "0.5", "--load", "1"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report == json.loads((tmp_path / "v" / "report.json").read_text())
    assert {"device", "decisions_identical", "steps", "step_time_median_abs_error", "parts", "closed_loop",
            "token_mismatches"} <= set(report)  # fmt: skip
    assert "step_times" not in report["policies"]["static"]
    assert err == f"results: {tmp_path / 'v'}\n"
    assert names(tmp_path / "v") == ["report.json", "steps.parquet", "validation.png", "validation.svg"]
    assert set(pq.read_table(tmp_path / "v" / "steps.parquet").column_names) == {
        "policy", "mixed", "p10_ns", "p50_ns", "p90_ns", "predicted_ns",
    }  # fmt: skip
    assert (device.asked["policies"], device.asked["loads"]) == (("static",), (0.5, 1.0))
    device.asked = {}
    assert "exists" in refused(capsys, *arguments)
    assert device.asked == {}
    device.report = validation_report()
    assert run_command([*arguments, "--force"]) == 0


def test_a_validation_that_does_not_hold_is_reported_written_and_exit_1(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.report = validation_report(identical=False, mismatches=3)
    device.failures = ["decisions differ in 2 steps", "3 tokens differ"]
    assert run_command(["validate", "azure-conv-like", "--hardware", "h200", "-o", str(tmp_path / "v"), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["token_mismatches"] == 3
    assert err.splitlines()[1:] == [
        "kvrm: validation failed: decisions differ in 2 steps",
        "kvrm: validation failed: 3 tokens differ",
    ]
    assert (tmp_path / "v" / "report.json").is_file()


def test_an_error_above_its_goal_is_said_and_no_failure(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    device.missed = ["static: step time: error 12% is above 10%"]
    command = ["validate", "azure-conv-like", "--hardware", "h200"]
    assert run_command(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"above its goal: {device.missed[0]}"
    device.report = validation_report()
    assert run_command([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["decisions_identical"]
    assert err == f"above its goal: {device.missed[0]}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["azure-conv-like"], "--hardware"),
        (["azure-conv", "--hardware", "h200"], "azure-conv"),
        (["azure-conv-like", "--hardware", "h20"], "h200"),
        (["azure-conv-like", "--hardware", "h200", "--policy", "kv-rn"], "did you mean 'kv-rm'?"),
        (["azure-conv-like", "--hardware", "h200", "--policy", "static", "--policy", "static"], "each once"),
        (["azure-conv-like", "--hardware", "h200", "--load", "0"], "shares of saturation above 0"),
        (["azure-conv-like", "--hardware", "h200", "--load", "nan"], "shares of saturation above 0"),
        (["azure-conv-like", "--hardware", "h200", "--rows", "1"], "rows = 1"),
        (["azure-conv-like", "--hardware", "h200", "--repeats", "0"], "repeats = 0"),
        (["azure-conv-like", "--hardware", "h200", "--scale", "large"], "scale 'large' is unknown"),
        (["azure-conv-like", "--hardware", "h200", "--force"], "nothing to replace without --out"),
    ],
)
def test_wrong_arguments_of_validate(
    device: Device, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], message: str
) -> None:
    assert message in refused(capsys, "validate", *arguments)
    assert device.asked == {}

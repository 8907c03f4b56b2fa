"""``kvrm calibrate``: files, streams, exit codes and refusals, with the device made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvrm.main import run_command
from kvrm_sim.config import load_hardware
from kvrm_traces.errors import InputError
from tests.analysis.made_up_measurements import calibration_report, calibration_table
from tests.cli import made_up_device
from tests.cli.made_up_device import Device, names, refused


def test_calibrate_writes_profile_table_and_page(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["calibrate", "--device", "cpu", "-o", str(tmp_path / "my" / "cpu.toml")]) == 0
    assert names(tmp_path / "my") == ["cpu.parquet", "cpu.svg", "cpu.toml"]
    assert load_hardware(tmp_path / "my" / "cpu.toml").name == "cpu-measured"
    assert pq.read_table(tmp_path / "my" / "cpu.parquet").num_rows == calibration_table().num_rows
    assert b"</svg>" in (tmp_path / "my" / "cpu.svg").read_bytes()
    out, err = capsys.readouterr()
    assert err == "", "the device had nothing to say"
    assert "Test Device" in out
    assert any(line.split()[:3] == ["kv-rm-delta", "not", "fitted"] and "10.0%" in line for line in out.splitlines())
    assert f"profile: {tmp_path / 'my' / 'cpu.toml'}" in out
    assert {key: device.asked[key] for key in ("device", "model", "scale", "repeats", "seed")} == {
        "device": "cpu", "model": "tiny-llama", "scale": None, "repeats": 5, "seed": 0,
    }  # fmt: skip


def test_in_a_pipe_progress_is_what_is_done_and_then_a_line_a_phase(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.told = [
        "measuring Test Device: whole steps; about 2 min", "copies", "repeat 1 of 2: static", "repeat 1 of 2: kv-rm",
        "fit",
    ]  # fmt: skip
    assert run_command(["calibrate", "-o", str(tmp_path / "a.toml"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == calibration_report(), "stdout is the report alone"
    first, *phases = err.splitlines()[:-3]
    assert first == device.told[0]
    assert [line.split("s  ")[1] for line in phases] == ["copies", "repeat 1 of 2", "fit"]


def test_calibrate_prints_no_spread_of_one_repeat(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = calibration_report()
    for found in report["steps"].values():
        found["repeat_median_abs_spread"] = None
    monkeypatch.setattr(made_up_device, "calibration_report", lambda: report)
    assert run_command(["calibrate", "-o", str(tmp_path / "a.toml"), "--repeats", "1"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("static") and line.endswith(" -") for line in lines)
    assert "note: one repeat: its spread is unknown, and so is which errors are noise" in lines


def test_calibrate_prints_the_report_alone_with_json(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--json", "--repeats", "2", "--seed", "7", "--scale", "smoke"]
    assert run_command(["calibrate", "-o", str(tmp_path / "a.toml"), *arguments]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == calibration_report()
    assert "profile: " in err
    assert (device.asked["device"], device.asked["repeats"], device.asked["seed"]) == ("auto", 2, 7)


@pytest.mark.parametrize("present", ["a.toml", "a.parquet", "a.svg"])
def test_calibrate_refuses_to_replace_any_of_its_files_before_it_measures(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str], present: str
) -> None:
    (tmp_path / present).write_text("mine")
    message = refused(capsys, "calibrate", "-o", tmp_path / "a.toml")
    assert f"{present} exists" in message
    assert device.asked == {}
    assert names(tmp_path) == [present]
    assert run_command(["calibrate", "-o", str(tmp_path / "a.toml"), "--force"]) == 0
    assert names(tmp_path) == ["a.parquet", "a.svg", "a.toml"]
    assert (tmp_path / present).read_bytes() != b"mine"


@pytest.mark.parametrize(("failure", "code"), [(InputError("no such thing"), 2), (OSError(28, "No space left"), 1)])
def test_a_calibration_that_fails_leaves_nothing(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: Exception, code: int
) -> None:
    device.error = failure
    assert run_command(["calibrate", "-o", str(tmp_path / "new" / "a.toml")]) == code
    assert names(tmp_path) == []
    assert capsys.readouterr().out == ""


def test_a_page_that_cannot_be_drawn_leaves_what_was_there(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left")

    (tmp_path / "a.toml").write_text("mine")
    monkeypatch.setattr("kvrm_analysis.drawing.profile_page.profile_page", broken)
    assert run_command(["calibrate", "-o", str(tmp_path / "a.toml"), "--force"]) == 1
    assert names(tmp_path) == ["a.toml"]
    assert (tmp_path / "a.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out"),
        (["-o", "gpu"], "end in .toml"),
        (["-o", "a.toml", "--device", "tpu"], "'auto', 'cuda', 'cpu'"),
        (["-o", "a.toml", "--scale", "smok"], "did you mean 'smoke'?"),
        (["-o", "a.toml", "--repeats", "0"], "repeats = 0: should be 1 or more"),
        (["-o", "a.toml", "--model", "tiny-lama"], "tiny-llama"),
        (["-o", "a.toml", "--hardware", "h200"], "it is for --from-steps"),
        (["-o", "a.toml", "--from-steps", "x.csv", "--hardware", "h200"], "also needs --hardware"),
        (["-o", "a.toml", "--from-steps", "x.csv", "--model", "llama-3-8b"], "also needs --hardware"),
        (["-o", "a.toml", "--from-steps", "x.csv", "--repeats", "3"], "nothing is measured with --from-steps"),
    ],
)
def test_wrong_arguments_of_calibrate(
    device: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "calibrate", *arguments)
    assert device.asked == {}
    assert names(tmp_path) == []


def test_from_steps_writes_the_profile_under_its_own_name(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--from-steps", "steps.csv", "--hardware", "h200", "--model", "llama-3-8b"]
    assert run_command(["calibrate", *arguments, "-o", str(tmp_path / "mine.toml")]) == 0
    assert device.asked == {"path": "steps.csv", "model": "llama-3-8b", "base": "h200", "name": "mine"}
    assert names(tmp_path) == ["mine.toml"]
    assert load_hardware(tmp_path / "mine.toml").name == "mine"
    out, _ = capsys.readouterr()
    assert "100 steps, 25 of them held out" in out
    assert "2.0% (p90 4.0%)" in out
    assert "exists" in refused(capsys, "calibrate", *arguments, "-o", tmp_path / "mine.toml")

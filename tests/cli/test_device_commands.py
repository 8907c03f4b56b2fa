"""``kvrm calibrate`` and ``kvrm validate``: files, streams, exit codes and refusals, with the device made up.

What the device measures is held by tests/gpu; here its modules are stood in for, so nothing needs torch.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

import kvrm
import kvrm_gpu
from kvrm.main import run_command
from kvrm_sim.config import HardwareProfile, load_hardware
from kvrm_traces import Trace
from kvrm_traces.errors import InputError
from tests.analysis.made_up_measurements import calibration_report, calibration_table, validation_report
from tests.cli.cli_process import kvrm as kvrm_process


@dataclass(frozen=True)
class Found:
    profile: HardwareProfile
    report: dict[str, Any]
    table: Any = None


class Device:
    """Stands in for the device: keeps what it was asked, and returns what is made up."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.report = validation_report()
        self.failures: list[str] = []
        self.missed: list[str] = []
        self.error: BaseException | None = None
        #: What the device says of its progress.
        self.told: list[str] = []

    def calibrate(self, device: str, model: Any, **options: Any) -> Found:
        self.asked = {"device": device, "model": model.name, **options}
        for text in self.told:
            options["progress"](text)
        if self.error is not None:
            raise self.error
        profile = load_hardware("h200").model_copy(update={"name": "cpu-measured"})
        return Found(profile, calibration_report(), calibration_table())

    def validate(self, trace: Trace, hardware: HardwareProfile, model: Any, **options: Any) -> dict[str, Any]:
        self.asked = {"trace": trace.info.name, "hardware": hardware.name, "model": model.name, **options}
        return self.report

    def from_steps(self, path: str, model: str, base: str, *, name: str | None) -> Found:
        self.asked = {"path": path, "model": model, "base": base, "name": name}
        report = {"file": path, "steps": 100, "held_out_steps": 25, "fit_median_abs_error": 0.01, "replaced": ["x_ns"],
                  "held_out_median_abs_error": 0.02, "held_out_p90_abs_error": 0.04,
                  "fitted_ns": {"step": 100.0}}  # fmt: skip
        return Found(load_hardware(base).model_copy(update={"name": name}), report)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    stand_in = Device()
    offers = {
        "calibrate": {"calibrate": stand_in.calibrate},
        "validate": {
            "validate": stand_in.validate,
            "verdict": lambda report: stand_in.failures,
            "missed_goals": lambda report: stand_in.missed,
        },
        "from_steps": {"from_steps": stand_in.from_steps},
    }
    for name, functions in offers.items():
        module = ModuleType(f"kvrm_gpu.{name}")
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(kvrm_gpu, "require_torch", lambda: None)
    return stand_in


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a wrong command line is told; asserts exit code 2 and a clean stdout."""
    assert run_command([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvrm: ")
    assert err.count("\n") == 1
    return err


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
    monkeypatch.setattr(f"{__name__}.calibration_report", lambda: report)
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["calibrate", "-o", "a.toml"],
        ["calibrate", "-o", "a.toml", "--from-steps", "s.csv", "--hardware", "h200", "--model", "llama-3-8b"],
        ["validate", "azure-conv-like", "--hardware", "h200"],
    ],
)
def test_without_torch_one_line_names_the_extra(tmp_path: Path, arguments: list[str]) -> None:
    script = f"import sys, kvrm.main as m; sys.modules['torch'] = None; sys.exit(m.run_command({arguments}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvrm: torch is not installed: `pip install 'kvrm[gpu]'` brings what the device needs\n"
    assert names(tmp_path) == []


def test_the_functions_return_what_the_commands_print(device: Device, tmp_path: Path) -> None:
    done = kvrm.validate("azure-conv-like", "h200", policies=["static"], rows=20)
    assert json.loads(done.to_json()) == done.report
    assert (done.folder, done.failures) == (None, ())
    assert done.steps is not None
    assert done.steps.num_rows == 80
    assert kvrm.calibrate("cpu").report == calibration_report()
    assert names(tmp_path) == []
    fitted = kvrm.calibrate_from_steps("steps.csv", "llama-3-8b", "h200", out=tmp_path / "b.toml")
    assert fitted.profile.name == "b"
    assert names(tmp_path) == ["b.toml"]


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_machine_is_measured_and_its_profile_validated(tmp_path: Path) -> None:
    """The whole loop with nothing made up, on the CPU: minutes, since every policy is measured."""
    calibrate = ["calibrate", "--device", "cpu", "-o", "cpu.toml", "--repeats", "1"]
    done = kvrm_process(*calibrate, cwd=tmp_path, timeout_s=600)
    assert done.returncode == 0, done.stderr
    assert load_hardware(tmp_path / "cpu.toml").calibrated
    validate = ["validate", "azure-conv-like", "--hardware", "cpu.toml", "--device", "cpu", "--json", "--rows", "20"]
    few = ["--policy", "static", "--policy", "kv-rm", "--load", "0.5", "--repeats", "1", "-o", "v"]
    done = kvrm_process(*validate, *few, cwd=tmp_path, timeout_s=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["decisions_identical"]
    assert report["token_mismatches"] == 0
    assert names(tmp_path / "v") == ["report.json", "steps.parquet", "validation.png", "validation.svg"]

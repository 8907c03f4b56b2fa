"""What ``kvrm calibrate`` and ``kvrm validate`` have in common, and both of them on a real device."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvrm
from kvrm_sim.config import load_hardware
from tests.analysis.made_up_measurements import calibration_report
from tests.cli.cli_process import kvrm as kvrm_process
from tests.cli.made_up_device import Device, names


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

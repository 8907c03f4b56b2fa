"""A device that is made up: what ``kvrm calibrate`` and ``kvrm validate`` ask of it is kept, and answered at once.

What a device measures is held by tests/gpu; here its modules are stood in for, so nothing needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvrm.main import run_command
from kvrm_sim.config import HardwareProfile, load_hardware
from kvrm_traces import Trace
from tests.analysis.made_up_measurements import calibration_report, calibration_table, validation_report


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

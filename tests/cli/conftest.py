"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import kvrm_gpu
from tests.cli.made_up_device import Device


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

"""The yardsticks: what a slow spell of the machine takes off a step's parts, and what they are compared with."""

from __future__ import annotations

import pytest
import torch

from kvrm_gpu.calibrate import backend_for
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_pace import SMOOTH, YARDSTICKS, Yardstick, undisturbed_timing
from kvrm_sim import state as st
from kvrm_sim.executor import StepTiming
from tests.gpu.small_scale import MODEL


@pytest.fixture
def llama() -> Llama:
    return Llama(MODEL, torch.device("cpu"), 0)


def timing(**parts: int) -> StepTiming:
    return StepTiming(tuple(parts.get(part, 0) for part in st.PARTS))


def test_each_part_is_divided_by_the_pace_of_its_kind_of_work() -> None:
    slow = timing(host=200, commit=100, transport=40, attention=600, dense=300)
    assert undisturbed_timing(slow, (2.0, 1.0), mixed=False) == timing(
        host=100, commit=50, transport=20, attention=429, dense=200
    )
    assert undisturbed_timing(slow, (2.0, 1.2), mixed=True) == timing(
        host=100, commit=50, transport=20, attention=500, dense=188
    )


def test_on_an_undisturbed_machine_times_stay_as_they_are() -> None:
    own = timing(host=7, attention=11, dense=13)
    assert undisturbed_timing(own, (1.0, 1.0), mixed=True) == own


def test_the_pace_is_measured_against_the_profile_or_the_warm_up(llama: Llama) -> None:
    backend = backend_for("cpu")
    own, known = Yardstick(backend, llama), Yardstick(backend, llama, dict.fromkeys(YARDSTICKS, 1.0))
    for yardstick in (own, known):
        yardstick.sample()
        assert yardstick.pace() == (1.0, 1.0), "not settled yet"
        assert yardstick.report() is None
        for _ in range(SMOOTH):
            yardstick.sample()
        yardstick.settle()
    assert min(known.pace()) > 1_000, "no yardstick takes one nanosecond"
    assert known.undisturbed_ns == {"operations": 1.0, "loop": 1.0}
    assert max(own.pace()) < 1_000
    report = own.report()
    assert report is not None
    assert set(report) == set(YARDSTICKS)
    assert all(found["p10"] <= found["p50"] <= found["p90"] for found in report.values())


def test_a_device_of_its_own_has_no_yardstick(llama: Llama) -> None:
    yardstick = Yardstick(CpuBackend(), llama, dict.fromkeys(YARDSTICKS, 1.0))
    yardstick.sample()
    yardstick.settle()
    assert yardstick.pace() == (1.0, 1.0)
    assert yardstick.undisturbed_ns is None
    assert yardstick.report() is None

"""Calibration of a small replica: every coefficient measured, the error on what was not fitted, plain values out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from kvrm.main import run_command
from kvrm_gpu import measure_room
from kvrm_gpu.calibrate import backend_for, calibrate
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_machine import NVIDIA_FIELDS, Machine, nvidia_settings
from kvrm_gpu.measure_pace import Yardstick
from kvrm_gpu.measure_points import Point
from kvrm_gpu.measure_steps import StepMeasurement
from kvrm_gpu.profile_build import blank_profile, duplex_slowdown
from kvrm_gpu.profile_scale import SCALES, scale_for
from kvrm_sim.config import HardwareProfile, load_hardware
from kvrm_sim.errors import ConfigError, DoesNotFitError, InvariantError
from tests.gpu.small_scale import FITTED, MODEL, POLICIES, SMALL, calibration

CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here: it is what 'auto' takes")


def test_every_coefficient_is_measured_and_says_on_what() -> None:
    profile, report = calibration().profile, calibration().report
    assert profile.calibrated
    for coefficient in profile.coefficients().values():
        assert report["device"] in coefficient.source
        assert report["date"] in coefficient.source
    assert HardwareProfile.from_toml(profile.to_toml()) == profile


def test_copies_each_way_and_both_ways_at_once_are_measured() -> None:
    profile, frame = calibration().profile, calibration().table.to_pandas()
    copies = frame[frame["part"] == "copy"]
    assert set(copies["kind"]) == {"h2d", "d2h", "d2d", "h2d_duplex", "d2h_duplex"}
    assert profile.optional_names()[:3] == ("d2h_bytes_per_s", "duplex_h2d_slowdown", "duplex_d2h_slowdown")
    assert set(profile.coefficient_names()) == {*profile.required_names(), *profile.optional_names()[:3]}


@pytest.mark.parametrize(("both_ns", "slowdown"), [(250, 2.5), (100, 1.0), (90, 1.0)])
def test_the_largest_copy_tells_how_much_both_ways_at_once_cost(both_ns: int, slowdown: float) -> None:
    """A small one is over before the other way has begun; noise below 1 is no speed-up."""
    points = [
        Point.of("copy", kind, [ns], bytes=size)
        for size, times in ((64, (10, 90)), (4096, (100, both_ns)))
        for kind, ns in zip(("d2h", "d2h_duplex"), times, strict=True)
    ]
    assert duplex_slowdown(points, "d2h") == slowdown


def test_the_error_is_reported_on_cells_and_policies_that_no_fit_saw() -> None:
    """Bounds that hold on a machine that runs other things too; how exact the model is, the long test asserts."""
    steps = calibration().report["steps"]
    assert set(steps) == set(POLICIES)
    for policy, found in steps.items():
        assert found["fitted"] == (policy in FITTED)
        assert found["held_out_steps"] == found["steps"] or found["fitted"]
        assert found["held_out_steps"] > 0
        assert found["held_out_median_abs_error"] < 0.5
        assert found["repeat_median_abs_spread"] < 0.5
    assert steps["kv-rm"]["median_abs_error"] is None


def test_the_table_holds_every_step_with_what_it_was_made_of() -> None:
    frame = calibration().table.to_pandas()
    assert set(frame["part"]) == {"launch", "copy", "transfer", "attention", "dense", "step"}
    steps = frame[frame["part"] == "step"]
    assert dict(steps.groupby("kind").size()) == {
        policy: found["steps"] for policy, found in calibration().report["steps"].items()
    }
    assert (steps["p10_ns"] <= steps["p50_ns"]).all()
    assert (steps["p50_ns"] <= steps["p90_ns"]).all()
    assert steps["predicted_ns"].gt(0).all()


@CPU
def test_the_report_is_plain_and_says_which_clock_and_how_fast_the_machine_ran() -> None:
    report = json.loads(json.dumps(calibration().report, allow_nan=False))
    assert report["clock"] == "thread_cpu_time"
    assert "thread" in report["clock_meaning"]
    assert report["pace"]["operations"]["undisturbed_ns"] > 0
    assert calibration().profile.yardsticks_ns == {
        name: found["undisturbed_ns"] for name, found in report["pace"].items()
    }


@CPU
def test_a_repeat_that_is_decided_otherwise_raises() -> None:
    backend = backend_for("cpu")
    llama = Llama(MODEL, backend.device, 0)
    blank = blank_profile(Machine.of(backend, "2026-01-01"))
    runner = StepMeasurement(backend, llama, SMALL, "dynamic", blank, Yardstick(backend, llama))
    runner.once()
    runner._runs[0].digests[-1] = "other"
    with pytest.raises(InvariantError, match="dynamic"):
        runner.once()


def test_a_scale_is_known_by_name_or_given() -> None:
    assert scale_for(None, "cpu") is SCALES["smoke"]
    assert scale_for(None, "cuda") is SCALES["device"]
    assert scale_for(SMALL, "cpu") is SMALL
    with pytest.raises(ConfigError, match="did you mean 'smoke'"):
        scale_for("smok", "cpu")


@CPU
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="'cuda': torch finds none on this machine"):
        calibrate("cuda", MODEL, scale=SMALL)


@CPU
def test_the_command_refuses_a_device_that_is_not_there_as_a_wrong_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["calibrate", "--device", "cuda", "-o", str(tmp_path / "a.toml")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "kvrm: device 'cuda': torch finds none on this machine; use 'cpu' or 'auto'\n"
    assert list(tmp_path.iterdir()) == []


@CPU
def test_a_model_that_does_not_fit_is_refused_with_the_sizes_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Weights alone, then weights with every policy's pool: tiny-llama's are 1.25 MiB, and 24 blocks a pool."""
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(measure_room, "MEMINFO", meminfo)
    meminfo.write_text("MemTotal: 9999999 kB\nMemAvailable: 65536 kB\n")
    told: list[str] = []
    weights = r"model 'llama-3-70b' does not fit this device \(cpu\): weights 131\.42 GiB, and 0\.06 GiB are free"
    with pytest.raises(DoesNotFitError, match=weights):
        calibrate("cpu", "llama-3-70b", progress=told.append)
    meminfo.write_text("MemTotal: 9999999 kB\nMemAvailable: 2048 kB\n")
    with pytest.raises(DoesNotFitError, match=r"KV pools and staging of 2 policies 0\.00 GiB, and 0\.00 GiB are free"):
        calibrate("cpu", MODEL, scale=SMALL, policies=("static", "kv-rm"), fitted=("static",), progress=told.append)
    meminfo.write_text("nothing")
    with pytest.raises(DoesNotFitError, match="how much memory is free is unknown"):
        calibrate("cpu", MODEL, scale=SMALL)
    assert told == []


@CPU
def test_a_model_that_the_cpus_kernels_do_not_take_is_refused() -> None:
    other = MODEL.model_copy(update={"dtype": "bfloat16"})
    with pytest.raises(ConfigError, match=r"model\.dtype = 'bfloat16': on the CPU only float32 models are measured"):
        calibrate("cpu", other, scale=SMALL)


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="fitted: 'kv-rm' is none of the policies static"):
        calibrate("cpu", MODEL, scale=SMALL, policies=("static",), fitted=("kv-rm",))
    with pytest.raises(ConfigError, match="repeats: 0, should be at least 1"):
        calibrate("cpu", MODEL, scale=SMALL, repeats=0)


@pytest.mark.parametrize(("status", "wanted"), [(0, "570.1"), (6, None)])
def test_driver_and_clocks_are_read_where_nvidia_smi_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, wanted: str | None
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '570.1, 1980 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 700 W, 41'\nexit {status}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    settings = nvidia_settings("0")
    assert settings.get("driver_version") == wanted
    assert wanted is None or tuple(settings) == NVIDIA_FIELDS


def test_without_nvidia_smi_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_settings("0") == {}


def test_a_preset_has_no_yardsticks() -> None:
    assert load_hardware("h200").yardsticks_ns is None

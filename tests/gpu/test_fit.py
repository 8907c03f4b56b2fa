"""The fit gives known coefficients back, and never looks at what is held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvrm_gpu.fit import fit_linear, fit_steps, predicted_ns, slope
from kvrm_gpu.measure_points import Point
from kvrm_gpu.measure_steps import MeasuredSteps
from kvrm_sim.config import HardwareProfile, load_hardware
from tests.gpu.small_scale import simulated_steps

#: Of a token of the small model.
KV_BYTES = 1024
POLICIES = ("static", "dynamic", "graph-paged", "kv-rm")


def slow_device() -> HardwareProfile:
    """A device in whose steps every part takes its share: the small model's work would be nothing on an H200."""
    changes = {
        "dense_flops_per_s": 5e10, "hbm_bytes_per_s": 8e10, "d2d_bytes_per_s": 1e9, "h2d_bytes_per_s": 2e10,
        "peer_bytes_per_s": 3e9, "attention_table_efficiency": 0.03, "attention_contiguous_efficiency": 0.05,
        "host_step_ns": 8e4, "host_row_ns": 4e3, "host_chunk_ns": 2e4, "host_block_ns": 1.5e3, "host_group_ns": 3e2,
        "commit_call_ns": 7e4, "first_launch_ns": 9e5, "mixed_launch_ns": 3e5, "graph_replay_ns": 7e5,
        "graph_node_gap_ns": 1e3, "kernel_launch_ns": 1.0, "copy_segment_ns": 4e3,
        "store_bytes_per_s": 5e8, "idle_read_share": 0.4,
    }  # fmt: skip
    return load_hardware("h200").override({f"{name}.value": value for name, value in changes.items()})


def test_known_costs_come_back_and_a_cost_that_is_not_there_is_zero() -> None:
    x = np.arange(1.0, 30.0)
    columns = {"one": np.ones_like(x), "x": x, "square": x**2}
    fitted = fit_linear(columns, 5.0 + 3.0 * x)
    assert fitted["one"] == pytest.approx(5.0)
    assert fitted["x"] == pytest.approx(3.0)
    assert fitted["square"] == pytest.approx(0.0, abs=1e-9)
    assert fitted.error == pytest.approx(0.0, abs=1e-9)


def test_a_cost_is_never_negative() -> None:
    x = np.arange(1.0, 30.0)
    assert fit_linear({"one": np.ones_like(x), "x": x}, 100.0 - x)["x"] == 0.0


def test_noise_does_not_make_costs_too_low() -> None:
    """Divided by the measured time, what happened to be quick would weigh most: 100 ± 30 gave 92."""
    noise = np.random.default_rng(4).uniform(-0.3, 0.3, 4000)
    found = fit_linear({"one": np.ones(4000)}, 100.0 * (1.0 + noise))
    assert found["one"] == pytest.approx(100.0, rel=0.01)


def test_the_slope_of_points() -> None:
    points = [Point.of("launch", "eager", [1000 + 20 * kernels], kernels=kernels) for kernels in (1, 16, 64, 256)]
    assert slope(points, "kernels") == (pytest.approx(1000.0), pytest.approx(20.0))


def fitted_steps(measured: list[MeasuredSteps], device: HardwareProfile) -> dict[str, float]:
    h2d = device.h2d_bytes_per_s.value
    found = fit_steps(
        measured,
        commit_byte_ns=1e9 / h2d,
        store_token_ns=1e9 * KV_BYTES / device.store_bytes_per_s.value,
        memory_bytes_per_s=device.hbm_bytes_per_s.value,
    )
    return (
        {f"host {k}": v for k, v in found.host.coefficients.items()}
        | dict(found.device.coefficients)
        | {"commit": found.commit["call"]}
    )


def test_a_simulated_device_gives_its_own_coefficients_back() -> None:
    """Times come from cost.py, the fit has equations of its own: a term that either lacks shows here."""
    device = slow_device()
    found = fitted_steps([simulated_steps(policy, device) for policy in POLICIES], device)
    value = device.value
    for name in ("step", "row", "chunk", "block", "group"):
        assert found[f"host {name}"] == pytest.approx(value(f"host_{name}_ns"), rel=0.02), name
    assert found["commit"] == pytest.approx(value("commit_call_ns"), rel=0.01)
    assert found["segment"] == pytest.approx(value("copy_segment_ns"), rel=0.02)
    assert found["mixed"] == pytest.approx(value("mixed_launch_ns"), rel=0.05)
    assert found["eager"] == pytest.approx(value("first_launch_ns"), rel=0.05)
    table = 1e9 * KV_BYTES / (value("hbm_bytes_per_s") * value("attention_table_efficiency"))
    contiguous = 1e9 * KV_BYTES / (value("hbm_bytes_per_s") * value("attention_contiguous_efficiency"))
    assert found["table_token"] == pytest.approx(table, rel=0.02)
    assert found["contiguous_token"] == pytest.approx(contiguous, rel=0.02)
    assert found["idle_token"] == pytest.approx(0.4 * contiguous, rel=0.02)


def test_what_is_held_out_changes_nothing() -> None:
    device = slow_device()
    measured = [simulated_steps(policy, device) for policy in POLICIES]
    spoiled = []
    for m in measured:
        times = m.times_ns.copy()
        times[:, m.held_out] *= 7
        assert m.held_out.any()
        spoiled.append(replace(m, times_ns=times))
    assert fitted_steps(spoiled, device) == fitted_steps(measured, device)
    times = measured[1].times_ns.copy()
    times[:, ~measured[1].held_out] *= 2
    other = [measured[0], replace(measured[1], times_ns=times), *measured[2:]]
    assert fitted_steps(other, device) != fitted_steps(measured, device)


def test_predictions_are_those_of_the_simulator() -> None:
    device = slow_device()
    m = simulated_steps("kv-rm", device)
    blank = device.override({"host_step_ns.value": 1.0, "graph_replay_ns.value": 1.0})
    other = simulated_steps("kv-rm", blank)
    assert np.array_equal(predicted_ns(m.config, m.plan, device, other.records).sum(axis=1), m.totals_ns[1])

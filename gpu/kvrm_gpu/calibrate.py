"""Measure this machine: a HardwareProfile whose every coefficient is measured, with its raw table and its page.

Kernels, copies and launches are measured alone; whole steps of several policies as the core decides them. The fit sees
some cells of some policies; the error is reported on the other cells, and on whole policies that no fit has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend
from kvrm_gpu.fit import StepFit, fit_steps, predicted_ns
from kvrm_gpu.live_cpu import LiveCpuBackend
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_copies import measure_memory, measure_routes
from kvrm_gpu.measure_kernels import measure_attention, measure_dense, measure_launch, measure_store
from kvrm_gpu.measure_machine import Machine
from kvrm_gpu.measure_pace import Yardstick
from kvrm_gpu.measure_points import Point, undisturbed
from kvrm_gpu.measure_room import require_room
from kvrm_gpu.measure_steps import FEATURES, MeasuredSteps, StepMeasurement, steps_config
from kvrm_gpu.measure_turns import Turns, minutes
from kvrm_gpu.profile_build import blank_profile, build_profile, copy_rates, count_operations, store_token_ns
from kvrm_gpu.profile_scale import POLICIES, Scale, scale_for
from kvrm_sim import state as st
from kvrm_sim.config import HardwareProfile, ModelSpec, load_model
from kvrm_sim.cost import GRAPH
from kvrm_sim.errors import ConfigError

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
#: About what a CPU takes at the smoke scale: for all kernels and copies, and for one run of a policy's steps.
SMOKE_POINTS_S, SMOKE_STEPS_S = 20.0, 2.5
FITTED = ("static", "dynamic", "graph-paged", "kv-rm")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """``table``: every measured cell, one row each. ``report``: plain values for JSON."""

    profile: HardwareProfile
    table: pa.Table
    report: dict[str, Any]


def backend_for(device: Device) -> Backend:
    """The backend of a device; on the CPU, torch is held to one thread. Raises ConfigError when there is none."""
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        if not torch.cuda.is_available():
            raise ConfigError("device 'cuda': torch finds none on this machine; use 'cpu' or 'auto'", "device", device)
        from kvrm_gpu.cuda_backend import CudaBackend

        return CudaBackend()
    torch.set_num_threads(1)
    return LiveCpuBackend()


def require_at_least(**given: tuple[int, int]) -> None:
    """Raise ConfigError for a value below its least, by the argument's name: (value or length, least)."""
    for name, (value, least) in given.items():
        if value < least:
            raise ConfigError(f"{name}: {value}, should be at least {least}", name, value)


def _require_known(fitted: Sequence[str], policies: Sequence[str]) -> None:
    for policy in fitted:
        if policy not in policies:
            raise ConfigError(f"fitted: {policy!r} is none of the policies {', '.join(policies)}", "fitted", policy)


def clock_report(yardstick: Yardstick) -> dict[str, Any]:
    """What times were taken with, for a report: ``clock``, what it means, and the machine's pace."""
    if not yardstick.used:
        meaning = "wall clock of the host, from the end of one step to the end of the next"
        return {"clock": "wall", "clock_meaning": meaning, "pace": None}
    meaning = (
        "CPU time of the one thread that runs the step, each part divided by how much slower than undisturbed a fixed "
        "piece of work ran beside the step (pace): the machine is shared"
    )
    return {"clock": "thread_cpu_time", "clock_meaning": meaning, "pace": yardstick.report()}


def _announcement(machine: Machine, size: Scale, policies: int, repeats: int) -> str:
    """What is done, and for about how long."""
    steps = f"whole steps of {policies} policies, {repeats} times after a warm-up"
    what = f"measuring {machine.name}: kernels and copies, then {steps}"
    if machine.backend != "cpu" or size.name != "smoke":
        return f"{what}; how long that takes is said after the warm-up"
    seconds = SMOKE_POINTS_S + SMOKE_STEPS_S * policies * (repeats + 1)
    return f"{what}; about {minutes(seconds)} on a machine that does nothing else"


def calibrate(
    device: Device = "auto",
    model: str | Path | ModelSpec = "tiny-llama",
    *,
    scale: str | Scale | None = None,
    fitted: Sequence[str] = FITTED,
    policies: Sequence[str] = POLICIES,
    repeats: int = 5,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Measure ``policies`` and fit on ``fitted`` of them. ``repeats``: of whole steps; kernels take five times as many.

    ``scale``: by default ``smoke`` on the CPU and ``device`` elsewhere. ``progress`` is told first what is done and for
    about how long, then what is measured next, as "phase" or "phase: what of it". Raises ConfigError for arguments
    that cannot be, a device that is not there among them, DoesNotFitError for a model that this device cannot hold,
    and InvariantError when a repeat was decided otherwise.
    """
    began, began_cpu = time.perf_counter(), time.process_time()
    require_at_least(repeats=(repeats, 1), fitted=(len(fitted), 1))
    _require_known(fitted, policies)
    tell = progress or (lambda _: None)
    backend = backend_for(device)
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    size = scale_for(scale, backend.name)
    machine = Machine.of(backend, datetime.now(UTC).date().isoformat())
    blank = blank_profile(machine)
    require_room(backend, spec, (steps_config(size, policy, spec, blank, seed) for policy in policies))
    tell(_announcement(machine, size, len(policies), repeats))
    llama = Llama(spec, backend.device, seed)
    points = _measure_points(backend, llama, size, 5 * repeats, tell)
    yardstick = Yardstick(backend, llama)
    runners = {policy: StepMeasurement(backend, llama, size, policy, blank, yardstick, seed) for policy in policies}
    with undisturbed():
        turns = Turns(repeats)
        for repeat, phase in turns:
            for policy, runner in runners.items():
                tell(f"{phase}: steps of {policy}")
                runner.once()
            if repeat == 0:
                yardstick.settle()
    steps = {policy: runner.measured() for policy, runner in runners.items()}
    tell("fit")
    used = [steps[policy] for policy in fitted]
    profile, fit = _fit(machine, llama, points, used, [*steps.values()])
    profile = profile.model_copy(update={"yardsticks_ns": yardstick.undisturbed_ns})
    predictions = {policy: predicted_ns(m.config, m.plan, profile, m.records) for policy, m in steps.items()}
    report = {
        "device": machine.name,
        "backend": machine.backend,
        "versions": machine.versions,
        "settings": machine.settings,
        "date": machine.date,
        "model": spec.name,
        "scale": size.name,
        **clock_report(yardstick),
        "repeats": repeats,
        "fitted_policies": list(fitted),
        "weights_tokens": fit.weights_tokens,
        "steps": {policy: _errors(m, predictions[policy], policy in fitted) for policy, m in steps.items()},
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - began_cpu,
    }
    table = pa.concat_tables(
        [_point_table(points), *(_step_table(policy, m, predictions[policy], policy in fitted)
                                 for policy, m in steps.items())],
        promote_options="default",
    )  # fmt: skip
    return Calibration(profile=profile, table=table, report=report)


def _measure_points(
    backend: Backend, llama: Llama, scale: Scale, repeats: int, tell: Callable[[str], None]
) -> list[Point]:
    points: list[Point] = []
    with undisturbed(), torch.no_grad():
        tell("launches")
        points += measure_launch(backend, repeats)
        tell("copies")
        points += measure_memory(backend, repeats)
        points += measure_routes(backend, llama, scale, repeats)
        tell("attention")
        points += measure_attention(backend, llama, scale, repeats)
        points += measure_store(backend, llama, scale, repeats)
        tell("dense layers")
        points += measure_dense(backend, llama, scale, repeats)
    return points


def _fit(
    machine: Machine,
    llama: Llama,
    points: Sequence[Point],
    used: Sequence[MeasuredSteps],
    every: Sequence[MeasuredSteps],
) -> tuple[HardwareProfile, StepFit]:
    _, h2d, _ = copy_rates(points, "h2d")
    _, _, d2d_peak = copy_rates(points, "d2d")
    fit = fit_steps(
        used,
        commit_byte_ns=1e9 / h2d,
        store_token_ns=store_token_ns(points, llama.spec),
        memory_bytes_per_s=2 * d2d_peak,
    )
    captures = [taken for m in every for taken in m.captures_ns]
    captured = sum(m.captured_bytes for m in every)
    per_layer, per_step = count_operations(llama)
    extra = {
        "graph_capture_ns": float(np.median(captures)) if captures else 0.0,
        "graph_bytes": captured / max(1, len(captures)),
        "first_launch_ns": fit.device["eager"],
        "mixed_launch_ns": fit.device["mixed"],
        "kernels_per_layer": float(per_layer),
        "kernels_per_step": float(per_step),
        "block_bytes": float(used[0].plan.block_bytes),
    }
    profile = build_profile(machine, llama.spec, points, fit, extra)
    if machine.backend != "cpu":
        # Eager launches run ahead of the device, so only what they do not cover is the first launch's.
        late = _first_launch_ns(profile, used)
        profile = build_profile(machine, llama.spec, points, fit, extra | {"first_launch_ns": late})
    return profile, fit


def _first_launch_ns(profile: HardwareProfile, used: Sequence[MeasuredSteps]) -> float:
    left = []
    for m in used:
        eager = (m.column("launch_kind") != GRAPH) & ~m.held_out
        predicted = predicted_ns(m.config, m.plan, profile, m.records).sum(axis=1)
        left.append((m.totals_ns[1] - predicted)[eager])
    return profile.first_launch_ns.value + float(np.median(np.concatenate(left)))


def _errors(m: MeasuredSteps, predicted: NDArray[np.int64], fitted: bool) -> dict[str, Any]:
    """Median and p90 of the absolute relative error of whole steps; beside them the spread of repeats, None of one."""
    measured = m.totals_ns[1]
    error = np.abs(predicted.sum(axis=1) - measured) / measured
    held = m.held_out if fitted else np.ones(len(error), np.bool_)
    single = m.times_ns.sum(axis=2)
    # One repeat is its own median: it has no spread.
    spread = float(np.median(np.abs(single - measured[None]) / measured[None])) if len(single) > 1 else None
    held_error = float(np.median(error[held]))
    return {
        "fitted": fitted,
        "steps": len(error),
        "held_out_steps": int(held.sum()),
        "median_abs_error": None if held.all() else float(np.median(error[~held])),
        "held_out_median_abs_error": held_error,
        "held_out_p90_abs_error": float(np.percentile(error[held], 90)),
        "repeat_median_abs_spread": spread,
        "noise": None if spread is None else held_error <= spread,
    }


def _point_table(points: Sequence[Point]) -> pa.Table:
    names = sorted({name for point in points for name in point.x})
    columns: dict[str, list[Any]] = {
        "part": [point.part for point in points],
        "kind": [point.kind for point in points],
        "repeats": [point.repeats for point in points],
        **{f"{which}_ns": [getattr(point, f"{which}_ns") for point in points] for which in ("p10", "p50", "p90")},
        **{name: [point.x.get(name) for point in points] for name in names},
    }
    return pa.table(columns)


def _step_table(policy: str, m: MeasuredSteps, predicted: NDArray[np.int64], fitted: bool) -> pa.Table:
    count = len(m.records)
    held = m.held_out if fitted else np.ones(count, np.bool_)
    parts: Mapping[str, NDArray[Any]] = {
        f"{st.PARTS[at]}_p50_ns": m.parts_ns[:, at] for at in range(len(st.PARTS)) if m.parts_ns[:, at].any()
    }
    columns: dict[str, Any] = {
        "part": ["step"] * count,
        "kind": [policy] * count,
        "repeats": [len(m.times_ns)] * count,
        "p10_ns": m.totals_ns[0],
        "p50_ns": m.totals_ns[1],
        "p90_ns": m.totals_ns[2],
        "predicted_ns": predicted.sum(axis=1),
        "held_out": held,
        "cell": m.cells,
        **{name: np.asarray(m.records[name], np.int64) for name in FEATURES},
        **parts,
    }
    return pa.table(columns)

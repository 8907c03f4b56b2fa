"""The public functions that run on a device: measure it, and hold the simulator against it.

    import kvrm

    measured = kvrm.calibrate("cpu", out="cpu.toml")
    report = kvrm.validate("azure-conv-like", "cpu.toml", device="cpu").report

They need the extra ``gpu``, without which each raises InputError with the command that brings it. Imports of the parts
are inside the functions, as in :mod:`kvrm.api`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kvrm.folders import check, check_together, staged, staged_together
from kvrm.presets import plugged
from kvrm.traces import open_trace

if TYPE_CHECKING:
    import pyarrow as pa

    from kvrm.plugins import PartSource
    from kvrm_gpu.calibrate import Calibration
    from kvrm_gpu.from_steps import LogFit
    from kvrm_sim.hardware import HardwareProfile
    from kvrm_sim.model import ModelSpec
    from kvrm_traces import Trace

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
#: Told first what is done and for about how long, then what is measured next: "phase" or "phase: what of it".
Tell: TypeAlias = Callable[[str], None]

#: Loads of a validation, as shares of the rate that a policy can serve.
DEFAULT_LOADS = (0.5, 1.0, 1.5)
#: Requests of the trace that a validation executes.
DEFAULT_ROWS = 150
CALIBRATION_REPEATS, VALIDATION_REPEATS = 5, 3


@dataclass(frozen=True, kw_only=True)
class Validation:
    """``report``: plain values, what ``--json`` prints. ``steps``: one row an executed step, or None where their times
    were not kept. ``failures``: what does not hold, one line each; ``missed``: errors above their goals, which is no
    failure. ``folder``: where it was written, or None.
    """

    report: dict[str, Any]
    steps: pa.Table | None
    failures: tuple[str, ...]
    missed: tuple[str, ...]
    folder: Path | None = None

    def to_json(self) -> str:
        """The report as JSON text, without NaN or infinity (either is a ValueError)."""
        return json.dumps(self.report, indent=2, allow_nan=False)


def calibrate(
    device: Device = "auto",
    model: str | Path | ModelSpec = "tiny-llama",
    *,
    out: str | Path | None = None,
    force: bool = False,
    scale: str | None = None,
    repeats: int = CALIBRATION_REPEATS,
    seed: int = 0,
    progress: Tell | None = None,
) -> Calibration:
    """Measure this machine: a profile whose every coefficient is measured, the raw table, and a report of its errors.

    ``device``: ``auto`` is CUDA where torch finds it. ``scale``: ``smoke`` (the default on a CPU) or ``device``.
    ``repeats``: of whole steps. With ``out`` (a name that ends in .toml) the profile is written there, and beside it
    the raw table (.parquet) and a page of figures (.svg): all three, or nothing. Existing ones are refused unless
    ``force``. Raises InputError (wrong arguments, no torch) and WorkError (no such device, a measurement that went
    wrong).
    """
    from kvrm_sim.config import load_model

    targets = None if out is None else calibration_files(out)
    require_torch()
    _check_counts(repeats=repeats)
    _check_scale(scale)
    spec = load_model(model) if isinstance(model, (str, Path)) else model
    if targets is not None:
        check_together(targets, force=force)
    from kvrm_gpu.calibrate import calibrate as measure

    found = measure(device, spec, scale=scale, repeats=repeats, seed=seed, progress=progress)
    if targets is not None:
        with staged_together(targets, force=force) as unfinished:
            _write_calibration(found, *unfinished)
    return found


def calibrate_from_steps(
    path: str | Path,
    model: str | Path | ModelSpec,
    hardware: str | Path | HardwareProfile,
    *,
    out: str | Path | None = None,
    force: bool = False,
) -> LogFit:
    """Fit the profile ``hardware`` to an engine's own log: a CSV with the columns rows, tokens, context_sum and ms.

    What the log cannot tell stays as it is in ``hardware``. ``model``: what the engine ran. ``out``: the TOML file to
    write; the profile is then named after it. Raises InputError with the file, the row and the column.
    """
    target = None if out is None else calibration_files(out)[0]
    require_torch()
    if target is not None:
        check(target, kind="file", force=force)
    from kvrm_gpu.from_steps import from_steps

    found = from_steps(path, model, hardware, name=None if target is None else target.stem)
    if target is not None:
        with staged(target, kind="file", force=force) as unfinished:
            unfinished.write_text(found.profile.to_toml(), encoding="utf-8")
    return found


def validate(
    trace: str | Path | Trace,
    hardware: str | Path | HardwareProfile,
    model: str | Path | ModelSpec = "tiny-llama",
    *,
    device: Device = "auto",
    policies: Sequence[str] | None = None,
    loads: Sequence[float] = DEFAULT_LOADS,
    out: str | Path | None = None,
    force: bool = False,
    scale: str | None = None,
    rows: int = DEFAULT_ROWS,
    repeats: int = VALIDATION_REPEATS,
    seed: int = 0,
    ranges: bool = False,
    progress: Tell | None = None,
    plugins: Sequence[PartSource] = (),
) -> Validation:
    """Simulate, execute and compare the first ``rows`` requests of a trace under each policy. See docs/validation.md.

    ``policies``: the six that the device executes, unless named. ``loads``: arrival rates as shares of what a policy
    can serve. ``ranges``: name the parts of each step to a profiler. ``plugins``: users' parts that a policy's file may
    name (docs/plugins.md). With ``out`` a folder is written:
    ``report.json``, ``steps.parquet``, ``validation.png`` and ``.svg``. Raises as :func:`calibrate`; what was
    executed and does not hold is in ``failures``.
    """
    from kvrm_sim.config import load_hardware, load_model

    require_torch()
    _check_counts(repeats=repeats)
    with plugged(plugins):
        _check_validation(policies, loads, rows)
    _check_scale(scale)
    spec = load_model(model) if isinstance(model, (str, Path)) else model
    profile = load_hardware(hardware) if isinstance(hardware, (str, Path)) else hardware
    opened = open_trace(trace, seed=seed) if isinstance(trace, (str, Path)) else trace
    if out is not None:
        check(Path(out), kind="folder", force=force)
    from kvrm_gpu.profile_scale import POLICIES
    from kvrm_gpu.validate import missed_goals, verdict
    from kvrm_gpu.validate import validate as execute

    with plugged(plugins):
        report = execute(
            opened,
            profile,
            spec,
            device=device,
            policies=tuple(policies or POLICIES),
            loads=tuple(loads),
            scale=scale,
            rows=rows,
            repeats=repeats,
            seed=seed,
            ranges=ranges,
            progress=progress,
        )
    found = Validation(
        report=report,
        steps=_taken_steps(report),
        failures=tuple(verdict(report)),
        missed=tuple(missed_goals(report)),
    )
    if out is None:
        return found
    with staged(Path(out), kind="folder", force=force) as unfinished:
        unfinished.mkdir()
        _write_validation(found, unfinished)
    return replace(found, folder=Path(out))


def require_torch() -> None:
    """Raise InputError, with the extra that brings it, when torch is not installed; torch is not imported."""
    from kvrm_gpu import MissingExtraError
    from kvrm_gpu import require_torch as require
    from kvrm_traces.errors import InputError

    try:
        require()
    except MissingExtraError as error:
        raise InputError(str(error)) from None


def calibration_files(out: str | Path) -> tuple[Path, Path, Path]:
    """The profile, the raw table and the page of a calibration that is written to ``out``."""
    from kvrm_traces.errors import InputError

    target = Path(out)
    if target.suffix != ".toml":
        raise InputError(f"{str(out)!r}: a profile's name should end in .toml, so that --hardware finds it")
    return target, target.with_suffix(".parquet"), target.with_suffix(".svg")


def _check_counts(**counts: int) -> None:
    from kvrm_traces.errors import InputError

    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} = {count}: should be 1 or more")


def _check_validation(policies: Sequence[str] | None, loads: Sequence[float], rows: int) -> None:
    from kvrm_sim.config import load_policy
    from kvrm_traces.errors import InputError

    for policy in policies or ():
        load_policy(policy)
    if policies is not None and len(set(policies)) < max(1, len(policies)):
        raise InputError(f"policies = {list(policies)}: name at least one, and each once")
    if not loads or len(set(loads)) < len(loads) or not all(0 < load < float("inf") for load in loads):
        raise InputError(f"loads = {list(loads)}: should be different shares of saturation above 0, e.g. 0.5 and 1.5")
    if rows < 2:
        raise InputError(f"rows = {rows}: an arrival rate needs 2 requests or more")


def _check_scale(scale: str | None) -> None:
    from kvrm_gpu.profile_scale import SCALES
    from kvrm_sim.tables import nearest
    from kvrm_traces.errors import InputError

    if scale is not None and scale not in SCALES:
        raise InputError(f"scale {scale!r} is unknown{nearest(scale, SCALES)}")


def _write_calibration(found: Calibration, profile: Path, table: Path, page: Path) -> None:
    import pyarrow.parquet as pq

    from kvrm_analysis.drawing.profile_page import profile_page

    profile.write_text(found.profile.to_toml(), encoding="utf-8")
    pq.write_table(found.table, table)
    profile_page(found.table, found.report, page)


def _taken_steps(report: dict[str, Any]) -> pa.Table | None:
    """The times of single steps, taken out of the report: thousands of numbers that no one reads as JSON."""
    import pyarrow as pa

    kept = {policy: found.pop("step_times", None) for policy, found in report["policies"].items()}
    tables = [
        pa.table({"policy": [policy] * len(times["predicted_ns"]), **times})
        for policy, times in kept.items()
        if times is not None
    ]
    return pa.concat_tables(tables) if tables else None


def _write_validation(found: Validation, folder: Path) -> None:
    import pyarrow.parquet as pq

    from kvrm_analysis.drawing.validation_page import validation_page

    (folder / "report.json").write_text(found.to_json() + "\n", encoding="utf-8")
    if found.steps is not None:
        pq.write_table(found.steps, folder / "steps.parquet")
    validation_page(found.report, found.steps, folder / "validation.png")

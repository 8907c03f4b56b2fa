"""A profile from a user's own engine log, for those who cannot run our step on their device.

Columns of the file: ``rows`` (sequences in the step), ``tokens`` (computed in it, prompt tokens included),
``context_sum`` (tokens of context over all rows, as of the step's end) and ``ms`` (its duration). Four costs are told
apart by non-negative least squares: a step's, a row's, that of a matrix product's operations (of which a step has at
least as many as reading the weights takes) and that of a token of context. The engine is taken to replay graphs, and
every row to deliver a token. The rest of the profile is a preset's, as it stands; so the result is not `calibrated`,
and its sources say which is which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from kvrm_gpu.fit import LEAST_NS, Linear, fit_linear, weights_bytes_per_s
from kvrm_sim.config import Coefficient, HardwareProfile, ModelSpec, load_hardware, load_model
from kvrm_sim.errors import InputError

COLUMNS = ("rows", "tokens", "context_sum", "ms")
#: Fewer steps than this do not tell the coefficients and an error apart.
LEAST_STEPS = 20
#: Every n-th step is kept out of the fit.
HELD_OUT_EVERY = 4
#: A column of which less than this share is its own (not a mixture of the others) is told apart by noise alone.
LEAST_OWN_SHARE = 1e-4

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LogFit:
    """``report``: steps, held-out error (median and p90, relative), and the fitted ns a unit."""

    profile: HardwareProfile
    report: dict[str, Any]


def from_steps(
    path: str | Path, model: str | Path | ModelSpec, base: str | Path | HardwareProfile, *, name: str | None = None
) -> LogFit:
    """Fit the host, dense and attention coefficients of ``base`` to the log of an engine that runs ``model``.

    Fitted: ``host_step_ns``, ``host_row_ns`` and ``host_chunk_ns`` (one figure), ``dense_flops_efficiency``,
    ``weight_read_efficiency`` and both efficiencies of decode attention; the launch constants of ``base`` are taken
    off the constant. Raises InputError with file, row and column, and for a log that does not tell the costs apart.
    """
    source = Path(path)
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    preset = base if isinstance(base, HardwareProfile) else load_hardware(base)
    log: dict[str, Floats] = {
        column: np.asarray(values.to_numpy(), np.float64) for column, values in _read(source).items()
    }
    _check_told_apart(source, log)
    ns = log["ms"] * 1e6
    held = np.arange(len(ns)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    fitted, hinge = _fit(spec, {column: values[~held] for column, values in log.items()}, ns[~held])
    predicted = fitted.predict(_columns(spec, {column: values[held] for column, values in log.items()}, hinge))
    error = np.abs(predicted - ns[held]) / ns[held]
    changes = _coefficients(source, fitted, hinge, float(log["tokens"].min()), spec, preset)
    where = f"fitted to {len(ns)} steps of {source.name}, {datetime.now(UTC).date().isoformat()}"
    replaced = {
        key: Coefficient(value=value, provenance="measured", source=f"kvrm calibrate --from-steps: {where}")
        for key, value in changes.items()
    }
    about = {"name": name or source.stem, "description": f"{where}; everything else from {preset.name}"}
    profile = preset.model_copy(update={**replaced, **about})
    return LogFit(
        profile=HardwareProfile.from_dict(profile.to_dict()),
        report={
            "file": str(source),
            "steps": len(ns),
            "held_out_steps": int(held.sum()),
            "fit_median_abs_error": fitted.error,
            "held_out_median_abs_error": float(np.median(error)),
            "held_out_p90_abs_error": float(np.percentile(error, 90)),
            "fitted_ns": dict(fitted.coefficients),
            "weights_tokens": hinge,
            "replaced": sorted(changes),
        },
    )


def _columns(model: ModelSpec, log: Mapping[str, Floats], hinge: float) -> dict[str, Floats]:
    """What the fit multiplies. ``hinge``: as many tokens' products take as long as reading the weights."""
    body = 2.0 * model.layers * model.layer_matrix_parameters
    head = 2.0 * model.head_parameters
    products = body * np.maximum(log["tokens"], hinge) + head * np.maximum(log["rows"], hinge)
    return {"step": np.ones_like(products), "row": log["rows"], "flop": products, "context": log["context_sum"]}


def _fit(model: ModelSpec, log: Mapping[str, Floats], ns: Floats) -> tuple[Linear, float]:
    """The best fit, and its hinge in tokens: from a coarse ladder, then between its neighbours."""

    def squares(exponent: float) -> float:
        columns = _columns(model, log, 2.0**exponent)
        return float(np.mean((fit_linear(columns, ns).predict(columns) / ns - 1.0) ** 2))

    most = max(1, math.ceil(math.log2(float(log["tokens"].max()))))
    best = min(range(most + 1), key=squares)
    fine = minimize_scalar(squares, bounds=(max(0, best - 1), min(most, best + 1)), method="bounded")
    hinge = 2.0 ** float(fine.x)
    return fit_linear(_columns(model, log, hinge), ns), hinge


def _coefficients(
    source: Path, fitted: Linear, hinge: float, least_tokens: float, model: ModelSpec, preset: HardwareProfile
) -> dict[str, float]:
    """Ns a unit as coefficients of a profile; what the log shows no cost of keeps the preset's value.

    A rate above the preset's peak means that the preset is of another device: that is refused.
    """
    value = preset.value
    kernels = model.layers * value("kernels_per_layer") + value("kernels_per_step")
    apart = value("graph_replay_ns") + value("graph_node_gap_ns") * kernels + value("commit_call_ns")
    found: dict[str, float] = {}
    if fitted["flop"] > 0:
        found["dense_flops_efficiency"] = _share(source, "tokens", 1e9 / fitted["flop"], "dense_flops_per_s", preset)
        # With no step below the hinge, the log only says that reading the weights takes no longer than its least step.
        rate = weights_bytes_per_s(model, fitted["flop"], max(hinge, least_tokens))
        share = rate / value("hbm_bytes_per_s")
        if hinge <= least_tokens:
            share = min(1.0, max(share, value("weight_read_efficiency")))
        found["weight_read_efficiency"] = _share(
            source, "tokens", share * value("hbm_bytes_per_s"), "hbm_bytes_per_s", preset
        )
    else:
        weights = (model.layers * model.layer_matrix_parameters + model.head_parameters) * model.dtype_bytes
        apart += 1e9 * weights / (value("hbm_bytes_per_s") * value("weight_read_efficiency"))
    if fitted["context"] > 0:
        rate = 1e9 * model.kv_bytes_per_token() / fitted["context"]
        share = _share(source, "context_sum", rate, "hbm_bytes_per_s", preset)
        found["attention_table_efficiency"] = found["attention_contiguous_efficiency"] = share
    found["host_step_ns"] = max(LEAST_NS, fitted["step"] - apart)
    found["host_row_ns"] = found["host_chunk_ns"] = max(LEAST_NS, fitted["row"])
    return found


def _share(source: Path, column: str, rate: float, peak: str, preset: HardwareProfile) -> float:
    share = rate / preset.value(peak)
    if share > 1:
        raise InputError(
            f"{source}: {column}: the log's steps are {share:.3g} times as fast as the {peak} of {preset.name} allows: "
            "start from a profile of the device that ran them, and name the model that it ran"
        )
    return share


def _check_told_apart(source: Path, log: Mapping[str, Floats]) -> None:
    """Each column has to vary by itself. Raises InputError with the column that does not."""
    sizes = [column for column in COLUMNS if column != "ms"]
    for column in sizes:
        own = log[column]
        others = np.stack([np.ones_like(own), *(log[name] for name in sizes if name != column)])
        scaled = (others / np.linalg.norm(others, axis=1, keepdims=True).clip(1e-300)).T
        rest = own - scaled @ np.linalg.lstsq(scaled, own, rcond=None)[0]
        if np.linalg.norm(rest) <= LEAST_OWN_SHARE * np.linalg.norm(own):
            same = bool(np.ptp(own) == 0)
            why = f"is {own[0]:g} in every step" if same else "follows from the other columns in every step"
            raise InputError(
                f"{source}: {column} {why}, so its cost cannot be told from theirs: log steps of different sizes, with "
                "and without prompt tokens"
            )


def _read(path: Path) -> dict[str, pd.Series[float]]:
    try:
        log = pd.read_csv(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a CSV file: {error}") from None
    missing = [column for column in COLUMNS if column not in log.columns]
    if missing:
        have = ", ".join(str(column) for column in log.columns)
        raise InputError(f"{path}: no column {missing[0]!r}; it has {have}, and needs {', '.join(COLUMNS)}")
    found = {}
    for column in COLUMNS:
        numbers = pd.to_numeric(log[column], errors="coerce").astype(float)
        least = 1.0 if column in ("rows", "tokens") else 0.0
        bad = ~(numbers >= least) | ~np.isfinite(numbers) | ((column == "ms") & (numbers <= 0))
        if bad.any():
            at = int(np.flatnonzero(bad.to_numpy())[0])
            what = "a number above 0" if column == "ms" else f"a number of at least {least:g}"
            given = str(log[column].iloc[at])
            raise InputError(f"{path}: row {at + 2}, {column} = {given!r}: should be {what}")
        found[column] = numbers
    short = np.flatnonzero((found["tokens"] < found["rows"]).to_numpy())
    if len(short):
        at = int(short[0])
        tokens, rows = found["tokens"].iloc[at], found["rows"].iloc[at]
        raise InputError(f"{path}: row {at + 2}, tokens = {tokens:g}: should be at least rows = {rows:g}")
    if len(log) < LEAST_STEPS:
        raise InputError(f"{path}: {len(log)} steps; a fit needs at least {LEAST_STEPS}, of different sizes")
    return found

"""Sobol indices of outputs of a study: which keys move a figure, alone and together with others (docs/tuning.md).

    [sensitivity]
    outputs = ["itl_p99", "ttft_p99"]
    points = 128

The cells are Saltelli's design of ``points x (keys + 2)`` cells by SALib, run as a sweep: they continue, and each row
is kept. The *first* index is the share of an output's variance that a key explains alone, over the whole of its axis
and all values of the others; the *total* one is its share with everything that it does together with others. Intervals
are bootstrapped over the points.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvrm_analysis.searches.basis import Basis
from kvrm_analysis.searches.figures_of_merit import Figure, figure_named
from kvrm_analysis.searches.search_space import Space, read_space
from kvrm_analysis.studies.axes import Dimension
from kvrm_analysis.studies.study import USUAL_MOST_CELLS, Study
from kvrm_analysis.studies.study_file import StudyFile, needs_trace, own_table
from kvrm_analysis.studies.sweep import Sweep
from kvrm_sim.errors import ConfigError, InputError

SCHEMA = 1
_KEYS = ("outputs", "points", "seed", "confidence", "resamples")
#: Share of the points that may be lost to cells without results.
MOST_LOST = 0.1


@dataclass(frozen=True)
class SensitivityStudy:
    """What is asked for, checked."""

    file: StudyFile
    space: Space
    outputs: tuple[Figure, ...]
    points: int = 128
    seed: int = 0
    confidence: float = 0.95
    resamples: int = 200

    @property
    def block(self) -> int:
        """Cells of one point."""
        return len(self.space.dimensions) + 2

    def cells(self) -> Study:
        """The design, as the study of a sweep."""
        design = salib("sample").sample(self._problem(), self.points, calc_second_order=False, seed=self.seed)
        return Study(file=self.file, variants=tuple(self._settings(row) for row in design))

    def _settings(self, shares: Sequence[float]) -> dict[str, Any]:
        found = {}
        for of, share in zip(self.space.dimensions, shares, strict=True):
            if isinstance(of, Dimension):
                found[of.key] = of.at(float(share))
            else:
                found[of.key] = of.values[min(len(of.values) - 1, int(share * len(of.values)))]
        return found

    def _problem(self) -> dict[str, Any]:
        keys = list(self.space.keys)
        return {"num_vars": len(keys), "names": keys, "bounds": [[0.0, 1.0]] * len(keys)}


@dataclass(frozen=True)
class Index:
    """Of one key: shares of the variance, each with half the width of its interval."""

    key: str
    first: float
    first_half: float
    total: float
    total_half: float


@dataclass(frozen=True)
class Sensitivity:
    """Indices by output, keys in the order of the study; of an output that never varies there are none.

    ``lost``: points that had a cell without results, and are left out.
    """

    study: SensitivityStudy
    indices: Mapping[str, tuple[Index, ...]]
    spread: Mapping[str, tuple[float, float]]
    lost: int
    basis: Basis | None
    folder: Path | None = None
    figure: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "schema": SCHEMA,
            "study": self.study.file.name,
            "points": self.study.points,
            "cells": self.study.points * self.study.block,
            "lost_points": self.lost,
            "calibrated": None if self.basis is None else self.basis.calibrated,
            "confidence": self.study.confidence,
            "outputs": [
                {
                    "figure": figure.path,
                    "least": self.spread[figure.short][0],
                    "most": self.spread[figure.short][1],
                    "indices": [
                        {"key": each.key, "first": each.first, "first_half_interval": each.first_half,
                         "total": each.total, "total_half_interval": each.total_half}
                        for each in self.indices[figure.short]
                    ],
                }
                for figure in self.study.outputs
            ],
        }  # fmt: skip

    def to_text(self) -> str:
        """A table an output, the greatest total first."""
        study = self.study
        lines = [
            f"{study.file.name}: {study.points} points, {study.points * study.block:,} cells"
            + (f"; {self.lost} points left out (a cell without results)" if self.lost else ""),
            *([] if self.basis is None else [str(self.basis)]),
        ]
        width = max(len(key) for key in study.space.keys)
        for figure in study.outputs:
            low, high = self.spread[figure.short]
            lines.append(f"{figure.short}, {figure.text(low)} to {figure.text(high)}")
            if not self.indices[figure.short]:
                lines.append("  the same in every cell")
                continue
            lines.append(f"  {'':{width}}  first            total")
            lines += [
                f"  {each.key:{width}}  {each.first:5.2f} ± {each.first_half:4.2f}     {each.total:5.2f} ± "
                f"{each.total_half:4.2f}"
                for each in sorted(self.indices[figure.short], key=lambda each: -each.total)
            ]
        widest = max((each.total_half for found in self.indices.values() for each in found), default=0.0)
        if widest > 0.15:
            lines.append(f"intervals reach ± {widest:.2f}: more points narrow them with their square root")
        return "\n".join(lines)


def salib(part: str) -> Any:
    """SALib's Sobol module for ``sample`` or ``analyze``. Raises InputError that names the extra."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if part == "sample":
                from SALib.sample import sobol
            else:
                from SALib.analyze import sobol
    except ImportError:
        raise InputError("kvrm sensitivity needs SALib: install the extra, pip install 'kvrm[tune]'") from None
    return sobol


def sensitivity_of(file: StudyFile) -> SensitivityStudy:
    """What a study asks for. Raises ConfigError that names the key, the value and what would be right."""
    given = own_table(file, "sensitivity", _KEYS, "name the outputs, [sensitivity] outputs = ['itl_p99']")
    outputs = given.get("outputs")
    if not isinstance(outputs, list) or not outputs or not all(isinstance(name, str) for name in outputs):
        raise ConfigError(f"sensitivity.outputs = {outputs!r}: should be a list of figures, e.g. ['itl_p99']")
    try:
        figures = tuple(figure_named(name, "sensitivity.outputs") for name in outputs)
    except InputError as error:
        raise ConfigError(str(error)) from None
    if file.constraints:
        raise ConfigError(
            "constraints: Sobol indices need every cell between the ends of the axes; narrow the axes instead",
            "constraints",
        )
    points = _whole(given, "points", 128, 2)
    if points & (points - 1):
        near = 1 << points.bit_length()
        raise ConfigError(
            f"sensitivity.points = {points}: Sobol points are balanced only in powers of two: {near // 2} or {near}"
        )
    confidence = given.get("confidence", 0.95)
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise ConfigError(f"sensitivity.confidence = {confidence!r}: should be between 0 and 1, e.g. 0.95")
    space = read_space(file, "sensitivity")
    if len(space.dimensions) < 2:
        raise ConfigError("axes: one key explains everything by itself; name two or more", "axes")
    needs_trace({**file.base, **dict.fromkeys(space.keys)}, "")
    seed, resamples = _whole(given, "seed", 0, 0), _whole(given, "resamples", 200, 10)
    study = SensitivityStudy(file, space, tuple(dict.fromkeys(figures)), points, seed, confidence, resamples)
    if points * study.block > USUAL_MOST_CELLS:
        raise ConfigError(
            f"sensitivity.points = {points:,}: {points * study.block:,} cells ({study.block} a point); at most "
            f"{USUAL_MOST_CELLS:,}"
        )
    return study


def _whole(given: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31 - 1:
        raise ConfigError(f"sensitivity.{name} = {value!r}: should be a whole number, {least} or more")
    return value


def indices_of(study: SensitivityStudy, swept: Sweep) -> Sensitivity:
    """The indices of the rows of a sweep over the design. Raises InputError when too many cells have no results."""
    columns = {
        figure.short: np.array(swept.cells[figure.column].to_pylist(), dtype=np.float64) for figure in study.outputs
    }
    whole = np.all([np.isfinite(values) for values in columns.values()], axis=0)
    kept = whole.reshape(study.points, study.block).all(axis=1)
    lost = int(np.count_nonzero(~kept))
    if lost > MOST_LOST * study.points:
        errors = swept.without_results()
        empty = [name for name, values in columns.items() if not np.isfinite(values).all()]
        why = errors[0] if errors else f"{', '.join(empty)} has no value in some cells"
        raise InputError(f"{lost} of {study.points} points have a cell without results ({why}): narrow the axes")
    indices, spread = {}, {}
    for name, values in columns.items():
        used = values.reshape(study.points, study.block)[kept].ravel()
        spread[name] = float(used.min()), float(used.max())
        indices[name] = _indices(study, used) if spread[name][0] < spread[name][1] else ()
    pairs = zip(*(swept.cells[name].to_pylist() for name in ("calibrated", "injected_requests")), strict=True)
    return Sensitivity(study, indices, spread, lost, Basis.of(pairs))


def _indices(study: SensitivityStudy, values: npt.NDArray[np.float64]) -> tuple[Index, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty slice, where a key changes nothing
        found = salib("analyze").analyze(
            study._problem(),
            values,
            calc_second_order=False,
            num_resamples=study.resamples,
            conf_level=study.confidence,
            seed=study.seed + 1,  # of 0 it would draw from a generator that nobody seeded
        )
    return tuple(
        Index(key, *(float(found[name][at]) for name in ("S1", "S1_conf", "ST", "ST_conf")))
        for at, key in enumerate(study.space.keys)
    )

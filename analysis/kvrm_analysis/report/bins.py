"""A run's records added up over bins of time, one column at a time: no table is ever whole in memory.

Sums of bins are divided by their width or by each other; percentiles are taken as figures take them (series.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_analysis.drawing.series import Floats, Grid, integers, numbers
from kvrm_analysis.reading import columns
from kvrm_analysis.runs import NamedRun


class StepBins:
    """``steps.parquet`` on a grid. ``ended``: whether any step ended in a bin, bool [grid.count]."""

    def __init__(self, run: NamedRun, grid: Grid) -> None:
        self._run, self.grid = run, grid
        times = columns(run, "steps", ["end_ns", "replica"])
        self._at = grid.bin_of(integers(times, "end_ns"))
        if "replica" in times.column_names:
            self._at = self._at + grid.count * integers(times, "replica")
        self._cells = grid.count * (int(self._at.max(initial=0)) // grid.count + 1)
        self._records = np.bincount(self._at, minlength=self._cells)
        self.ended: NDArray[np.bool_] = self._records.reshape(-1, grid.count).sum(axis=0) > 0

    def sums(self, name: str) -> Floats:
        """Sum of a column over each bin, of all replicas; 0 where nothing ended."""
        return np.asarray(self._totals(name).reshape(-1, self.grid.count).sum(axis=0), np.float64)

    def rates(self, name: str) -> Floats:
        """Sum a second."""
        return self.sums(name) / self.grid.width_s

    def means(self, name: str) -> Floats:
        """Mean of a column over the records of a bin, of a cluster the sum of each replica's; 0 where nothing ran."""
        means = np.divide(self._totals(name), self._records, out=np.zeros(self._cells), where=self._records > 0)
        return np.asarray(means.reshape(-1, self.grid.count).sum(axis=0), np.float64)

    def _totals(self, name: str) -> Floats:
        totals: Floats = np.zeros(self._cells)
        table = columns(self._run, "steps", [name])
        if name in table.column_names:  # a run of an earlier version lacks what was not counted then
            totals += np.bincount(self._at, numbers(table, name), minlength=self._cells)
        return totals


def shares(parts: Floats, whole: Floats, scale: float = 1.0) -> Floats:
    """``scale`` × parts / whole; NaN where the whole is 0."""
    found: Floats = np.divide(scale * parts, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return found


def brief(values: Floats, digits: int = 4) -> list[float | None]:
    """Numbers for a page: so many significant digits; None where absent."""
    return [None if value != value else _short(value, digits) for value in values.tolist()]


def _short(value: float, digits: int) -> Any:
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded

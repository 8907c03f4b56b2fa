"""The table of a study: a row a cell, configuration columns and metric columns; which is which, and what is better.

Any Parquet table will do. ``status`` (where there is one) says which cells have results: ``done``.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.errors import InputError

#: Keys of a study beside those with a dot in them and those of ReplicaConfig.
_OF_A_RUN = ("trace", "prefill", "stop_at_s", "cluster", "prefill_replicas", "decode_replicas", "router",
             "prefix_weight", "repeat")  # fmt: skip
#: What a study varies so as to repeat itself, never to compare.
REPEATS = ("seed", "repeat", "trace.seed")
#: Names of the table in a study's folder, the first that is there.
NAMES = ("cells.parquet", "results.parquet", "table.parquet", "study.parquet")
#: Metrics of which more is better; of the rest less is.
_MORE = ("_per_s", "_share", "goodput", "completed_requests", "accepted", "block_fill", "blocks_per_group",
         "prefix_hit_tokens", "delivered_tokens")  # fmt: skip

#: Metrics that are shown when none is named, the first that the table has.
DEFAULT_METRICS = ("ttft_p99_s", "itl_p99_s", "output_tokens_per_s")
#: Columns that number cells.
_COUNTERS = ("cell", "configuration", "repeat")
#: What may be left out at the end of a metric's name.
_UNITS = ("_s", "_bytes", "_per_s", "_ns", "_ms")

_UPPER = frozenset({"ttft", "itl", "tpot", "e2e", "kv"})


@dataclass(frozen=True)
class StudyTable:
    """``cells``: the rows that have results; ``others``: those that have none. ``axes``: configuration columns that
    vary; ``repeats``: those of them that only repeat.
    """

    name: str
    cells: pd.DataFrame
    others: pd.DataFrame
    axes: tuple[str, ...]
    repeats: tuple[str, ...]

    def column(self, name: str) -> NDArray[np.float64]:
        """A metric as float64 over ``cells``. Raises InputError when there is none of this name, or it is no number."""
        return np.asarray(self.cells[self.metric(name)], np.float64)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Columns that hold a number of every result, or of some: not those of the configuration."""
        return tuple(
            name
            for name in self.cells.columns
            if name not in _COUNTERS and not _of_configuration(name) and _numbers(self.cells[name])
        )

    def is_axis(self, name: str) -> bool:
        """Whether a column is of the configuration. Raises InputError for one that is neither that nor a metric."""
        if name in self.cells.columns and _of_configuration(name):
            return True
        self.metric(name)
        return False

    def metric(self, name: str) -> str:
        """The metric of this name, with its unit or without. Raises InputError where it is none: with those near."""
        for found in (name, *(f"{name}{unit}" for unit in _UNITS)):
            if found in self.metrics or (found in self.axes and _numbers(self.cells[found])):
                return found
        if name in self.cells.columns:
            usual = [metric for metric in DEFAULT_METRICS if metric in self.metrics] or self.metrics[:3]
            what = "does not vary" if _of_configuration(name) and _numbers(self.cells[name]) else "holds no numbers"
            raise InputError(f"{self.name}: {name!r} is no metric: it {what}; there are {', '.join(usual)}, …")
        raise InputError(f"{self.name}: no column {name!r}; {self._near(name, 'metrics')}")

    def axis(self, name: str) -> str:
        """The axis of this name. Raises InputError where it is none, or does not vary: with those that do."""
        if name in (*self.axes, *self.repeats):
            return name
        if name not in self.cells.columns:
            raise InputError(f"{self.name}: no column {name!r}; {self._near(name, 'axes')}")
        what = f"{word(self.cells[name].iloc[0])} in every cell" if _of_configuration(name) else "a result, not an axis"
        raise InputError(f"{self.name}: {name!r} is {what}; {self._near('', 'axes')}")

    def _near(self, name: str, kind: Literal["axes", "metrics"]) -> str:
        """Of the axes or the metrics those that are called alike, or all."""
        known = list(getattr(self, kind))
        near = difflib.get_close_matches(name, known, n=3) or [column for column in known if name and name in column]
        return f"did you mean {' or '.join(near)}?" if near else f"its {kind} are {', '.join(known) or 'none'}"

    def values(self, axis: str) -> list[object]:
        """The distinct values of an axis over all rows, in order; numbers before words, absent last."""
        self.axis(axis)
        found = pd.concat([self.cells[axis], self.others[axis]]) if axis in self.others else self.cells[axis]
        return sorted(found.unique().tolist(), key=lambda v: (v is None or v != v, isinstance(v, str), v))


def load_study(path: Path) -> StudyTable:
    """Read a Parquet table, or the one in a study's folder. Raises InputError when there is none or no cell is done."""
    file = path
    if path.is_dir():
        there = [path / name for name in NAMES if (path / name).is_file()] or sorted(path.glob("*.parquet"))
        if not there:
            raise InputError(f"{path}: no table of a study (a Parquet file) is in it")
        file = there[0]
    try:
        frame = pq.read_table(file).to_pandas()
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{file}: cannot be read as the table of a study: {error}") from error
    return study_table(frame, str(file))


def study_table(frame: pd.DataFrame, name: str) -> StudyTable:
    """The same of a table in memory."""
    done = frame["status"] == "done" if "status" in frame else pd.Series(True, frame.index)
    axes = [column for column in frame.columns if _of_configuration(column) and frame[column].map(repr).nunique() > 1]
    if not done.any():
        raise InputError(f"{name}: none of its {len(frame)} cells is done")
    repeats = tuple(axis for axis in axes if axis in REPEATS)
    kept = tuple(axis for axis in axes if axis not in REPEATS)
    return StudyTable(name, frame[done].reset_index(drop=True), frame[~done].reset_index(drop=True), kept, repeats)


def _of_configuration(column: str) -> bool:
    return "." in column or column in _OF_A_RUN or column in ReplicaConfig.model_fields


def _numbers(column: pd.Series[Any]) -> bool:
    """Whether there are numbers in it, and nothing but numbers."""
    return not pd.to_numeric(column, errors="coerce").isna().all() and (
        pd.api.types.is_numeric_dtype(column) or all(isinstance(value, (int, float)) for value in column.dropna())
    )


def more_is_better(metric: str) -> bool:
    """Which way a metric is good."""
    return any(part in metric for part in _MORE)


def unit_of(metric: str) -> tuple[float, str]:
    """(what to divide by, the unit) of a metric whose name ends in its unit; no unit: a count or a share."""
    if metric.endswith("_per_s"):
        return 1.0, "/s"
    if metric.endswith("_bytes"):
        return float(1 << 30), "GiB"
    if metric.endswith("_s"):
        return (1e-3, "ms") if metric.startswith(("itl", "tpot")) else (1.0, "s")
    return 1.0, ""


def label_of(metric: str) -> str:
    """A metric for an axis: its name and unit."""
    _, unit = unit_of(metric)
    name = metric
    for ending in ("_per_s", "_bytes", "_s"):
        if unit and metric.endswith(ending):
            name = metric.removesuffix(ending)
            break
    words = " ".join(part.upper() if part in _UPPER else part for part in name.split("_"))
    return f"{words}{unit if unit == '/s' else f', {unit}' if unit else ''}"


def scaled(metric: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values in the unit of :func:`unit_of`."""
    return values / unit_of(metric)[0]


def word(value: object) -> str:
    """A value of an axis for people."""
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else str(value)


def pareto_front(points: NDArray[np.float64], more: Sequence[bool]) -> NDArray[np.int64]:
    """Indices of the points [n, 2] that no other point beats in both, by the first; ``more``: more is better."""
    signed = points * np.where(more, -1.0, 1.0)
    order = np.lexsort((signed[:, 1], signed[:, 0]))
    best, front = np.inf, []
    for at in order.tolist():
        if signed[at, 1] < best:
            best = signed[at, 1]
            front.append(at)
    return np.array(front, np.int64)

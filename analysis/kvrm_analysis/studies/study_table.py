"""The table of a study: a row a cell, configuration columns and metric columns; which is which, and what is better.

Any Parquet table will do. ``status`` (where there is one) says which cells have results: ``done``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
        self.check(name)
        try:
            return np.asarray(self.cells[name], np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.name}: column {name!r} holds no numbers: {error}") from error

    def check(self, name: str) -> None:
        """Raise InputError when there is no column of this name."""
        if name not in self.cells.columns:
            import difflib

            near = difflib.get_close_matches(name, list(self.cells.columns), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"its axes are {', '.join(self.axes)}"
            raise InputError(f"{self.name}: no column {name!r}; {hint}")

    def values(self, axis: str) -> list[object]:
        """The distinct values of an axis over all rows, in order; numbers before words, absent last."""
        self.check(axis)
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
    known = {*_OF_A_RUN, *ReplicaConfig.model_fields}
    axes = [
        column
        for column in frame.columns
        if ("." in column or column in known) and frame[column].map(repr).nunique() > 1
    ]
    if not done.any():
        raise InputError(f"{name}: none of its {len(frame)} cells is done")
    repeats = tuple(axis for axis in axes if axis in REPEATS)
    kept = tuple(axis for axis in axes if axis not in REPEATS)
    return StudyTable(name, frame[done].reset_index(drop=True), frame[~done].reset_index(drop=True), kept, repeats)


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

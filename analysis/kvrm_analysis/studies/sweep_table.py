"""The tables of a sweep: a row a cell, and for repeats the interval of each metric.

``cells.parquet`` holds ``cell``, ``configuration``, ``repeat``, a column for each key that cells set, ``key`` (of the
cell), then status, error, warnings and every metric. Nothing in it depends on the machine, the engine or the order in
which cells ran: equal studies give equal bytes. ``intervals.parquet`` is long: a row a configuration and metric.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvrm_analysis.studies.cell_rows import METRICS, WORDS, Row
from kvrm_analysis.studies.study import Cell, Study
from kvrm_sim.errors import RunError

CELLS, INTERVALS = "cells.parquet", "intervals.parquet"
#: Version of the tables, in their metadata.
SCHEMA = 1

_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.string()}


def cells_table(study: Study, cells: Sequence[Cell], keys: Sequence[str | None], rows: Sequence[Row]) -> pa.Table:
    """One row a cell, in the order of the study."""
    columns: dict[str, pa.Array] = {
        "cell": pa.array([cell.at for cell in cells], pa.int64()),
        "configuration": pa.array([cell.configuration for cell in cells], pa.int64()),
        "repeat": pa.array([cell.repeat for cell in cells], pa.int64()),
        **{key: _settings_column([cell.settings.get(key) for cell in cells]) for key in study.keys},
        "key": pa.array(list(keys), pa.string()),
        **{name: pa.array([row[name] for row in rows], pa.string()) for name in WORDS},
        **{of.name: pa.array([row[of.name] for row in rows], _TYPES[of.type]) for of in METRICS},
    }
    return pa.table(columns).replace_schema_metadata(_metadata(study))


def _settings_column(values: Sequence[Any]) -> pa.Array:
    """Numbers where all are numbers, else words; a list or a table as JSON."""
    given = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in given):
        return pa.array(values, pa.bool_() if given else pa.string())
    if all(isinstance(value, int) and not isinstance(value, bool) for value in given):
        return pa.array(values, pa.int64())
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


def intervals_table(study: Study, cells: Sequence[Cell], rows: Sequence[Row]) -> pa.Table:
    """Of each configuration and metric with numbers: how many repeats gave one, mean, standard deviation, and the
    interval of the mean at the study's confidence (Student's t; None for less than two repeats).
    """
    grouped: dict[int, list[tuple[Cell, Row]]] = {}
    for cell, row in zip(cells, rows, strict=True):
        grouped.setdefault(cell.configuration, []).append((cell, row))
    varied = [key for key in study.varied if key != "seed"]
    found: dict[str, list[Any]] = {name: [] for name in ("configuration", *varied, *_OF_AN_INTERVAL)}
    for number, members in grouped.items():
        for metric in METRICS:
            values = [float(row[metric.name]) for _, row in members if row[metric.name] is not None]
            if metric.type in ("int", "float") and values:
                found["configuration"].append(number)
                for key in varied:
                    found[key].append(members[0][0].settings.get(key))
                for name, value in zip(
                    _OF_AN_INTERVAL, (metric.name, *interval(values, study.confidence)), strict=True
                ):
                    found[name].append(value)
    columns = {name: _settings_column(values) for name, values in found.items()}
    for name in ("mean", "standard_deviation", "low", "high"):
        columns[name] = pa.array(found[name], pa.float64())
    return pa.table(columns).replace_schema_metadata(_metadata(study))


_OF_AN_INTERVAL = ("metric", "n", "mean", "standard_deviation", "low", "high")


def interval(values: Sequence[float], confidence: float) -> tuple[int, float, float | None, float | None, float | None]:
    """(n, mean, standard deviation, low, high) of repeats; the last three are None for one value."""
    from scipy import special  # scipy.stats takes half a second to import

    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return count, mean, None, None, None
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(special.stdtrit(count - 1, (1 + confidence) / 2)) * deviation / math.sqrt(count)
    return count, mean, deviation, mean - half, mean + half


def _metadata(study: Study) -> dict[str, str]:
    about: Mapping[str, Any] = {
        "schema": SCHEMA,
        "study": study.file.name,
        "varied": list(study.varied),
        "confidence": study.confidence,
    }
    return {"kvrm.sweep": json.dumps(about, sort_keys=True)}


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table; it appears only when it is whole. Raises RunError when it cannot be written."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        pq.write_table(table, partial, compression="zstd", write_statistics=False)
        partial.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)

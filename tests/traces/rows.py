"""Small ways to make and look at traces, shared by the tests of this folder."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvrm_traces import Trace

HEADER = "arrival_ms,prompt_tokens,output_tokens"


def rows_of(trace: Trace, rows: int = 65536) -> list[dict[str, Any]]:
    """All rows, as dictionaries."""
    return [row for batch in trace.batches(rows) for row in batch.to_pylist()]


def column(trace: Trace, name: str, rows: int = 65536) -> npt.NDArray[np.int64]:
    """One int64 column, whole."""
    return np.concatenate([batch.column(0).to_numpy() for batch in trace.batches(rows, columns=(name,))])


def arrivals_s(trace: Trace) -> list[float]:
    """All arrivals in seconds."""
    return [float(ns) / 1e9 for ns in column(trace, "arrival_ns")]


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    """A file of this text; gzipped when its name says so."""
    data = text.encode() if isinstance(text, str) else text
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def csv_of(*rows: tuple[object, object, object], header: str = HEADER) -> str:
    """A CSV of (arrival, prompt, output) rows."""
    return "\n".join([header, *(",".join(map(str, row)) for row in rows), ""])

"""A run's requests as a trace: what a replay served, in the order in which it arrived, to be replayed again.

A run records lengths and arrivals, which is all that most policies read. It records neither prefix hashes, nor
priorities, sessions or declared maxima: where those mattered, the trace itself has to be replayed, and that is said.
The arrivals of a closed loop are those that it came to: they are replayed as they were, whatever the next server does.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kvrm_traces.arrow import int64_column
from kvrm_traces.errors import TraceError
from kvrm_traces.parquet import opened
from kvrm_traces.schema import REQUIRED, TraceInfo, pace, schema_of
from kvrm_traces.spool import spooled
from kvrm_traces.trace import Trace

REQUESTS = "requests.parquet"
_CONFIGURATION = "run.toml"
_COLUMNS = ("row", *REQUIRED, "hit_tokens", "reason")
_BATCH_ROWS = 1 << 16


def is_run(path: Path) -> bool:
    """Whether it is the folder of a run."""
    return path.is_dir() and (path / REQUESTS).is_file()


def read_run(folder: Path) -> Trace:
    """The requests of a run. Raises TraceError when the file is not one that a run writes."""
    path = folder / REQUESTS
    with opened(path) as file:
        names = file.schema_arrow.names
        table = file.read(columns=[name for name in _COLUMNS if name in names])
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    closed_loop = _is_closed_loop(folder)
    return requests_trace(
        table, name=folder.name, source=str(folder), sha256=sha256, where=str(path), closed_loop=closed_loop
    )


def requests_trace(
    table: pa.Table, *, name: str, source: str, sha256: str, where: str, closed_loop: bool = False
) -> Trace:
    """A table of requests, with the columns of requests.parquet, as a trace; ``where`` it is, for errors.

    ``closed_loop``: of a run with that driver. Raises TraceError when it does not hold those of one run.
    """
    read = _Requests(where, table, closed_loop=closed_loop)
    store, clock = spooled(read.batches(), schema_of(REQUIRED))
    notes = [f"{name}: the requests of a run", pace(clock.rows, clock.span_ns)]
    if closed_loop:
        notes.append("of a closed loop: they arrive when they did there, and wait for no answers")
    if read.hits:
        notes.append(f"{read.hits} prompt tokens were found cached in that run; it records no hashes, so none will be")
    if read.declared:
        notes.append(f"{read.declared} requests were cut by a declared maximum, which a run does not record")
    info = TraceInfo(
        name=name,
        source=source,
        format="run",
        unit="ns",
        rows=clock.rows,
        span_ns=clock.span_ns,
        sha256=sha256,
        resolution_ns=clock.resolution_ns,
        ties=clock.ties,
        notes=tuple(notes),
    )
    return Trace(store, info)


def _is_closed_loop(folder: Path) -> bool:
    path = folder / _CONFIGURATION
    if not path.is_file():
        return False
    try:
        run = tomllib.loads(path.read_text(encoding="utf-8")).get("run")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: is not what a run writes ({error}); make the run again") from error
    return isinstance(run, dict) and run.get("driver") == "closed-loop"


class _Requests:
    """The columns of requests.parquet that a trace has, in memory: 24 bytes a request.

    A run writes requests as they end. They go back to the order of the trace, which is that of arrival with ties in
    their own order: replayed, they tie as before. A closed loop's arrived in another order than that of its trace, and
    turns that it did not come to are missing.
    """

    def __init__(self, where: str, table: pa.Table, *, closed_loop: bool) -> None:
        missing = [name for name in ("row", *REQUIRED) if name not in table.column_names]
        if missing:
            raise TraceError(f"{where}: has no column {missing[0]!r}; expected the requests of a run")
        if table.num_rows == 0:
            raise TraceError(f"{where}: holds no request")
        rows = _whole(where, table, "row")
        found = {name: _whole(where, table, name) for name in REQUIRED}
        if closed_loop:
            place = np.lexsort((rows, found["arrival_ns"]))
        elif np.array_equal(np.sort(rows), np.arange(rows.size)):
            place = np.argsort(rows)
        else:
            raise TraceError(
                f"{where}: column 'row' does not count the requests from 0; expected those of one whole run"
            )
        self._columns = {name: values[place] for name, values in found.items()}
        if np.any(np.diff(self._columns["arrival_ns"]) < 0) or self._columns["arrival_ns"][0] < 0:
            raise TraceError(f"{where}: arrival_ns falls in the order of 'row'; expected the requests of one run")
        for name in ("prompt_tokens", "output_tokens"):
            if self._columns[name].min() < 1:
                raise TraceError(f"{where}: {name} {self._columns[name].min()}: expected 1 or more")
        names = table.column_names
        self.hits: int = pc.sum(table["hit_tokens"]).as_py() or 0 if "hit_tokens" in names else 0
        cut = pc.equal(table["reason"].cast(pa.string()), "declared_limit") if "reason" in names else pa.array([False])
        self.declared: int = pc.sum(cut).as_py() or 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """In the order of arrival."""
        schema = schema_of(REQUIRED)
        for start in range(0, self._columns["arrival_ns"].size, _BATCH_ROWS):
            part = [int64_column(self._columns[name][start : start + _BATCH_ROWS]) for name in REQUIRED]
            yield pa.RecordBatch.from_arrays(part, schema=schema)


def _whole(where: str, table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    column = table.column(name)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise TraceError(
            f"{where}: column {name!r} is {column.type} with {column.null_count} blanks; expected integers"
        )
    return np.asarray(column.to_numpy(), np.int64)

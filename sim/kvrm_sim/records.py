"""What a run writes: requests.parquet, steps.parquet, pool.parquet, run.toml and summary.json (DESIGN section 7).

Rows are streamed: memory is one row group a file. Row groups have a fixed size, so the bytes do not depend on how the
rows were cut into calls. Everything is written into a folder of its own beside the target and renamed at the end.
The columns are in columns.py.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kvrm_sim.columns import (
    RENAMED,
    REPLICA,
    WORDS,
    pool_record,
    pool_record_table,
    pool_records,
    request_table,
    step_table,
    with_fields,
)
from kvrm_sim.errors import InputError, RunError
from kvrm_sim.state import OUT, POOL_SAMPLES, WINDOWS, Records

#: Version of summary.json and of ``--json``.
SCHEMA = 1

#: Rows of a row group.
REQUEST_ROWS = 131_072
STEP_ROWS = 16_384
POOL_ROWS = 1_024

_FILES: tuple[tuple[str, np.dtype[Any], int, Callable[[Records], pa.Table]], ...] = (
    ("requests", OUT, REQUEST_ROWS, request_table),
    ("steps", WINDOWS, STEP_ROWS, step_table),
    ("pool", POOL_SAMPLES, POOL_ROWS, pool_record_table),
)

_NAMED_BY_US = ("summary.json", "run.toml")


class _Stream:
    """One Parquet file: rows are kept until a row group is full. Integers are delta-coded, which is small and quick."""

    def __init__(
        self, path: Path, dtype: np.dtype[Any], group_rows: int, to_table: Callable[[Records], pa.Table]
    ) -> None:
        self._to_table = to_table
        self._kept: Records = np.zeros(group_rows, dtype)
        self._count = 0
        schema = self._to_table(self._kept[:0]).schema
        words = [RENAMED.get(name, name) for name in WORDS if name in schema.names]
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression="none",
            use_dictionary=words,
            column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name not in words},
            write_statistics=False,
        )

    def append(self, records: Records) -> None:
        at = 0
        while at < len(records):
            take = min(len(records) - at, len(self._kept) - self._count)
            self._kept[self._count : self._count + take] = records[at : at + take]
            self._count += take
            at += take
            if self._count == len(self._kept):
                self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._to_table(self._kept[: self._count]), row_group_size=len(self._kept))
        self._count = 0

    def close(self) -> None:
        """Write what is left and the footer."""
        if self._count:
            self._flush()
        self._writer.close()

    def discard(self) -> None:
        """Let go of a file that is about to be removed."""
        with suppress(OSError):  # a full disk has been reported, or is of no matter any more
            self._writer.close()


class RunWriter:
    """Writes one run's folder; a context manager that leaves nothing behind unless ``commit`` was called.

    ``folder=None`` writes nothing. Raises InputError at once when the folder exists (unless kvrm wrote it and ``force``
    is set) or cannot be written; RunError when writing fails later. ``request_fields``: a cluster's; what its
    requests have besides (columns.with_fields), and that every other record has ``replica``.
    """

    def __init__(self, folder: Path | None, force: bool = False, *, request_fields: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._request_fields = request_fields
        self._workshop: Path | None = None
        self._new_parents: list[Path] = []
        self._streams: list[_Stream] = []
        if folder is None:
            return
        _refuse_existing(folder, force=force)
        self._open(folder)

    def _open(self, folder: Path) -> None:
        self._new_parents = [parent for parent in folder.parents if not parent.exists()]
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._workshop = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
            self._unfinished.mkdir()
            for name, fields, rows, to_table in _FILES:
                dtype = fields
                if self._request_fields:
                    dtype = with_fields(fields, self._request_fields if name == "requests" else REPLICA)
                dtype = pool_record(dtype) if name == "pool" else dtype
                self._streams.append(_Stream(self._unfinished / f"{name}.parquet", dtype, rows, to_table))
        except OSError as error:
            self.abort()
            what = f"{error.filename or folder}: {error.strerror or error}"
            raise InputError(f"{folder} cannot be written: {what}") from error
        except BaseException:  # an interrupt comes at any time, and `__exit__` is not yet in force
            self.abort()
            raise

    @property
    def _unfinished(self) -> Path:
        assert self.folder is not None
        assert self._workshop is not None
        return self._workshop / self.folder.name

    def requests(self, records: Records) -> None:
        """Append ``OUT`` records (copied)."""
        self._append(0, records)

    def windows(self, records: Records) -> None:
        """Append ``WINDOWS`` records (copied)."""
        self._append(1, records)

    def pool(self, samples: Records, classes: NDArray[np.int64]) -> None:
        """Append ``POOL_SAMPLES`` records and their run-length classes, int64 [samples, RUN_CLASSES] (copied)."""
        if self._streams:
            self._append(2, pool_records(samples, classes))

    def _append(self, stream: int, records: Records) -> None:
        if self._streams:
            with self._named_errors():
                self._streams[stream].append(records)

    def document(self, summary: dict[str, Any], run_toml: str) -> None:
        """Write summary.json (``{"schema": 1, "runs": [summary]}``) and run.toml. NaN or infinity is a ValueError."""
        if not self._streams:
            return
        text = json.dumps({"schema": SCHEMA, "runs": [summary]}, indent=2, allow_nan=False)
        with self._named_errors():
            (self._unfinished / "run.toml").write_text(run_toml, encoding="utf-8", newline="\n")
            (self._unfinished / "summary.json").write_text(text + "\n", encoding="utf-8", newline="\n")

    def commit(self) -> None:
        """Finish the files and put the folder in its place; one that it replaces is removed only then."""
        if self.folder is None or self._workshop is None:
            return
        with self._named_errors():
            while self._streams:
                self._streams[-1].close()
                self._streams.pop()
            replaced = self._workshop / "replaced"
            if os.path.lexists(self.folder):
                self.folder.rename(replaced)
            try:
                self._unfinished.rename(self.folder)
            except BaseException:
                if os.path.lexists(replaced):
                    replaced.rename(self.folder)
                raise
        shutil.rmtree(self._workshop, ignore_errors=True)
        self._workshop = None

    def abort(self) -> None:
        """Remove whatever was written, and the parent folders that were made for it. Nothing happens after a commit."""
        for stream in self._streams:
            stream.discard()
        self._streams.clear()
        if self._workshop is None:
            return
        shutil.rmtree(self._workshop, ignore_errors=True)
        self._workshop = None
        for parent in self._new_parents:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self.folder}: writing the run failed: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _refuse_existing(folder: Path, *, force: bool) -> None:
    if not os.path.lexists(folder):
        return
    if not force:
        raise InputError(f"{folder} exists: choose another name, or pass --force to replace what a run wrote there")
    if (folder / "report.json").is_file():
        raise InputError(f"{folder} holds a validation (report.json), not a run: it is left alone")
    if not folder.is_dir() or (any(folder.iterdir()) and not any((folder / name).is_file() for name in _NAMED_BY_US)):
        raise InputError(f"{folder} was not written by kvrm (no {_NAMED_BY_US[0]} in it): it is left alone")


@dataclass(frozen=True)
class Run:
    """A run's folder, read: ``summary`` at once, the tables when first asked for."""

    folder: Path
    summary: dict[str, Any]

    @cached_property
    def requests(self) -> pa.Table:
        """One row for every request injected."""
        return self._read("requests")

    @cached_property
    def steps(self) -> pa.Table:
        """One row a window, or a step."""
        return self._read("steps")

    @cached_property
    def pool(self) -> pa.Table:
        """One row a sample of the pool."""
        return self._read("pool")

    def _read(self, name: str) -> pa.Table:
        path = self.folder / f"{name}.parquet"
        try:
            return pq.read_table(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"{path}: cannot be read as a run's Parquet file: {error}") from error


def load_run(folder: str | Path) -> Run:
    """Read the folder of one run. Raises InputError when it holds none, or one of another schema."""
    path = Path(folder) / "summary.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder}: not the folder of a run: {path.name}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path}: should be an object with schema = {SCHEMA}")
    runs = document.get("runs")
    if not isinstance(runs, list) or len(runs) != 1:
        raise InputError(f"{path}: should describe one run; a comparison has one folder a run inside")
    return Run(Path(folder), runs[0])

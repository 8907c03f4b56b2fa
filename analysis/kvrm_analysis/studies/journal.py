"""The journal of a sweep's folder: every row as it came, so that nothing that ran is lost, however the sweep ended.

One JSON object a line: the cell's key, the version of the code, the row, and what the run took. Lines are appended
whole; one that a killed process left unfinished is passed over. One sweep at a time writes into a folder.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from kvrm_analysis.studies.cell_rows import METRICS, WORDS, Row
from kvrm_sim.errors import InputError, RunError

FILE = "journal.jsonl"
#: Of the lines; a journal of another one is refused.
SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """A cell that ran: its row, by which code, in how many seconds of one worker."""

    key: str
    code: str
    row: Row
    wall_s: float
    peak_rss_bytes: int


def read_entries(folder: Path) -> dict[str, Entry]:
    """The last entry of each cell, by key; none where there is no journal. Raises InputError for what is none."""
    path = folder / FILE
    if not path.exists():
        return {}
    return {entry.key: entry for entry in _entries(path)}


def _entries(path: Path) -> Iterator[Entry]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                return  # the process died as it wrote this one
            try:
                found = json.loads(line)
                if found.get("schema") != SCHEMA:
                    raise ValueError(f"schema = {found.get('schema')!r}, not {SCHEMA}")
                row = {name: found["row"][name] for name in _columns()}
                yield Entry(found["key"], found["code"], row, found["wall_s"], found["peak_rss_bytes"])
            except KeyError as error:
                # A version with other columns wrote it: the cell runs again.
                if error.args[0] not in _columns():
                    raise InputError(f"{path}, line {number}: {error} is missing: not a line of a sweep") from None
            except (ValueError, AttributeError, TypeError) as error:
                raise InputError(f"{path}, line {number}: not a line of a sweep ({error}); move it away") from None


def _columns() -> tuple[str, ...]:
    return (*WORDS, *(metric.name for metric in METRICS))


class Journal:
    """A journal that is being written. A context manager; ``fresh`` forgets what is in it.

    Raises InputError when another sweep writes into the folder now, or the folder cannot be written.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._path = folder / FILE
        self._fresh = fresh
        self._file: IO[bytes] | None = None

    def add(self, entry: Entry) -> None:
        """Append one line; once this returns the row outlives this process. Raises RunError when it cannot be."""
        assert self._file is not None
        line = {"schema": SCHEMA, **{name: getattr(entry, name) for name in Entry.__dataclass_fields__}}
        try:
            self._file.write(json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise RunError(f"{self._path}: the row cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+b")
        except OSError as error:
            raise InputError(f"{self._path} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(f"{self._path.parent}: another sweep writes into this folder now") from None
        if self._fresh:
            self._file.truncate(0)
        else:
            self._mend()
        return self

    def _mend(self) -> None:
        """Cut off a line that was left unfinished, so that the next one begins a line."""
        assert self._file is not None
        end = self._file.seek(0, os.SEEK_END)
        if end == 0:
            return
        self._file.seek(end - 1)
        if self._file.read(1) == b"\n":
            return
        at, size = end, 1 << 16
        while at > 0:
            start = max(0, at - size)
            self._file.seek(start)
            found = self._file.read(at - start).rfind(b"\n")
            if found >= 0:
                self._file.truncate(start + found + 1)
                return
            at = start
        self._file.truncate(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def written_by_a_sweep(folder: Path) -> bool:
    """Whether a sweep wrote this folder."""
    return (folder / FILE).is_file()


def check_folder(folder: Path) -> None:
    """Raise InputError where a sweep may not write: a file, or a folder with something else in it."""
    if folder.is_dir():
        if any(folder.iterdir()) and not written_by_a_sweep(folder):
            raise InputError(f"{folder} is a folder that no sweep wrote (no {FILE} in it): it is left alone")
    elif os.path.lexists(folder):
        raise InputError(f"{folder} is a file, not the folder of a sweep: it is left alone")


def whole_json(value: Any) -> str:
    """JSON for people: indented, without NaN or infinity."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"

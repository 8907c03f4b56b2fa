"""Running a study: what has to run, on an engine, into a folder that outlives every interruption.

The folder holds ``study.toml``, ``journal.jsonl`` (journal.py), and when all cells have a row ``cells.parquet`` and for
repeats ``intervals.parquet`` (sweep_table.py), and ``runs/KEY`` for every run folder that was asked for. A cell whose
key is in the journal is not run again, whatever study it came from: interrupted and grown studies go on. A row that
another version of the code made is run again, or kept with ``stale="keep"``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from kvrm_analysis.engines.engines import Engine, Lost
from kvrm_analysis.studies.cell_keys import cell_key, code_version
from kvrm_analysis.studies.cell_rows import Row, failed_row
from kvrm_analysis.studies.cell_traces import CellTraces, reading_is_drawn, reading_of, shape_is_drawn, share_files
from kvrm_analysis.studies.cell_work import CellTask, CellWork, ran
from kvrm_analysis.studies.cells import Cells, status_of
from kvrm_analysis.studies.journal import Entry, Journal, check_folder, read_entries
from kvrm_analysis.studies.settings import TraceOptions
from kvrm_analysis.studies.study import Cell, Study
from kvrm_analysis.studies.sweep_table import CELLS, INTERVALS, cells_table, intervals_table, write_table
from kvrm_sim.errors import InputError, KvrmError
from kvrm_sim.plugin_registry import using
from kvrm_traces import BUILTINS

if TYPE_CHECKING:
    import pandas as pd

    from kvrm_traces.shared import SharedTrace

#: What becomes of rows that another version of the code made.
Stale: TypeAlias = Literal["rerun", "keep"]

#: Called with cells that have their row, and all of them.
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """The cells of a study, each with its key, or with its row where no run is needed to know it (it does not fit, or
    its settings refuse each other). ``shared``: the files among its traces, read, as long as the plan is open.
    """

    study: Study
    cells: tuple[Cell, ...]
    keys: tuple[str | None, ...]
    known: Mapping[int, Row]
    shared: Mapping[str, SharedTrace] = field(repr=False)
    #: Nothing is drawn in any cell: repeats of it are one and the same run.
    nothing_drawn: bool = False
    #: How many cells each constraint keeps out of the study.
    excluded: Mapping[str, int] = field(default_factory=dict)

    @property
    def work(self) -> CellWork:
        """What an engine is given."""
        file = self.study.file
        return CellWork(self.shared, file.folder, tuple(file.plugins), code_version())

    def to_run(self, entries: Mapping[str, Entry], stale: Stale) -> list[Cell]:
        """One cell for each key that has no row yet, in the order of the study."""
        code, seen, found = code_version(), set[str](), []
        for cell, key in zip(self.cells, self.keys, strict=True):
            if key is None or key in seen:
                continue
            seen.add(key)
            entry = entries.get(key)
            if entry is None or (entry.code != code and stale == "rerun"):
                found.append(cell)
        return found

    def stale(self, entries: Mapping[str, Entry]) -> int:
        """How many of its keys have a row by another version of the code."""
        code = code_version()
        return sum(key in entries and entries[key].code != code for key in {key for key in self.keys if key})


@contextmanager
def planned(study: Study) -> Iterator[Plan]:
    """Make the cells, read their traces, and find out what needs no run. Raises ConfigError and TraceError for what is
    wrong with the study itself.
    """
    cells, excluded = study.chosen()
    folder = Path(tempfile.mkdtemp(prefix="kvrm-sweep-"))
    try:
        # Only trace options, seed: the rest of a cell may refuse itself.
        readings = {_trace_of(cell): None for cell in cells}
        shared = share_files([json.loads(text) for text in _files(study, readings)], folder)
        builder = Cells(folder=study.file.folder, plugins=study.file.plugins, traces=CellTraces(shared))
        keys, known = list[str | None](), dict[int, Row]()
        drawn = False
        for cell in cells:
            try:
                prepared = builder.prepare(cell.settings)
                with using(builder.plugins):
                    drawn = drawn or prepared.config.policy.speculation is not None
                    name = json.dumps(
                        reading_of(prepared.trace, prepared.config.seed, study.file.folder), sort_keys=True
                    )
                    keys.append(cell_key(prepared, shared[name].info.sha256 if name in shared else None))
            except KvrmError as error:
                keys.append(None)
                known[cell.at] = failed_row(status_of(error), str(error))
                continue
            drawn = drawn or reading_is_drawn(prepared.trace, study.file.folder) or shape_is_drawn(prepared.trace)
        yield Plan(study, tuple(cells), tuple(keys), known, shared, not drawn, excluded)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _trace_of(cell: Cell) -> str:
    """The settings that say what is read, as text."""
    found = {key: value for key, value in cell.settings.items() if key.startswith("trace.") and value is not None}
    return json.dumps([found, cell.settings["seed"]], sort_keys=True)


def _files(study: Study, traces: Mapping[str, None]) -> dict[str, None]:
    """The readings of files among them, each once, as text."""
    found: dict[str, None] = {}
    for text in traces:
        settings, seed = json.loads(text)
        options = TraceOptions(**{name.removeprefix("trace."): value for name, value in settings.items()})
        if options.source not in BUILTINS:
            found[json.dumps(reading_of(options, seed, study.file.folder), sort_keys=True)] = None
    return found


@dataclass(frozen=True)
class Sweep:
    """A study that has run: every cell has its row. ``ran`` and ``kept``: simulations now, and of before; ``stale``: of
    before, by another version of the code. ``nothing_drawn``: the repeats of a cell are one and the same run.
    ``excluded``: how many cells each constraint kept out.
    """

    study: Study
    cells: pa.Table
    intervals: pa.Table | None
    ran: int
    kept: int
    stale: int = 0
    nothing_drawn: bool = False
    folder: Path | None = None
    excluded: Mapping[str, int] = field(default_factory=dict)

    @property
    def statuses(self) -> dict[str, int]:
        """How many cells have each status."""
        return dict(Counter(self.cells["status"].to_pylist()))

    def to_pandas(self) -> pd.DataFrame:
        """The table, a row a cell."""
        frame: pd.DataFrame = self.cells.to_pandas()
        return frame

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints: counts, and where the tables are."""
        folder = self.folder
        return {
            "schema": 1,
            "sweep": {
                "study": self.study.file.name,
                "cells": self.cells.num_rows,
                "excluded": sum(self.excluded.values()),
                "statuses": self.statuses,
                "ran": self.ran,
                "kept": self.kept,
                "folder": None if folder is None else str(folder),
                "table": None if folder is None else str(folder / CELLS),
                "intervals": None if folder is None or self.intervals is None else str(folder / INTERVALS),
            },
        }

    def work_line(self) -> str:
        """How much was simulated, and how much was there."""
        shared = self.cells["key"].drop_null()
        alike = len(shared) - len(shared.unique())
        words = f"{self.ran:,} simulated now, {self.kept:,} kept from before"
        return words + (f"; {alike:,} cells are the same run as another" if alike else "")

    def notes(self) -> list[str]:
        """What the reader of the tables should know."""
        found = excluded_lines(self.excluded)
        if self.stale:
            what = "they ran again" if self.ran else "they were kept"
            found.append(f"{self.stale:,} rows had been made by another version of the code: {what}")
        if self.study.repeats > 1 and self.nothing_drawn:
            found.append(
                f"repeats = {self.study.repeats}: nothing is drawn in this study (its traces are files, its policies "
                "do not speculate): repeats are the same run, and their intervals have no width"
            )
        return found

    def without_results(self) -> list[str]:
        """A line for each reason why cells have no results, with the cells."""
        names = ("cell", "status", "error")
        return reasons(zip(*(self.cells[name].to_pylist() for name in names), strict=True))


def reasons(cells: Iterable[tuple[int, str, str]]) -> list[str]:
    """A line for each reason why cells have no results, of (cell, status, error) of each."""
    found: dict[tuple[str, str], list[int]] = {}
    for cell, status, error in cells:
        if status != "done":
            found.setdefault((status, error.splitlines()[0]), []).append(cell)
    return [f"{_cells(numbers)} {_SAID[status]}: {why}" for (status, why), numbers in found.items()]


def excluded_lines(excluded: Mapping[str, int]) -> list[str]:
    """A line a constraint: how many cells it excludes."""
    return [f"{count:,} cells excluded by the constraint {text}" for text, count in excluded.items()]


_SAID = {"does_not_fit": "not fitting", "refused": "refused", "failed": "failed"}
#: Numbers of cells in a line.
_NAMED_CELLS = 6


def _cells(numbers: Sequence[int]) -> str:
    """``cell 3``, ``15 cells (0, 1, 2, 6, 7, 8, ...)``."""
    if len(numbers) == 1:
        return f"cell {numbers[0]}"
    named = ", ".join(map(str, numbers[:_NAMED_CELLS])) + (", ..." if len(numbers) > _NAMED_CELLS else "")
    return f"{len(numbers):,} cells ({named})"


def run_plan(
    plan: Plan,
    engine: Engine,
    *,
    out: Path | None = None,
    resume: bool = True,
    stale: Stale = "rerun",
    keep_runs: bool | Sequence[int] = False,
    progress: Progress | None = None,
) -> Sweep:
    """Run what has no row yet. ``out`` None: nothing is written, and nothing continued.

    ``resume`` false forgets what the folder holds. ``keep_runs``: every cell, or those of these numbers, leave their
    run folder in ``runs/KEY``; a cell that has a row but no folder runs again. Raises InputError for a folder that a
    sweep may not write; the rows of an interrupted sweep are in the folder.
    """
    folders = _folders(plan, keep_runs, out)
    if out is None:
        cells = plan.to_run({}, stale)
        return _swept(plan, _run(plan, engine, {}, cells, None, {}, progress), 0, 0, None)
    check_folder(out)
    with Journal(out, fresh=not resume) as journal:
        entries = read_entries(out)
        (out / "study.toml").write_text(plan.study.file.text, encoding="utf-8")
        cells = _with_folders(plan, plan.to_run(entries, stale), folders)
        kept = len({key for key in plan.keys if key}) - len(cells)
        for name in (CELLS, INTERVALS):
            if cells:
                (out / name).unlink(missing_ok=True)  # it will not be of this study until all of it has run
        found = _run(plan, engine, entries, cells, journal, folders, progress)
        sweep = _swept(plan, found, kept, plan.stale(entries), out)
        write_table(sweep.cells, out / CELLS)
        if sweep.intervals is not None:
            write_table(sweep.intervals, out / INTERVALS)
    return sweep


def _folders(plan: Plan, keep_runs: bool | Sequence[int], out: Path | None) -> dict[str, Path]:
    """Where cells leave their run folders, by key. Raises InputError for a number that is no cell's."""
    if not isinstance(keep_runs, bool):
        for number in keep_runs:
            if not 0 <= number < len(plan.cells):
                raise InputError(f"runs = {number}: should be the number of a cell, 0 to {len(plan.cells) - 1}")
    if keep_runs is False or keep_runs == ():
        return {}
    if out is None:
        raise InputError("runs: the run folders need a place; pass out = FOLDER as well")
    numbers = range(len(plan.cells)) if keep_runs is True else keep_runs
    return {key: out / "runs" / key for number in numbers if (key := plan.keys[number]) is not None}


def _with_folders(plan: Plan, cells: Sequence[Cell], folders: Mapping[str, Path]) -> list[Cell]:
    """The cells to run, those that lack the folder that they have to leave among them."""
    wanted, seen = {cell.at for cell in cells}, set[str]()
    found = []
    for cell, key in zip(plan.cells, plan.keys, strict=True):
        if key is None or key in seen:
            continue
        seen.add(key)
        if cell.at in wanted or (key in folders and not folders[key].is_dir()):
            found.append(cell)
    return found


def _run(
    plan: Plan,
    engine: Engine,
    entries: Mapping[str, Entry],
    cells: Sequence[Cell],
    journal: Journal | None,
    folders: Mapping[str, Path],
    progress: Progress | None,
) -> tuple[dict[str, Row], int]:
    """The row of every key, and how many of them were run."""
    keys = {cell.at: key for cell, key in zip(plan.cells, plan.keys, strict=True) if key is not None}
    wanted = set(keys.values())
    rows = {key: entry.row for key, entry in entries.items() if key in wanted}
    names = [keys[cell.at] for cell in cells]
    tasks = [CellTask(cell.settings, folders.get(key)) for cell, key in zip(cells, names, strict=True)]
    known = len(wanted) - len(tasks)
    code = code_version()
    if progress is not None:
        progress(known, len(wanted))
    for count, (at, result) in enumerate(engine.map(plan.work, tasks), 1):
        done = ran(result)
        # That a process died says nothing of its cell (memory was short, somebody ended it): it runs again next time.
        if journal is not None and not isinstance(result, Lost):
            journal.add(Entry(names[at], code, done.row, done.wall_s, done.peak_rss_bytes))
        rows[names[at]] = done.row
        if progress is not None:
            progress(known + count, len(wanted))
    return rows, len(tasks)


def _swept(plan: Plan, found: tuple[dict[str, Row], int], kept: int, stale: int, out: Path | None) -> Sweep:
    rows, count = found
    every = [plan.known[cell.at] if key is None else rows[key] for cell, key in zip(plan.cells, plan.keys, strict=True)]
    intervals = intervals_table(plan.study, plan.cells, every) if plan.study.repeats > 1 else None
    table = cells_table(plan.study, plan.cells, plan.keys, every)
    return Sweep(plan.study, table, intervals, count, kept, stale, plan.nothing_drawn, out, plan.excluded)

"""What a sweep would do, before it does it: its cells, and how long they would take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvrm_analysis.studies.cell_traces import CellTraces
from kvrm_analysis.studies.cells import Cells
from kvrm_analysis.studies.journal import Entry
from kvrm_analysis.studies.study import Cell
from kvrm_analysis.studies.sweep import Plan, Stale, excluded_lines, reasons
from kvrm_sim.compiled import is_warm
from kvrm_sim.errors import KvrmError

#: Cells that are tried where the journal tells no times.
TRIED = 3
#: Of a longer trace only so many requests are tried.
TRIED_ROWS = 20_000
#: A worker imports the simulator and loads compiled code; seconds, as on a small machine.
START_S = 2.0
#: Reasons why cells have no results that are printed.
_MOST_REASONS = 10
#: Compiling the core, once a version; seconds, as on a small machine.
COMPILE_S = 60.0


@dataclass(frozen=True)
class DryRun:
    """The cells of a study, what is known of each before any work, and an estimate of the time."""

    plan: Plan
    #: Cells that have a row already, or share one with a cell that will.
    to_run: tuple[Cell, ...]
    stale: int
    #: Seconds of one worker a cell, as measured, of each cell that was tried.
    tried_s: tuple[float, ...]
    #: Where they were measured: "the journal", or "now".
    tried_in: str
    workers: int
    compiles: bool

    @property
    def estimate_s(self) -> float | None:
        """Seconds in all, compilation included; None where nothing could be tried."""
        if not self.to_run:
            return 0.0
        if not self.tried_s:
            return None
        rounds = max(1.0, len(self.to_run) / self.workers)
        return START_S + (COMPILE_S if self.compiles else 0.0) + rounds * statistics.fmean(self.tried_s)

    def rows(self) -> list[dict[str, Any]]:
        """A row a cell: its place, what varies, ``status`` (``to run``, ``known``, ``does_not_fit``, ``refused``), and
        ``error``: why it will have no results.
        """
        wanted = {cell.at for cell in self.to_run}
        varied = self.plan.study.varied
        return [
            {
                "cell": cell.at,
                **{key: cell.settings.get(key) for key in varied},
                "status": self.plan.known[cell.at]["status"]
                if cell.at in self.plan.known
                else "to run"
                if cell.at in wanted
                else "known",
                "error": self.plan.known[cell.at]["error"] if cell.at in self.plan.known else None,
            }
            for cell in self.plan.cells
        ]

    def to_dict(self) -> dict[str, Any]:
        """What ``--dry-run --json`` prints."""
        study = self.plan.study
        return {
            "schema": 1,
            "dry_run": {
                "study": study.file.name,
                "cells": len(self.plan.cells),
                "excluded": study.size - len(self.plan.cells),
                "constraints": [{"constraint": text, "excluded": n} for text, n in self.plan.excluded.items()],
                "to_run": len(self.to_run),
                "stale": self.stale,
                "workers": self.workers,
                "estimate_s": self.estimate_s,
                "tried_s": list(self.tried_s),
                "rows": self.rows(),
            },
        }

    def to_text(self, most: int) -> str:
        """The cells as a table of at most so many lines, and what they add up to."""
        rows = self.rows()
        head = [name for name in rows[0] if name != "error"]
        body = [[_word(row[name]) for name in head] for row in rows[:most]]
        widths = [max(len(line[at]) for line in [head, *body]) for at in range(len(head))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *body]
        ]
        if len(rows) > most:
            lines.append(f"... and {len(rows) - most:,} more (--json has all of them)")
        lines += ["", self.counts_line(), *(f"  {line}" for line in excluded_lines(self.plan.excluded))]
        refused = reasons((at, row["status"], row["error"]) for at, row in self.plan.known.items())
        return "\n".join([*lines, *(f"  {line}" for line in refused[:_MOST_REASONS]), self.estimate_line()])

    def counts_line(self) -> str:
        """How many cells there are, and what becomes of them."""
        known = [row["status"] for row in self.rows()]
        parts = [f"{known.count('to run'):,} to run"]
        for status, words in _STATUS_WORDS.items():
            if known.count(status):
                parts.append(f"{known.count(status):,} {words}")
        excluded = self.plan.study.size - len(self.plan.cells)
        more = f" ({excluded:,} more are excluded by constraints)" if excluded else ""
        return f"{len(known):,} cells{more}: {', '.join(parts)}"

    def estimate_line(self) -> str:
        """The estimate in words, and what it rests on."""
        if self.estimate_s is None:
            return "estimate: none; no cell could be tried"
        if not self.to_run:
            return "estimate: nothing to run"
        least, most = min(self.tried_s), max(self.tried_s)
        compiling = ", compiling included" if self.compiles else ""
        return (
            f"estimate: about {_duration(self.estimate_s)} on {self.workers} workers{compiling} ({len(self.tried_s)} "
            f"cells tried, {self.tried_in}: {least:.2g} to {most:.2g} s each)"
        )


_STATUS_WORDS = {"known": "have a row, or share one", "does_not_fit": "do not fit", "refused": "are refused"}


def _word(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def dry_run(plan: Plan, entries: Mapping[str, Entry], *, stale: Stale, workers: int) -> DryRun:
    """See :class:`DryRun`. ``entries``: of the folder into which the sweep would be written."""
    to_run = plan.to_run(entries, stale)
    compiles = bool(to_run) and not is_warm()
    keys = {key for key in plan.keys if key}
    known_s = [entry.wall_s for key, entry in entries.items() if key in keys and entry.row["status"] == "done"]
    if to_run and len(known_s) < TRIED:
        tried, where = _tried(plan, to_run), "now"
    else:
        tried, where = known_s, "in the journal"
    return DryRun(plan, tuple(to_run), plan.stale(entries), tuple(tried), where, workers, compiles)


def _tried(plan: Plan, cells: Sequence[Cell]) -> list[float]:
    """Seconds that some of the cells take, from the first to the last of the study."""
    file = plan.study.file
    builder = Cells(folder=file.folder, plugins=file.plugins, traces=CellTraces(plan.shared, file.folder))
    chosen = list(dict.fromkeys(round(at * (len(cells) - 1) / (TRIED - 1)) for at in range(TRIED)))
    found: list[float] = []
    for cell in (cells[at] for at in [chosen[0], *chosen]):  # the first one twice: it loads, or compiles, the core
        try:
            prepared = builder.prepare(cell.settings)
            rows = builder.open(prepared).info.rows
            scale = max(1.0, rows / TRIED_ROWS)
            settings = cell.settings if scale == 1 else {**cell.settings, "trace.limit": TRIED_ROWS}
            prepared = builder.prepare(settings)
            started = time.perf_counter()
            builder.run(prepared)
            found.append(scale * (time.perf_counter() - started))
        except KvrmError:
            found.append(0.0)  # it will be a row with its error, which costs nothing
    return found[1:]

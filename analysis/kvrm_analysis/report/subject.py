"""The runs of a report on their common grid of time, the axes of its charts, and what a chart is as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kvrm_analysis.drawing.series import Floats, Grid, bursts, grid_of, integers, numbers
from kvrm_analysis.reading import columns
from kvrm_analysis.report.bins import StepBins, brief
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.trace_series import time_unit
from kvrm_sim.columns import RUN_COLUMNS

#: Bins of time: as many as a wide screen shows apart; fewer where many runs share the page.
BINS, LEAST_BINS, MOST_VALUES = 600, 120, 12_000
#: Percentiles are shown by the number of nines, 0 to this, in steps of this.
MOST_NINES, NINES_STEP = 4.0, 0.02

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """The runs on their common grid of time. ``traces``: the first run of each distinct trace."""

    runs: Sequence[NamedRun]
    grid: Grid
    bins: Sequence[StepBins]
    traces: Sequence[int]


def subject_of(runs: Sequence[NamedRun]) -> Subject:
    """Put runs on one grid from the first arrival to the last end; no bin is shorter than a record of steps.parquet."""
    tables = [columns(run, "steps", ["end_ns", "replica"]) for run in runs]
    ends = [float(integers(table, "end_ns").max(initial=0)) / 1e9 for table in tables]
    spans = [float(run.summary["trace"]["span_s"]) for run in runs]
    end_s = max(*ends, *spans, 1e-3)
    most = end_s / max(1e-9, *(_record_s(table) for table in tables))
    bins = min(max(LEAST_BINS, min(BINS, MOST_VALUES // len(runs))), max(1, int(most)))
    grid = grid_of(end_s, bins)
    seen: dict[tuple[str, int], int] = {}
    for at, run in enumerate(runs):
        seen.setdefault((run.summary["trace"]["sha256"], run.summary["trace"]["rows"]), at)
    return Subject(runs, grid, [StepBins(run, grid) for run in runs], list(seen.values()))


def _record_s(steps: pa.Table) -> float:
    """Seconds from one record of a replica to its next, mostly: a window, or a step."""
    ends = integers(steps, "end_ns")
    if "replica" in steps.column_names:
        ends = ends[integers(steps, "replica") == 0]
    return float(np.median(np.diff(ends))) / 1e9 if len(ends) > 1 else 0.0


def axes_of(subject: Subject) -> dict[str, Any]:
    """The x axes that charts name: ``values`` in ``unit``, or from ``first`` on in equal ``step``s."""
    grid = subject.grid
    unit, scale = time_unit(grid.end_s)
    most = max(int(run.summary["counts"]["injected"]) for run in subject.runs)
    shown = int(np.ceil(min(MOST_NINES, np.log10(max(10, most))) / NINES_STEP)) + 1
    classes = _longest_class(subject)
    return {
        "time": {
            "label": "time since the first arrival",
            "unit": unit,
            "first": grid.width_s / 2 / scale,
            "step": grid.width_s / scale,
            "count": grid.count,
            "bin": f"{grid.width_s:g} s",
        },
        "percentile": {"label": "percentile of requests", "unit": "%", "first": 0, "step": NINES_STEP,
                       "count": shown, "nines": True},
        "runs": {"label": "length of a run, blocks", "unit": "", "first": 0, "step": 1, "count": classes,
                 "words": [_run_class(name) for name in RUN_COLUMNS[:classes]]},
    }  # fmt: skip


def _longest_class(subject: Subject) -> int:
    """How many classes of run lengths have any run."""
    tables = [columns(run, "pool", RUN_COLUMNS) for run in subject.runs]
    return 1 + max(
        at
        for at, name in enumerate(RUN_COLUMNS)
        if not at or any(table.num_rows and numbers(table, name).any() for table in tables)
    )


def _run_class(column: str) -> str:
    return column.removeprefix("runs_").removesuffix("_blocks").replace("_up", "+").replace("_", "\N{EN DASH}")


def shaded(subject: Subject) -> list[list[float]]:
    """Bursts of the first trace, as [from, to] on the axis of time."""
    scale = time_unit(subject.grid.end_s)[1]
    edges = subject.grid.edges_s / scale
    run = subject.runs[subject.traces[0]]
    arrivals = arrivals_of(run, subject.grid)
    if arrivals is None:
        return []
    span_bins = min(subject.grid.count, int(np.ceil(run.summary["trace"]["span_s"] / subject.grid.width_s)))
    return [[float(edges[first]), float(edges[last])] for first, last in bursts(arrivals, span_bins)]


def arrivals_of(run: NamedRun, grid: Grid) -> Floats | None:
    """Requests that arrived in each bin; None where requests were not kept."""
    table = columns(run, "requests", ["arrival_ns"])
    if not table.num_rows:
        return None
    return np.bincount(grid.bin_of(integers(table, "arrival_ns")), minlength=grid.count).astype(np.float64)


def chart(name: str, section: str, title: str, note: str, measures: list[dict[str, Any]], **how: Any) -> dict[str, Any]:
    """One chart; ``how``: axis, kind, log."""
    return {"id": name, "section": section, "title": title, "note": note, "measures": measures, **how}


def measure(name: str, unit: str, lines: Lines, field: str | None = None) -> dict[str, Any]:
    """One quantity that a chart can show; ``field``: where it is defined."""
    return {"name": name, "unit": unit, "lines": lines, **({"field": field} if field else {})}


def per_run(subject: Subject, values: Callable[[int], Floats | None], *, zeros: bool = True) -> Lines:
    """A line a run; none where no run has a value other than 0. Without ``zeros``: none for a run that has no other."""
    found = [values(at) for at in range(len(subject.runs))]
    moves = [line is not None and bool(np.nansum(np.abs(line)) > 0) for line in found]
    if not any(moves):
        return []
    return [{"run": at, "y": brief(line)} for at, line in enumerate(found) if line is not None and (zeros or moves[at])]


def nines() -> Floats:
    """The axis of percentiles: 1 is p90, 2 is p99. float64 [points]."""
    return np.arange(0.0, MOST_NINES + NINES_STEP / 2, NINES_STEP)

"""From the pager's history to coalescing: what each placement becomes after hours of requests that come and go.

One policy, traces in columns, a line a placement: how long the runs of the live block tables are, into how many
transfer groups a decode step's gather falls, and how much of the free blocks is one hole. Everything is a mean over a
bin of time; the pool is sampled about 200 times over the arrivals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.panels import HEADING
from kvrm_analysis.drawing.series import Floats, Grid, integers, numbers
from kvrm_analysis.drawing.style import COLOURS, DASHES, look

#: Bins of time of a panel: a few samples of the pool fall into each.
BINS = 40
#: Placements by the name that they have in the figure: the keys of [pager], and colour and dash of their line.
PLACEMENTS: dict[str, dict[str, str]] = {
    "lifo": {"pager.placement": "lifo"},
    "lifo, sorted": {"pager.placement": "lifo", "pager.release_order": "sorted"},
    "fifo": {"pager.placement": "fifo"},
    "fifo, sorted": {"pager.placement": "fifo", "pager.release_order": "sorted"},
    "lowest": {"pager.placement": "lowest"},
    "buddy": {"pager.placement": "buddy"},
    "extent": {"pager.placement": "extent"},
    "contiguous": {"pager.placement": "contiguous"},
}
#: A sorted release has the colour of its placement, dashed.
_LOOKS = {
    "lifo": (COLOURS[1], DASHES[0]),
    "lifo, sorted": (COLOURS[1], DASHES[1]),
    "fifo": (COLOURS[2], DASHES[0]),
    "fifo, sorted": (COLOURS[2], DASHES[1]),
    "lowest": (COLOURS[3], DASHES[0]),
    "buddy": (COLOURS[5], DASHES[0]),
    "extent": (COLOURS[4], DASHES[0]),
    "contiguous": (COLOURS[0], DASHES[0]),
}
#: Above this the axis is in hours.
HOURS_FROM_S = 4 * 3600
_LEFT, _PITCH = 0.74, 3.56  # inches: the first column's frame, and from one column to the next
_ROWS = ("run_blocks", "groups_a_step", "largest_hole_share")
_TITLES = ("Run length in live block tables", "Transfer groups a decode step", "Largest hole, share of the free blocks")
_UNITS = ("blocks, log scale", "groups, log scale", "%")


class Churned(Protocol):
    """A run with samples of its pool: ``kvrm_sim.records.Run`` and ``kvrm_sim.engine.RunResult`` both are one."""

    @property
    def summary(self) -> dict[str, Any]:
        """The RUN object."""

    @property
    def steps(self) -> pa.Table:
        """The columns of steps.parquet."""

    @property
    def pool(self) -> pa.Table:
        """The columns of pool.parquet."""


@dataclass(frozen=True, slots=True)
class Churn:
    """One run over time, float64 by bin, NaN where a bin has nothing: blocks a run, groups a decode step, and the
    largest hole in percent of the free blocks.
    """

    run_blocks: Floats
    groups_a_step: Floats
    largest_hole_share: Floats


def churn_grid(run: Churned) -> Grid:
    """The bins of a run's arrivals."""
    return Grid(max(float(run.summary["trace"]["span_s"]), 1e-3) / BINS, BINS)


def churn_of(run: Churned, grid: Grid) -> Churn:
    """A run's series. Without prefix sharing: what two tables share would be held once and count as two runs."""
    pool, steps = run.pool, run.steps
    at, ended = grid.bin_of(integers(pool, "time_ns")), grid.bin_of(integers(steps, "end_ns"))
    held = numbers(pool, "allocated_blocks")
    free = run.summary["pool_blocks"] - held
    return Churn(
        _ratio(at, held, numbers(pool, "runs"), grid),
        _ratio(ended, numbers(steps, "groups"), numbers(steps, "decode_steps"), grid),
        100 * _ratio(at, numbers(pool, "largest_hole_blocks"), free, grid),
    )


def _ratio(at: NDArray[np.int64], above: Floats, below: Floats, grid: Grid) -> Floats:
    """Sum over sum in each bin; NaN where there is nothing to divide by."""
    total, divisor = (np.bincount(at, values, minlength=grid.count) for values in (above, below))
    ratios: Floats = np.divide(total, divisor, out=np.full(grid.count, np.nan), where=divisor > 0)
    return ratios


def run_blocks_mean(run: Churned) -> float:
    """Blocks a run of live block tables, over all samples of the pool."""
    return float(numbers(run.pool, "allocated_blocks").sum() / numbers(run.pool, "runs").sum())


def draw_churn(columns: Mapping[str, Mapping[str, Churned]]) -> Figure:
    """Small multiples: a column a trace, a row a measure, a line a placement (names of ``PLACEMENTS``)."""
    with look():
        page = Page(7.4, 6.0)
        page.text(0.1, 0.08, _title(columns), fontsize=9.5)
        for column, (trace, runs) in enumerate(columns.items()):
            page.text(_LEFT + _PITCH * column, 0.84, trace, **HEADING)
            labelled = _draw_column(page, column, runs)
        page.legend(labelled, 0.34, 4)
    return page.figure


def _title(columns: Mapping[str, Mapping[str, Churned]]) -> str:
    first = next(iter(next(iter(columns.values())).values())).summary
    status = "calibrated" if first["calibrated"] else "uncalibrated"
    return f"Where {first['policy']} finds its blocks, by placement · {first['hardware']} · {status}"


def _draw_column(page: Page, column: int, runs: Mapping[str, Churned]) -> Axes:
    """The panels of one trace; those of the first column have the units. Returns axes that hold every label."""
    grids = {name: churn_grid(run) for name, run in runs.items()}
    series = {name: churn_of(run, grids[name]) for name, run in runs.items()}
    end_s = max(grid.end_s for grid in grids.values())
    unit, unit_s = ("h", 3600) if end_s > HOURS_FROM_S else ("min", 60)
    made = [page.axes(_LEFT + _PITCH * column, 1.28 + 1.58 * row, 2.95, 1.12) for row in range(len(_ROWS))]
    for axes, measure, title, of in zip(made, _ROWS, _TITLES, _UNITS, strict=True):
        for name, churn in series.items():
            style, dashes = _LOOKS[name]
            time = grids[name].middles_s / unit_s
            axes.plot(time, getattr(churn, measure), color=style, linestyle=dashes, linewidth=1.2, label=name)
        axes.set_title(title, fontweight="normal")
        axes.set_xlim(0, end_s / unit_s)
        if column == 0:
            axes.set_ylabel(of)
    for axes in made[:-1]:
        axes.tick_params(labelbottom=False)
        _logarithmic(axes)
    made[-1].set_ylim(0, 100)
    made[-1].set_xlabel(f"time since the first arrival, {unit}")
    return made[0]


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if _span(axes) < 100 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _span(axes: Axes) -> float:
    """The greatest over the least value that is drawn."""
    values = np.concatenate([np.asarray(line.get_ydata(), np.float64) for line in axes.get_lines()])
    values = values[np.isfinite(values) & (values > 0)]
    return float(values.max() / values.min()) if values.size else 1.0

"""A study as figures: a heat map of two axes, the front of two metrics, and which axis moves a metric how far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from kvrm_analysis.drawing.heat import grid_of, heat, shade_of, short
from kvrm_analysis.drawing.series import Floats
from kvrm_analysis.drawing.sheet import LEFT, PAGE, Panel, sheet
from kvrm_analysis.drawing.style import FAINT, INK, colour
from kvrm_analysis.studies.study_table import (
    DEFAULT_METRICS,
    StudyTable,
    label_of,
    more_is_better,
    pareto_front,
    scaled,
    word,
)
from kvrm_sim.errors import InputError

PARETO_METRICS = ("reserved_kv_mean_bytes", "output_tokens_per_s")
MARKERS = "osD^vP*X"
#: Metrics that are not to be compared where a cell is overloaded.
_LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue", "normalized")
_GROW = "grow with the length of the trace"
#: Inches that a letter of a tick takes.
LETTER = 0.062
#: Panels of one figure at most.
MOST_FACETS = 8


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """``x``, ``y``: axes of a heat map, metrics of a front; ``metric``: what is shown or moved; ``by``: the axis that
    tells panels or colours apart. None: chosen from what varies.
    """

    x: str | None = None
    y: str | None = None
    metric: str | None = None
    by: str | None = None
    width: float = PAGE


def draw_heatmap(study: StudyTable, options: StudyOptions) -> Figure:
    """A metric over two axes, a panel for each value of a third. Cells without results say so."""
    metric = study.metric(options.metric) if options.metric else _present(study, DEFAULT_METRICS)
    by = study.axis(options.by) if options.by else _facet(study, {options.x, options.y})
    free = [axis for axis in study.axes if axis not in (options.x, options.y, by)]
    x = options.x or _next(free, study)
    y = options.y or _next([axis for axis in free if axis != x], study)
    for axis in (x, y):
        study.axis(axis)
    if len({x, y, by}) < 3:
        twice = x if x in (y, by) else y
        raise InputError(f"{study.name}: {twice!r} is asked for twice: x, y and by should be different axes")
    values, late = scaled(metric, study.column(metric)), _overloaded(study) * metric.startswith(_LATENCIES)
    facets = study.values(by) if by else [None]
    if len(facets) > MOST_FACETS:
        raise InputError(f"{study.name}: {by} has {len(facets)} values, a figure has at most {MOST_FACETS} panels")
    grids = [grid_of(study, x, y, values, by, facet) for facet in facets]
    unranked = [grid_of(study, x, y, late, by, facet) > 0 for facet in facets]
    shade = shade_of(np.concatenate([grid[~np.isnan(grid)] for grid in grids]), more_is_better(metric))
    tall = max(1.1, 0.27 * len(study.values(y)))
    left = 0.4 + LETTER * max(len(short(value)) for value in study.values(y))
    panels = [
        Panel(
            heat(study, (x, y), grid, off, shade, "" if by is None else f"{by} = {word(facet)}"),
            tall,
            left=max(LEFT, left),
        )
        for grid, off, facet in zip(grids, unranked, facets, strict=True)
    ]
    others = [axis for axis in study.axes if axis not in (x, y, by)]
    how = f"{label_of(metric)}; {'more' if more_is_better(metric) else 'less'} is better, and darker."
    caption = _caption(
        study,
        [
            how,
            f"Averaged over {', '.join(others)}." if others else "",
            "x: no result, or no such cell in the study." if any(np.isnan(grid).any() for grid in grids) else "",
        ],
        f": their latencies (in parentheses) {_GROW}" if late.any() else "",
    )
    return sheet(
        title=f"{label_of(metric)} over {x} (to the right) and {y} (up)",
        caption=caption,
        panels=panels,
        width=options.width,
    )


def draw_pareto(study: StudyTable, options: StudyOptions) -> Figure:
    """Two metrics of every cell, and the front of those that none beats in both."""
    x = study.metric(options.x) if options.x else _present(study, PARETO_METRICS[:1])
    y = study.metric(options.y) if options.y else _present(study, PARETO_METRICS[1:])
    single = np.stack([scaled(name, study.column(name)) for name in (x, y)], axis=1)
    cells, points = _configurations(study, single)
    known = ~np.isnan(points).any(axis=1)
    by = study.axis(options.by) if options.by else _facet(study, {x, y})
    groups = study.cells[by].map(word).to_numpy()[cells] if by else np.full(len(points), "")
    names = list(dict.fromkeys(groups[known].tolist()))
    late = _configurations(study, np.stack([_overloaded(study)] * 2, axis=1))[1][:, 0] > 0
    keeps_up = known & ~late
    front = np.flatnonzero(keeps_up)[pareto_front(points[keeps_up], (more_is_better(x), more_is_better(y)))]

    def draw(axes: Axes) -> None:
        if len(points) < len(single):
            axes.plot(single[:, 0], single[:, 1], ".", color=FAINT, markersize=2, alpha=0.6, zorder=1)
        for at, name in enumerate(names):
            for own, strength in ((keeps_up, 0.85), (known & late, 0.22)):
                shown = points[own & (groups == name)]
                axes.plot(shown[:, 0], shown[:, 1], MARKERS[at % len(MARKERS)], color=colour(at), markersize=3.8,
                          markeredgewidth=0, alpha=strength)  # fmt: skip
        axes.plot(points[front, 0], points[front, 1], color=INK, linewidth=1.0, drawstyle="default", zorder=1)
        axes.plot(points[front, 0], points[front, 1], "o", markersize=7, markerfacecolor="none", color=INK,
                  markeredgewidth=0.8)  # fmt: skip
        axes.set(xlabel=label_of(x), ylabel=label_of(y), title="Every configuration; the front is ringed")
        axes.grid(visible=True, axis="both")

    marks = [
        Line2D([], [], color=colour(at), marker=MARKERS[at % len(MARKERS)], linestyle="", markersize=4)
        for at in range(len(names))
    ]
    key = list(zip(names, marks, strict=True)) if by else []
    ways = [f"{'more' if more_is_better(name) else 'less'} {label_of(name)}" for name in (x, y)]
    best = "; ".join(_settings(study, int(cells[at]), points[at]) for at in front[:6].tolist())
    rest = "" if len(front) <= 6 else f" and {len(front) - 6} more"
    caption = _caption(study, [f"Better: {', '.join(ways)}.", f"Front (n {len(front)}): {best or 'none'}{rest}.",
                                        "Dots: single repeats." if len(points) < len(single) else ""],
                       ": pale, and not on the front, are configurations with one among their repeats")  # fmt: skip
    panels = [Panel(draw, height=2.6, wide=True)]
    return sheet(title=f"{label_of(y)} against {label_of(x)}", caption=caption, panels=panels, key=key,
                 width=options.width)  # fmt: skip


def draw_tornado(study: StudyTable, options: StudyOptions) -> Figure:
    """How far the mean of a metric moves from one value of an axis to another, the widest first."""
    metric = study.metric(options.metric) if options.metric else _present(study, DEFAULT_METRICS)
    values = scaled(metric, study.column(metric))
    late = (_overloaded(study) > 0) & metric.startswith(_LATENCIES)
    known = ~np.isnan(values) & ~late
    if not known.any():
        raise InputError(f"{study.name}: {metric}: no cell has one to compare ({int(late.sum())} are overloaded)")
    if not study.axes:
        raise InputError(f"{study.name}: no configuration column varies, so nothing can be told apart")
    centre = float(values[known].mean())
    bars = sorted((_swing(study, axis, values, known) for axis in study.axes), key=lambda bar: bar.high - bar.low)

    def draw(axes: Axes) -> None:
        at = np.arange(len(bars), dtype=np.float64)
        lows, highs = np.array([bar.low for bar in bars]), np.array([bar.high for bar in bars])
        axes.barh(at, centre - lows, 0.46, left=lows, color="#56B4E9")
        axes.barh(at, highs - centre, 0.46, left=centre, color="#E69F00")
        axes.axvline(centre, color=INK, linewidth=0.8)
        for y, bar in zip(at, bars, strict=True):
            for value, name, side in ((bar.low, bar.at_low, -1), (bar.high, bar.at_high, 1)):
                if side < 0 and bar.at_low == bar.at_high:
                    continue  # one value alone has cells
                axes.annotate(name, (value, float(y)), xytext=(3 * side, 0), textcoords="offset points", fontsize=7,
                              va="center", ha="left" if side > 0 else "right")  # fmt: skip
            axes.annotate(bar.axis, (0, float(y)), xycoords=axes.get_yaxis_transform(), xytext=(2, 14), fontsize=7.5,
                          textcoords="offset points", va="center", color=FAINT)  # fmt: skip
        axes.set_yticks([])
        if lows.min() >= 0:  # to the left there is room for names, where no value can be
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value >= 0 else ""))
        room = 0.3 * float(highs.max() - lows.min()) or 1.0
        axes.set_xlim(float(lows.min()) - room, float(highs.max()) + room)
        axes.set_ylim(-0.5, len(bars) - 0.2)
        axes.grid(visible=False)
        axes.grid(visible=True, axis="x")
        axes.set(xlabel=label_of(metric), title="Means, axis by axis")

    how = (
        f"Each bar: from the lowest to the highest mean of {label_of(metric)} over the cells that share a value of the "
        f"axis; line: mean of all {int(known.sum())} cells shown. A bar says nothing of how axes act together."
    )
    caption = _caption(
        study, [how, _unbalanced(study, known)], f" and left out here: their latencies {_GROW}" if late.any() else ""
    )
    panels = [Panel(draw, height=max(0.9, 0.46 * len(bars)), wide=True)]
    return sheet(title=f"What moves {label_of(metric)}", caption=caption, panels=panels, width=options.width)


def _unbalanced(study: StudyTable, known: NDArray[np.bool_]) -> str:
    """A warning where the values of an axis are not averaged over the same cells; empty where they are."""
    every = pd.concat([study.cells, study.others])
    # What only repeats is one axis, however many columns say which repeat it is.
    repeats = len(every[list(study.repeats)].map(word).drop_duplicates()) if study.repeats else 1
    whole = int(np.prod([len(study.values(axis)) for axis in study.axes])) * repeats
    missing = whole - len(study.cells.loc[known, [*study.axes, *study.repeats]].map(word).drop_duplicates())
    if not missing:
        return ""
    return (
        f"Not balanced: {missing} of the {whole} combinations are missing, so the means of an axis rest on different "
        "cells and its bar may show another axis."
    )


@dataclass(frozen=True)
class _Swing:
    axis: str
    low: float
    high: float
    at_low: str
    at_high: str


def _swing(study: StudyTable, axis: str, values: Floats, known: NDArray[np.bool_]) -> _Swing:
    words = study.cells[axis].map(word).to_numpy()
    means = {name: float(values[known & (words == name)].mean()) for name in dict.fromkeys(words[known].tolist())}
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return _Swing(axis, means[low], means[high], low, high)


def _configurations(study: StudyTable, single: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Cells that differ in their seeds only, put together: the first of each, and the mean of their points."""
    words = (
        study.cells[list(study.axes)].map(word).agg("\t".join, axis=1) if study.axes else pd.Series(study.cells.index)
    )
    _, first, index = np.unique(words.to_numpy(), return_index=True, return_inverse=True)
    counts = np.bincount(index)
    means = np.stack([np.bincount(index, single[:, at]) / counts for at in range(2)], axis=1)
    order = np.argsort(first)
    return np.asarray(first[order], np.int64), means[order]


def _overloaded(study: StudyTable) -> Floats:
    """1 for cells whose backlog grew to the end, else 0."""
    if "overloaded" not in study.cells:
        return np.zeros(len(study.cells))
    return np.array([float(value is True or value == 1) for value in study.cells["overloaded"]])


def _present(study: StudyTable, names: Sequence[str]) -> str:
    found = next((name for name in names if name in study.cells.columns), None)
    if found is None:
        raise InputError(f"{study.name}: it has none of {', '.join(names)}: name a metric (--metric, --x, --y)")
    return found


def _facet(study: StudyTable, taken: set[str | None]) -> str | None:
    """The policy where it varies, else nothing: it tells panels and colours apart."""
    return next((axis for axis in ("policy", "model", "hardware") if axis in study.axes and axis not in taken), None)


def _next(axes: Sequence[str], study: StudyTable) -> str:
    if not axes:
        raise InputError(f"{study.name}: a heat map needs two axes that vary; these do: {', '.join(study.axes) or '-'}")
    return axes[0]


def _settings(study: StudyTable, at: int, point: Floats) -> str:
    settings = ", ".join(f"{axis} {word(study.cells[axis][at])}" for axis in study.axes)
    return f"({point[0]:.4g}, {point[1]:.4g}): {settings}"


def _caption(study: StudyTable, words: Sequence[str], late: str = "") -> str:
    """What is shown, on how many cells it rests, and whether the cost was measured. ``late``: of overloaded cells."""
    cells, others = study.cells, study.others
    parts = [f"{len(cells)} cells with results"]
    if len(others):
        counts = _why_missing(others).value_counts().to_dict()
        parts.append(", ".join(f"{count} {str(name).replace('_', ' ')}" for name, count in counts.items()))
    n = "; ".join(parts) + "."
    if study.repeats:
        n += f" Means over repeats ({', '.join(study.repeats)})."
    status, overload = "", ""
    if "calibrated" in cells:
        status = "Calibrated." if cells["calibrated"].all() else "Uncalibrated: no coefficient was measured."
    if overloaded := int(_overloaded(study).sum()):
        overload = f"{overloaded} cells are overloaded{late}."
    return " ".join(filter(None, [*words, n, overload, status]))


def _why_missing(others: pd.DataFrame) -> pd.Series[str]:
    """Why each cell has no result: its status, but for those that the study itself leaves out."""
    if "error" not in others:
        return others["status"]
    excluded = others["error"].astype(str).str.startswith("constraints:")
    return others["status"].mask(excluded, "left out by a constraint")

"""The panels of the comparison figure: each draws one thing of a scene into its part of the figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.scene import Scene
from kvrm_analysis.drawing.series import Floats, mean_per_bin, typical_itl_s, typical_ttft_s, worst_itl_s, worst_ttft_s
from kvrm_analysis.drawing.style import FAINT, INK, SHADE, colour, dash

GIB = float(1 << 30)
#: Heights in inches; a title takes a fifth of an inch above its axes.
TIME_HEIGHTS = (0.75, 1.15, 1.15)
TIME_GAP = 0.36
MEMORY_ROW = 1.42
MEMORY_COLUMNS = 6
BAR_HEIGHT = 0.2
HEADING = {"fontsize": 9, "fontweight": "bold"}


def draw_time(page: Page, scene: Scene, top: float) -> Axes:
    """Load and queue, then typical and worst latencies; bursts shaded. Returns axes that hold every label."""
    load, waiting, gap, first, gap_worst, first_worst = _time_axes(page, top)
    load.stairs(scene.arrivals / scene.grid.width_s, scene.time(scene.grid.edges_s), fill=True, color=FAINT)
    load.set_title("Load" + (" (bursts shaded)" if scene.bursts else ""))
    load.set_ylabel("requests/s")
    lines(waiting, scene, [mean_per_bin(run.steps, scene.grid, "waiting") for run in scene.runs])
    waiting.set_title("Requests that wait for admission")
    waiting.set_ylabel("requests")
    lines(gap, scene, [1e3 * typical_itl_s(run.steps, scene.grid) for run in scene.runs])
    gap.set_title("Gap between tokens: median")
    lines(gap_worst, scene, [1e3 * worst_itl_s(run.steps, scene.grid) for run in scene.runs])
    gap_worst.set_title("Gap between tokens: p99, worst window")
    _draw_ttft(first, first_worst, scene)
    for axes in (load, waiting, gap, first, gap_worst, first_worst):
        shade(axes, scene)
        axes.set_xlim(0, float(scene.time(scene.grid.edges_s)[-1]))
    for axes in (load, waiting):
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(3))
    for axes in (gap, gap_worst, first, first_worst):
        logarithmic(axes)
    for axes in (gap, gap_worst):
        axes.set_ylabel("ms, log scale")
    for axes in (gap_worst, first_worst):
        axes.set_xlabel(f"time since the first arrival, {scene.unit}")
    return waiting


def _time_axes(page: Page, top: float) -> list[Axes]:
    """Three rows of two, row by row; times are written below the last row only."""
    made: list[Axes] = []
    for height in TIME_HEIGHTS:
        for left in (0.74, 4.4):
            made.append(page.axes(left, top, 2.85, height, sharex=made[0] if made else None))
        top += height + TIME_GAP
    for axes in made[:-2]:
        axes.tick_params(labelbottom=False)
    return made


def _draw_ttft(typical: Axes, worst: Axes, scene: Scene) -> None:
    tables = [run.requests for run in scene.runs]
    kept = [table for table in tables if table is not None]
    if len(kept) < len(tables):
        for axes in (typical, worst):
            axes.set_title("First token: requests were not recorded")
            axes.set_yticks([])
        return
    lines(typical, scene, [typical_ttft_s(table, scene.grid) for table in kept])
    typical.set_title("Wait for the first token: median")
    lines(worst, scene, [worst_ttft_s(table, scene.grid) for table in kept])
    worst.set_title("Wait for the first token: longest")
    for axes in (typical, worst):
        axes.set_ylabel("s, log scale")


def lines(axes: Axes, scene: Scene, series: Sequence[Floats]) -> None:
    """One line a run, the first ones wider, so that lines that coincide can both be seen."""
    middles = scene.time(scene.grid.middles_s)
    widths = np.linspace(2.6, 1.0, len(series)) if len(series) > 1 else [1.4]
    for index, (values, name) in enumerate(zip(series, scene.names, strict=True)):
        width = float(widths[index])
        axes.plot(middles, values, color=colour(index), linestyle=dash(index), linewidth=width, label=name)
        alone = ~np.isnan(values) & np.isnan(_before(values)) & np.isnan(_before(values[::-1])[::-1])
        axes.plot(middles[alone], values[alone], ".", color=colour(index), markersize=2 + width)


def _before(values: Floats) -> Floats:
    return np.concatenate([[np.nan], values[:-1]])


def shade(axes: Axes, scene: Scene) -> None:
    """Shade the bursts."""
    edges = scene.time(scene.grid.edges_s)
    for first, last in scene.bursts:
        axes.axvspan(float(edges[first]), float(edges[last]), color=SHADE, linewidth=0, zorder=0)


def logarithmic(axes: Axes) -> None:
    """A logarithmic axis with plain numbers; one that holds nothing keeps its scale."""
    values = np.concatenate([np.asarray(line.get_ydata(), np.float64) for line in axes.get_lines()] or [np.zeros(0)])
    values = values[values > 0]
    if not len(values):
        return
    axes.set_yscale("log")
    if values.max() < 3 * values.min():
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_minor_locator(NullLocator())
    elif values.max() < 50 * values.min():
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_memory(page: Page, scene: Scene, top: float) -> None:
    """For each run: what was set aside at the start, promised to requests, and filled with tokens."""
    page.text(0.1, top, "KV memory: promised to requests (light), filled with tokens (dark)", **HEADING)
    highest = max(float(summary["kv_footprint_bytes"]) for summary in scene.found) / GIB
    count = len(scene.runs)
    pitch = min(6.83 / min(MEMORY_COLUMNS, count), 3.0)
    for index in range(count):
        row, column = divmod(index, MEMORY_COLUMNS)
        axes = page.axes(0.56 + pitch * column, top + 0.42 + MEMORY_ROW * row, pitch - 0.13, 0.85)
        _draw_one_memory(axes, scene, index)
        axes.set_ylim(0, highest * 1.12)
        axes.set_xlim(0, float(scene.time(scene.grid.edges_s)[-1]))
        if column:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel("GiB")
        if index == count - 1:
            axes.set_xlabel(f"time, {scene.unit}")


def _draw_one_memory(axes: Axes, scene: Scene, index: int) -> None:
    run, summary = scene.runs[index], scene.found[index]
    time = scene.time(scene.grid.edges_s)
    reserved = mean_per_bin(run.steps, scene.grid, "reserved_blocks") * summary["block_bytes"] / GIB
    used = mean_per_bin(run.steps, scene.grid, "used_tokens") * summary["kv_bytes_per_token"] / GIB
    axes.stairs(reserved, time, fill=True, color=colour(index), alpha=0.3, linewidth=0)
    axes.stairs(used, time, fill=True, color=colour(index), linewidth=0)
    axes.set_title(scene.names[index], fontsize=8.5, color=colour(index), fontweight="bold")
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    footprint, pool = summary["kv_footprint_bytes"] / GIB, summary["pool_bytes"] / GIB
    axes.axhline(footprint, color=INK, linewidth=0.9)
    _label(axes, "set aside", footprint, 1.5)
    if summary["staging_bytes"]:
        axes.axhspan(pool, footprint, facecolor="none", edgecolor=FAINT, hatch="////", linewidth=0, zorder=0)
        axes.axhline(pool, color=INK, linewidth=0.9, linestyle=(0, (2, 1.5)))
        _label(axes, "pool", pool, -8)


def _label(axes: Axes, text: str, at: float, offset_points: float) -> None:
    """Small print at the right end of a level."""
    where, how = axes.get_yaxis_transform(), "offset points"
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
    axes.annotate(
        text,
        (0.97, at),
        xycoords=where,
        xytext=(0, offset_points),
        textcoords=how,
        fontsize=7,
        ha="right",
        color=INK,
        bbox=behind,
    )


def draw_moves(page: Page, scene: Scene, top: float) -> None:
    """What is copied into staging: groups a decode step, and bytes beside the bytes that hold tokens."""
    names = 0.25 + 0.068 * max(len(name) for name in scene.names)
    width, height = (7.25 - names) / 2 - 0.12, BAR_HEIGHT * len(scene.names)
    left = page.axes(names, top + 0.22, width, height)
    right = page.axes(names + width + 0.24, top + 0.22, width, height, sharey=left)
    right.tick_params(labelleft=False)
    at = np.arange(len(scene.found), dtype=np.float64)
    transfers = [summary["transfer"] for summary in scene.found]
    groups = [float(transfer["groups_per_step_mean"] or 0.0) for transfer in transfers]
    moved = [float(transfer["bytes_moved"]) for transfer in transfers]
    needed = [float(transfer["bytes_needed"]) for transfer in transfers]
    unit, name = (GIB * 1024, "TiB") if max(moved) > 10 * GIB * 1024 else (GIB, "GiB")
    inside = [
        f"{_short(a / unit)} {name}, {_short(b / unit)} of it tokens" if a else "none"
        for a, b in zip(moved, needed, strict=True)
    ]
    _bars(left, at, groups, [_short(value) if value else "none" for value in groups], width / (width - 0.5))
    _bars(right, at, [value / unit for value in moved], inside, width / (width - 1.75))
    right.barh(at, [value / unit for value in needed], 0.22, color="white", alpha=0.75)
    left.set_yticks(at, list(scene.names))
    left.invert_yaxis()
    left.set_title("Copies into staging: transfer groups")
    left.set_xlabel("groups a decode step, mean")
    right.set_title("Copied in all (pale: tokens)")
    right.set_xlabel(name)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _bars(axes: Axes, at: Floats, values: Sequence[float], texts: Sequence[str], room: float) -> None:
    """Horizontal bars from zero with their numbers; ``room`` times the longest bar is the axis."""
    axes.barh(at, values, 0.62, color=[colour(index) for index in range(len(values))])
    axes.set_xlim(0, max(values) * room or 1.0)
    for y, value, text in zip(at, values, texts, strict=True):
        axes.annotate(text, (value, float(y)), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))

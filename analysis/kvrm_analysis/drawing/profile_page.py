"""The page of a calibration: what was measured, the line through it, and whole steps against their prediction.

Takes the table and the report of a calibration as plain data, so it draws without the device that they came from.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import nnls

from kvrm_analysis.drawing.accuracy import (
    Accuracy,
    Floats,
    Times,
    clock_of,
    draw_accuracy,
    draw_times,
    logarithmic,
    no_records,
    repeats_of,
)
from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import COLOURS, look

WIDTH_INCHES = 10.2
CAPTION_COLUMNS = 186
#: Upper left corners of the rows, and size of a panel, in inches.
ROW_TOPS, COLUMN_LEFTS = (0.72, 3.44), (0.72, 4.12, 7.52)
PANEL = (2.5, 2.0)
BAR_INCHES = 0.2
#: Cells of the fit, held-out cells of fitted policies, and policies that no fit has seen.
FITTED, HELD_OUT, UNSEEN = COLOURS[1], COLOURS[2], COLOURS[3]


@dataclass(frozen=True, slots=True)
class Panel:
    """One part of the table: the column on its x axis, that axis' label, and how its kinds are called."""

    part: str
    size: str
    title: str
    xlabel: str
    unit: str
    kinds: Mapping[str, str]


PANELS = (
    Panel("launch", "kernels", "Launches of small kernels", "kernels in a row", "kernel",
          {"eager": "eager", "graph": "graph replay", "ahead": "eager, host alone"}),
    Panel("copy", "kib", "One copy", "KiB copied", "KiB", {"h2d": "host to device", "d2h": "device to host",
                                                       "d2d": "within the device"}),
    Panel("transfer", "segments", "Groups moved, by route", "contiguous segments moved", "segment",
          {"per_copy": "copy by copy", "batch": "batch copy", "kernel": "gather kernel"}),
    Panel("attention", "pairs", "Attention of one layer", "(query, key) pairs", "1,000 pairs",
          {"table": "decode, block table", "contiguous": "decode, contiguous", "chunk": "prefill chunk"}),
    Panel("dense", "rows", "Matrix products of a step", "rows", "row", {"layers": "all layers and the head"}),
)  # fmt: skip
#: Units of a line's slope that are not one of the x axis.
SCALE = {"1,000 pairs": 1000.0}


def profile_page(table: pa.Table, report: Mapping[str, Any], path: str | Path) -> Path:
    """Draw the page at ``path`` (its suffix says SVG, PNG or PDF). The same data gives the same bytes.

    ``table`` and ``report``: of a :class:`kvrm_gpu.calibrate.Calibration`.
    """
    target = Path(path)
    figure = draw_profile(table, report)
    with look():
        figure.savefig(target, metadata={"Date": None, "Creator": None} if target.suffix == ".svg" else None)
    return target


def draw_profile(table: pa.Table, report: Mapping[str, Any]) -> Figure:
    """The figure itself, for a notebook."""
    frame = table.to_pandas()
    steps = frame[frame["part"] == "step"]
    bars = _accuracies(report)
    lines = textwrap.wrap(caption(frame, report), CAPTION_COLUMNS, break_on_hyphens=False)
    top_of_bars = ROW_TOPS[1] + PANEL[1] + 0.85
    top_of_caption = top_of_bars + BAR_INCHES * len(bars) + 0.58
    with look():
        page = Page(WIDTH_INCHES, top_of_caption + 0.145 * len(lines) + 0.1)
        page.text(0.1, 0.09, heading(report), fontsize=10, fontweight="bold")
        places = [(left, top) for top in ROW_TOPS for left in COLUMN_LEFTS]
        for (left, top), panel in zip(places, PANELS, strict=False):
            _draw_panel(page.axes(left, top, *PANEL), frame[frame["part"] == panel.part], panel)
        draw_times(page.axes(*places[5], *PANEL), _times(steps))
        axes = page.axes(1.25, top_of_bars, WIDTH_INCHES - 1.5, BAR_INCHES * len(bars))
        draw_accuracy(axes, "Whole steps that the fit has not seen, by policy", bars, 1.5)
        page.text(0.1, top_of_caption, "\n".join(lines), fontsize=7.5)
    return page.figure


def heading(report: Mapping[str, Any]) -> str:
    """What was measured, with what, and when."""
    return f"{report['device']}: {report['model']}, {report['date']} ({report['versions']})"


def caption(frame: pd.DataFrame, report: Mapping[str, Any]) -> str:
    """On how much the page rests, and how its marks are read."""
    points, steps = frame[frame["part"] != "step"], frame[frame["part"] == "step"]
    each = " or ".join(str(int(count)) for count in sorted(set(points["repeats"])))
    return (
        f"Small panels: {len(points)} measured sizes, dots are medians and bars p10 to p90 of {each} repeats; lines: "
        "constant and slope by non-negative least squares of relative errors (groups moved: drawn for runs of one "
        f"block). Whole steps: {len(steps):,} steps of {steps['kind'].nunique()} policies, median of "
        f"{repeats_of(int(steps['repeats'].iloc[0]))}; fitted on {', '.join(report['fitted_policies'])} without the "
        "held-out cells. An error below the spread of repeats (how far single repeats are from their median) is noise. "
        f"Backend {report['backend']}, scale {report['scale']}, time: {clock_of(report)}."
    )


def _draw_panel(axes: Axes, part: pd.DataFrame, panel: Panel) -> None:
    if part.empty:
        no_records(axes, panel.title)
        return
    sizes = _sizes(part, panel.size)
    for colour, (kind, name) in zip(COLOURS[1:], panel.kinds.items(), strict=False):
        chosen = ((part["kind"] == kind) & sizes.notna()).to_numpy(bool)
        if not chosen.any():
            continue
        own, x = part[chosen], np.asarray(sizes[chosen], np.float64)
        low, middle, high = np.asarray(own[["p10_ns", "p50_ns", "p90_ns"]], np.float64).T / 1e3
        label = name
        if len(np.unique(x)) > 2:
            constant, slope = _draw_line(axes, own, x, middle, colour)
            label = f"{name}: {_us(constant)} + {_us(slope * SCALE.get(panel.unit, 1.0))} a {panel.unit}"
        axes.errorbar(x, middle, yerr=(middle - low, high - middle), fmt="o", markersize=3, elinewidth=0.9,
                      color=colour, label=label)  # fmt: skip
    axes.set_title(panel.title)
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel("µs")
    shown = sizes[sizes.notna()].to_numpy(np.float64)
    times = part.loc[sizes.notna(), ["p10_ns", "p90_ns"]].to_numpy(np.float64) / 1e3
    low_us, high_us = times.min() / 1.2, times.max() * 1.2
    logarithmic(axes, np.array([shown.min() / 1.3, shown.max() * 1.3]), "x")
    logarithmic(axes, np.array([low_us, high_us * (high_us / low_us) ** 0.42]), "y")  # room for the legend
    axes.legend(loc="upper left", fontsize=6.8, handletextpad=0.2, borderaxespad=0.2, labelspacing=0.3)


def _us(microseconds: float) -> str:
    return f"{microseconds:.3g} µs"


def _sizes(part: pd.DataFrame, size: str) -> pd.Series[float]:
    """The x of each point. Pairs: each of ``rows`` reads its context; a chunk's tokens read theirs and each other."""
    if size == "kib":
        return part["bytes"].astype(float) / 1024
    if size != "pairs":
        return part[size].astype(float)
    tokens, context = part["tokens"].astype(float), part["context_tokens"].astype(float)
    return (part["rows"] * context).fillna(tokens * context + tokens * (tokens + 1) / 2)


def _draw_line(axes: Axes, own: pd.DataFrame, x: Floats, y: Floats, colour: str) -> tuple[float, float]:
    """The line through the points, and its constant and slope in µs. Blocks, where there are any, are told apart."""
    columns = [np.ones_like(x), x]
    moved = own["blocks"].notna().all()
    if moved:
        columns.append(own["blocks"].to_numpy(np.float64))
    matrix = np.stack(columns, axis=1) / y[:, None]
    norms = np.linalg.norm(matrix, axis=0)
    constant, slope, *block = (nnls(matrix / norms, np.ones_like(y))[0] / norms).tolist()
    along = np.geomspace(x.min(), x.max(), 60)
    drawn = constant + slope * along
    if moved:
        drawn = drawn + block[0] * along * float((own["groups"] / own["segments"]).iloc[0])
    axes.plot(along, drawn, color=colour, linewidth=0.9)
    return constant, slope


def _times(steps: pd.DataFrame) -> list[Times]:
    held = steps["held_out"].astype(bool)
    unseen = held.groupby(steps["kind"]).transform("all")
    kinds = (
        ("fitted cells", FITTED, steps[~held]),
        ("held-out cells", HELD_OUT, steps[held & ~unseen]),
        ("policies not fitted", UNSEEN, steps[unseen]),
    )
    return [
        Times(
            name=name,
            colour=colour,
            measured_ms=own[["p10_ns", "p50_ns", "p90_ns"]].to_numpy(np.float64).T / 1e6,
            predicted_ms=own["predicted_ns"].to_numpy(np.float64) / 1e6,
        )
        for name, colour, own in kinds
        if len(own)
    ]


def _accuracies(report: Mapping[str, Any]) -> list[Accuracy]:
    return [
        Accuracy(
            name=policy,
            colour=HELD_OUT if found["fitted"] else UNSEEN,
            error=found["held_out_median_abs_error"],
            spread=found["repeat_median_abs_spread"],
            note=_note(found),
        )
        for policy, found in report["steps"].items()
    ]


def _note(found: Mapping[str, Any]) -> str:
    kind = f"{found['held_out_steps']:,} held-out steps" if found["fitted"] else f"not fitted, {found['steps']:,} steps"
    fit = "" if found["median_abs_error"] is None else f"; on fitted cells {100 * found['median_abs_error']:.1f}"
    return f"({kind}; p90 {100 * found['held_out_p90_abs_error']:.1f}{fit})"

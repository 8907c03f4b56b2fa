"""Predicted against measured: the panels that the pages of a calibration and of a validation share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from kvrm_analysis.drawing.style import FAINT, INK

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Steps of one kind. ``measured_ms``: p10, median, p90 over the repeats [3, n]; ``predicted_ms`` [n]."""

    name: str
    colour: str
    measured_ms: Floats
    predicted_ms: Floats

    @property
    def median_abs_error(self) -> float:
        """Median of \\|predicted / measured - 1\\|."""
        return float(np.median(np.abs(self.predicted_ms / self.measured_ms[1] - 1)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """One bar: a median absolute error, and how far single repeats are from their own median (None: there was one);
    both are shares.
    """

    name: str
    colour: str
    error: float
    spread: float | None
    note: str = ""


def draw_times(axes: Axes, kinds: Sequence[Times]) -> None:
    """Predicted over measured, one dot a step, with p10 to p90; on the diagonal the prediction is right.

    Behind each kind's name: its median absolute error.
    """
    axes.set_title("Whole steps")
    axes.set_xlabel("measured, ms (bars: p10 to p90)")
    axes.set_ylabel("predicted, ms")
    every = np.concatenate([np.concatenate([kind.measured_ms[1], kind.predicted_ms]) for kind in kinds])
    ends = np.array([every.min() / 1.15, every.max() * 1.15])
    logarithmic(axes, ends, "x")
    logarithmic(axes, ends, "y")
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    # Thousands of marks are drawn as pixels, so that the file stays small; the bars below every dot.
    for kind in kinds:
        low, _, high = kind.measured_ms
        axes.hlines(
            kind.predicted_ms, low, high, color=kind.colour, linewidth=0.4, alpha=0.3, zorder=1.5, rasterized=True
        )
    for kind in kinds:
        label = f"{kind.name}: {kind.median_abs_error:.1%} off, n {len(kind.predicted_ms):,}"
        axes.plot(
            kind.measured_ms[1],
            kind.predicted_ms,
            "o",
            markersize=2.6,
            markeredgewidth=0,
            color=kind.colour,
            alpha=0.55,
            label=label,
            rasterized=True,
        )
    axes.legend(loc="lower right", fontsize=6.8, handletextpad=0.1, borderaxespad=0.2, labelspacing=0.3)


def draw_accuracy(axes: Axes, title: str, bars: Sequence[Accuracy], room: float) -> None:
    """Horizontal bars of the errors; the mark on each is the spread of repeats: below it, an error is noise.

    The axis is ``room`` times the longest bar, so that its note has a place.
    """
    at = np.arange(len(bars), dtype=np.float64)
    errors = [100 * bar.error for bar in bars]
    known = [(y, 100 * bar.spread) for y, bar in zip(at, bars, strict=True) if bar.spread is not None]
    axes.barh(at, errors, 0.6, color=[bar.colour for bar in bars])
    for y, spread in known:
        axes.plot(spread, y, "|", color="white", markersize=12, markeredgewidth=3.4)
        axes.plot(spread, y, "|", color=INK, markersize=12, markeredgewidth=1.4)
    for y, bar, error in zip(at, bars, errors, strict=True):
        text = f"{error:.1f}" + (f"  {bar.note}" if bar.note else "")
        place = (max(error, 100 * (bar.spread or 0.0)), float(y))
        axes.annotate(text, place, xytext=(5, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(at, [bar.name for bar in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, room * max([*errors, *(spread for _, spread in known), 0.1]))
    axes.set_xlabel("median absolute error, %" + (" (mark: spread of repeats)" if known else ""))
    axes.set_title(title)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def logarithmic(axes: Axes, ends: Floats, which: Literal["x", "y"]) -> None:
    """A logarithmic axis from the first of ``ends`` to the last, with plain numbers: 1, 2, 5 where it is short."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(float(ends[0]), float(ends[-1]))
    short = ends[-1] < 50 * ends[0]
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if short else (1,), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def clock_of(report: Mapping[str, Any]) -> str:
    """Which time was measured, in words."""
    if report["clock"] != "thread_cpu_time":
        return str(report["clock"])
    pace = ", at the pace of the undisturbed machine" if report.get("pace") else ""
    return f"of the processor, for this thread alone{pace} (the machine may be shared)"


def repeats_of(count: int) -> str:
    """How many repeats, in words: one alone has no spread."""
    return "one repeat, whose spread is unknown" if count == 1 else f"{count} repeats"


def no_records(axes: Axes, title: str) -> None:
    """An empty panel that says why it is empty."""
    axes.set_title(title)
    axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color=FAINT)
    axes.set_xticks([])
    axes.set_yticks([])

"""A trace on one page: load over time with the window proposed, gaps, lengths, what prefixes and sessions repeat."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from kvrm_analysis import trace_series
from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import COLOURS, FAINT, SHADE, look, save
from kvrm_traces import TraceReport
from kvrm_traces.inspection_text import order_words, ramp_words, steady_words

WIDTH_INCHES = 7.4
CAPTION_COLUMNS = 124
#: Left edges of a row's two panels, their width, the height of every panel, and from one row to the next, in inches.
LEFTS, WIDTH, HEIGHT, PITCH = (0.62, 4.22), 2.95, 1.35, 2.05
RATE_TOP = 0.62

PROMPT, OUTPUT, OTHER = COLOURS[1], COLOURS[2], COLOURS[3]


def trace_page(report: TraceReport, path: str | Path) -> Path:
    """Draw the page as PNG and SVG at ``path``, whatever its suffix; returns the PNG's path.

    The same report gives the same bytes.
    """
    target = Path(path)
    save(draw_trace(report), target)
    return target.with_suffix(".png")


def draw_trace(report: TraceReport) -> Figure:
    """The figure itself, for a notebook or a report."""
    panels = _panels(report)
    rows = -(-len(panels) // 2)
    lines = textwrap.wrap(caption(report), CAPTION_COLUMNS, break_on_hyphens=False)
    top_of_caption = RATE_TOP + PITCH * (rows + 1) - 0.1
    with look():
        page = Page(WIDTH_INCHES, top_of_caption + 0.14 * len(lines) + 0.1)
        page.text(0.1, 0.09, _heading(report), fontsize=9.5)
        _draw_rate(page.axes(LEFTS[0], RATE_TOP, WIDTH_INCHES - LEFTS[0] - 0.23, HEIGHT), report)
        for at, draw in enumerate(panels):
            draw(page.axes(LEFTS[at % 2], RATE_TOP + PITCH * (at // 2 + 1), WIDTH, HEIGHT), report)
        page.text(0.1, top_of_caption, "\n".join(lines), fontsize=7.5)
    return page.figure


def caption(report: TraceReport) -> str:
    """What is drawn, and what is odd about the trace."""
    info = report.info
    parts = [f"Order: {order_words(info)}."]
    if info.ties:
        parts.append(f"{info.ties:,} requests arrive with the one before (gaps of 0).")
    if report.ramp is not None:
        parts.append(f"Ramp: {ramp_words(report.ramp)}.")
    parts.append(f"Steady window (shaded): {steady_words(report)}.")
    if info.rejected:
        parts.append("Rejected: " + ", ".join(f"{count:,} {reason}" for reason, count in info.rejected.items()) + ".")
    if report.duplicates:
        parts.append(f"Duplicate rows: {report.duplicates:,}.")
    if report.over_limit is not None:
        parts.append(
            f"{report.over_limit.rows:,} requests beyond {report.over_limit.limit_tokens:,} tokens of context."
        )
    parts.append("Lengths and gaps in quarters of octaves; exponential: gaps of a Poisson process of this rate.")
    return " ".join(parts)


def _heading(report: TraceReport) -> str:
    info = report.info
    rate = "all at one instant" if report.rate_per_s is None else f"{report.rate_per_s:.3f} requests/s"
    cv = "" if report.gap_cv is None else f", CV of gaps {report.gap_cv:.2f}"
    return f"{info.name}: {info.rows:,} requests over {info.span_s:,.6g} s, {rate}{cv}"


def _panels(report: TraceReport) -> Sequence[Callable[[Axes, TraceReport], None]]:
    panels: list[Callable[[Axes, TraceReport], None]] = [_draw_gaps, _draw_lengths]
    if report.prefix_reuse is not None:
        panels.append(_draw_reuse)
    if "turns" in report.histograms:
        panels.append(_draw_turns)
    return panels


def _draw_rate(axes: Axes, report: TraceReport) -> None:
    unit, unit_s = trace_series.time_unit(report.info.span_s)
    edges = trace_series.rate_edges_s(report) / unit_s
    axes.stairs(np.array(report.rates_per_s), edges, fill=True, color=PROMPT, alpha=0.35, linewidth=0)
    axes.stairs(np.array(report.rates_per_s), edges, color=PROMPT, linewidth=1.1)
    for window in trace_series.windows(report):
        look_of: dict[str, Any] = (
            {"color": SHADE, "alpha": 0.6} if window.name == "steady" else {"color": FAINT, "alpha": 0.15}
        )
        axes.axvspan(window.start_s / unit_s, window.end_s / unit_s, linewidth=0, zorder=0, **look_of)
        beside: dict[str, Any] = {
            "xytext": (3, -3),
            "textcoords": "offset points",
            "va": "top",
            "fontsize": 7.5,
            "color": FAINT,
        }
        axes.annotate(window.name, (window.start_s / unit_s, 1), xycoords=("data", "axes fraction"), **beside)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(0, 1.12 * max(report.rates_per_s))
    axes.set_title("Rate of arrivals")
    axes.set_xlabel(f"time, {unit}")
    axes.set_ylabel("requests/s")
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _draw_gaps(axes: Axes, report: TraceReport) -> None:
    axes.set_title("Gaps between arrivals")
    axes.set_xlabel("gap, s")
    axes.set_ylabel("% at least so long")
    gaps = trace_series.gaps(report)
    if gaps is None:
        axes.annotate("all at one instant", (0.5, 0.5), xycoords="axes fraction", ha="center", color=FAINT)
        return
    axes.plot(gaps.x, np.maximum(gaps.trace, gaps.least), color=PROMPT, label="trace")
    axes.plot(gaps.x, gaps.exponential, color=FAINT, dashes=(4, 2), label="exponential")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(gaps.least, 150)
    _decades(axes, gaps.x[0], gaps.x[-1])
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.legend(loc="lower left")


def _draw_lengths(axes: Axes, report: TraceReport) -> None:
    lengths = trace_series.lengths(report)
    for name, shares, colour in (("prompt", lengths.prompts, PROMPT), ("output", lengths.outputs, OUTPUT)):
        seen = np.flatnonzero(~np.isnan(shares))
        edges = lengths.edges[seen[0] : seen[-1] + 2]
        axes.stairs(shares[seen], edges, color=colour, linewidth=1.2, label=name)
    if report.over_limit is not None:
        axes.axvline(report.over_limit.limit_tokens, color=FAINT, dashes=(2, 2), linewidth=1, label="context limit")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_tokens))
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    axes.set_title("Lengths")
    axes.set_xlabel("tokens")
    axes.set_ylabel("% of requests")
    axes.legend(loc="upper center", fontsize=7.5, ncols=3, handlelength=1.2, columnspacing=1)


def _decades(axes: Axes, low: float, high: float) -> None:
    """Ticks of a logarithmic axis of x: at 1, and at 2 and 5 where the axis is short."""
    short = high < 30 * low
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if short else (1,), numticks=7))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(_tokens))


def _plain(value: float, _position: int) -> str:
    return f"{value:g}"


def _tokens(value: float, _position: int) -> str:
    return f"{value / 1000:g}K" if value >= 1000 else f"{value:g}"


def _draw_reuse(axes: Axes, report: TraceReport) -> None:
    reuse = trace_series.reuse(report)
    assert reuse is not None  # as chosen
    axes.plot(reuse.percent, reuse.lru, "o-", color=PROMPT, label="LRU")
    axes.plot(reuse.percent, reuse.belady, "s-", color=OTHER, label="at best (Belady)", markersize=4)
    axes.axhline(reuse.infinite, color=FAINT, dashes=(4, 2), label="without end")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_tokens))
    axes.set_ylim(0)
    axes.set_title("Prefixes found again")
    axes.set_xlabel("cache, % of different blocks")
    axes.set_ylabel("% of blocks")
    axes.legend(loc="lower right", fontsize=7.5)


def _draw_turns(axes: Axes, report: TraceReport) -> None:
    turns = trace_series.turns(report)
    assert turns is not None  # as chosen
    axes.step(turns.x[:-1], turns.y[:-1], where="pre", color=PROMPT)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _decades(axes, turns.x[0], turns.x[-1])
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.set_title("Turns a session")
    axes.set_xlabel("turns")
    axes.set_ylabel("% with so many")

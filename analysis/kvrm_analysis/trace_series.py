"""What a page of a trace draws, as numbers: computed here for the figure (drawing/trace_page.py) and for the report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvrm_traces import TraceReport
from kvrm_traces.tokens import Histogram

Floats = NDArray[np.float64]

#: Axes are in minutes above so many seconds, and in hours above so many.
MINUTES_FROM_S, HOURS_FROM_S = 600.0, 4 * 3600.0
#: Parts of an octave in the histograms of an inspection.
PARTS_AN_OCTAVE = 4
#: Gaps are drawn from where one of the two curves has lost this share; the exponential down to this part of one gap,
#: as no trace shows rarer ones.
SEEN_FROM, LEAST_GAPS = 0.01, 0.4


def time_unit(end_s: float) -> tuple[str, float]:
    """Unit of an axis of time, and the seconds in it."""
    return ("h", 3600.0) if end_s > HOURS_FROM_S else ("min", 60.0) if end_s > MINUTES_FROM_S else ("s", 1.0)


@dataclass(frozen=True)
class Window:
    """A stretch of the trace's clock that has a name: ``ramp`` or ``steady``."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Curve:
    """``y`` at ``x``, float64 [points] each."""

    x: Floats
    y: Floats


@dataclass(frozen=True)
class Gaps:
    """Percent of the gaps that are at least ``x`` s long: of the trace, and of a Poisson process of its rate.

    ``least``: percent below which no trace shows anything; the exponential is NaN there.
    """

    x: Floats
    trace: Floats
    exponential: Floats
    least: float


@dataclass(frozen=True)
class Lengths:
    """Percent of the requests in each class of tokens; class i is [``edges[i]``, ``edges[i + 1]``), whole numbers.

    NaN below the shortest and above the longest.
    """

    edges: NDArray[np.int64]
    prompts: Floats
    outputs: Floats


@dataclass(frozen=True)
class Reuse:
    """Percent of the blocks that are found again, by the cache's size in ``percent`` of the different blocks."""

    percent: Floats
    lru: Floats
    belady: Floats
    infinite: float


def rate_edges_s(report: TraceReport) -> Floats:
    """Where the equal parts of ``rates_per_s`` begin and end; 0 to 1 s where all arrive at one instant."""
    return np.linspace(0.0, report.info.span_s or 1.0, len(report.rates_per_s) + 1)


def windows(report: TraceReport) -> list[Window]:
    """The stretches proposed, in order of time."""
    named = (("ramp", report.ramp), ("steady", report.steady))
    return [
        Window(name, stretch.start_s, report.info.span_s if stretch.end_s is None else stretch.end_s)
        for name, stretch in named
        if stretch is not None
    ]


def gaps(report: TraceReport) -> Gaps | None:
    """None where all requests arrive at one instant."""
    if report.rate_per_s is None:
        return None
    curve = at_least(report.histograms["gap_s"])
    least = 100 * LEAST_GAPS / report.info.rows
    # A coarse clock has a class of gaps or two: the exponential is seen from where it falls to where it ends.
    before = _octaves(min(curve.x[0] / 2, SEEN_FROM / report.rate_per_s), curve.x[0])
    behind = _octaves(curve.x[-1], -np.log(least / 100) / report.rate_per_s)[1:]
    x = np.concatenate((before, curve.x, behind))
    trace = np.concatenate((np.full(before.size, curve.y[0]), curve.y, np.zeros(behind.size)))
    expected = 100 * np.exp(-x * report.rate_per_s)
    whole = np.flatnonzero(np.minimum(trace, expected) >= 100 * (1 - SEEN_FROM))  # a clock of nanoseconds has many
    first = int(whole[-1]) if whole.size else 0
    return Gaps(x[first:], trace[first:], np.where(expected > least, expected, np.nan)[first:], least)


def _octaves(low: float, high: float) -> Floats:
    """From low up to below high, in quarters of octaves; empty where low is not below high."""
    parts = max(0, int(np.ceil(PARTS_AN_OCTAVE * np.log2(high / low))))
    return np.asarray(low * 2.0 ** (np.arange(parts) / PARTS_AN_OCTAVE), np.float64)


def turns(report: TraceReport) -> Curve | None:
    """Percent of the sessions with at least so many turns; None without sessions."""
    histogram = report.histograms.get("turns")
    return None if histogram is None else at_least(histogram, whole=True)


def at_least(histogram: Histogram, *, whole: bool = False) -> Curve:
    """Percent of the values that are at or above each edge over 0, and 0 at the last. ``whole``: of whole numbers."""
    counts = np.array(histogram.counts, np.float64)
    edges = np.array(histogram.edges, np.float64)
    above = 100 * np.append(1 - (np.cumsum(counts) - counts) / counts.sum(), 0.0)
    edges, above = edges[edges > 0], above[edges > 0]
    if whole:
        edges, first = np.unique(np.ceil(edges), return_index=True)
        above = above[first]
    return Curve(edges, above)


def lengths(report: TraceReport) -> Lengths:
    """Prompts and outputs in the same classes, each of one token or more."""
    found = [report.histograms["prompt_tokens"], report.histograms["output_tokens"]]
    places = [np.rint(PARTS_AN_OCTAVE * np.log2(each.edges[:-1])).astype(np.int64) for each in found]
    first, last = min(int(place[0]) for place in places), max(int(place[-1]) for place in places)
    edges, starts = np.unique(
        np.ceil(2.0 ** (np.arange(first, last + 2) / PARTS_AN_OCTAVE)).astype(np.int64), return_index=True
    )
    shares = []
    for place, histogram in zip(places, found, strict=True):
        counts = np.zeros(last + 1 - first)
        counts[place - first] = histogram.counts
        # Between 1 and 2, say, lie parts without a whole number: nothing was counted in them.
        percent = 100 * np.add.reduceat(counts, starts[:-1]) / counts.sum()
        seen = np.flatnonzero(percent)
        percent[: seen[0]] = percent[seen[-1] + 1 :] = np.nan
        shares.append(percent)
    return Lengths(edges, *shares)


def reuse(report: TraceReport) -> Reuse | None:
    """None without prefix hashes."""
    found = report.prefix_reuse
    if found is None:
        return None
    lru, belady = (100 * np.array(list(rates.values())) for rates in (found.lru_blocks, found.belady_blocks))
    return Reuse(np.array(list(found.lru_blocks), np.float64), lru, belady, 100 * found.infinite_blocks)

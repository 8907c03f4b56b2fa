"""Latency distributions of requests, and of the gaps between tokens; objectives as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from kvrm_analysis.drawing.plot_options import PlotOptions, audits_of, not_ranked, status_of, title_of
from kvrm_analysis.drawing.sheet import Panel, empty, line_key, sheet
from kvrm_analysis.drawing.style import INK, colour, dash
from kvrm_analysis.inspection import gap_counts
from kvrm_analysis.latencies import LATENCIES, Cdf, Latency, cdf_of, cdf_of_counts, request_latencies_s
from kvrm_analysis.recorded import recorded
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.searches.slo import Term

#: Below this share of the values a distribution's body is not looked at: the axis begins there.
LEAST_SHARE = 0.002
GAPS = Latency("itl_s", "Gap between tokens (ITL)")


def draw_latency(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """Distribution functions of queue time, TTFT, TPOT and E2E, every request of every run."""
    panels, counts, kept = [], [], []
    for latency in LATENCIES:
        cdfs = [_of_requests(run, latency.key) for run in runs]
        bounds = options.bounds(latency.key)
        panels.append(Panel(_drawing(latency, cdfs, bounds), height=1.45))
        counts += [(latency.key, cdf.n if cdf is not None else 0) for cdf in cdfs]
        kept += [_kept(term, latency, runs, cdfs) for term in bounds]
    n = max(count for _, count in counts)
    words = [audits_of(runs), f"Each curve is of every request that has the metric, at most {n:,}."]
    words += ["Dots: p99, nearest rank.", *kept, not_ranked(runs), status_of(runs)]
    key = line_key([run.name for run in runs])
    return sheet(title=title_of(runs), caption=_sentences(words), panels=panels, key=key, width=options.width)


def draw_gaps(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """Every gap between tokens, counted while the run is simulated again: the distribution, and its tail."""
    cdfs: list[Cdf | None] = []
    for run in runs:
        source = recorded(run, trace=options.traces.get(run.name), replica=options.replica)
        cdfs.append(cdf_of_counts(gap_counts(source, options.told(run))))
    bounds = options.bounds(GAPS.key)
    panels = [
        Panel(_drawing(GAPS, cdfs, bounds, milliseconds=True), height=1.7),
        Panel(_tail(cdfs, bounds), height=1.7),
    ]
    gaps = ", ".join(f"{run.name} {cdf.n:,}" for run, cdf in zip(runs, cdfs, strict=True) if cdf is not None)
    words = [audits_of(runs), f"Gaps between tokens: {gaps}; each in a bucket at most 0.1% wide. Dots: p99."]
    words += [_kept(term, GAPS, runs, cdfs) for term in bounds]
    words += [not_ranked(runs), status_of(runs)]
    key = line_key([run.name for run in runs])
    return sheet(title=title_of(runs), caption=_sentences(words), panels=panels, key=key, width=options.width)


def _of_requests(run: NamedRun, key: str) -> Cdf | None:
    return None if run.requests is None else cdf_of(request_latencies_s(run.requests, key))


def _drawing(
    latency: Latency, cdfs: Sequence[Cdf | None], bounds: Sequence[Term], *, milliseconds: bool = False
) -> Callable[[Axes], None]:
    factor, unit = (1e3, "ms") if milliseconds else (1.0, "s")

    def draw(axes: Axes) -> None:
        if all(cdf is None or cdf.n == 0 for cdf in cdfs):
            empty(axes, latency.title, "no request has it, or requests were not recorded")
            return
        for at, cdf in _known(cdfs):
            value = np.maximum(cdf.value * factor, _least(cdfs) * factor)
            axes.step(value, 100 * cdf.share, where="post", color=colour(at), linestyle=dash(at))
            p99 = min(int(np.searchsorted(cdf.share, 0.99)), len(value) - 1)
            axes.plot(value[p99], 99, "o", color=colour(at), markersize=3.2)
        _bound_lines(axes, bounds, factor)
        logarithmic_times(axes)
        axes.set(title=latency.title, xlabel=f"{unit}, log scale", ylabel="values, %", ylim=(0, 101))
        axes.yaxis.set_major_formatter(PercentFormatter(symbol=""))

    return draw


def _tail(cdfs: Sequence[Cdf | None], bounds: Sequence[Term]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for at, cdf in _known(cdfs):
            above = 1 - cdf.share
            axes.step(1e3 * cdf.value[:-1], 100 * above[:-1], where="post", color=colour(at), linestyle=dash(at))
        _bound_lines(axes, bounds, 1e3)
        logarithmic_times(axes)
        axes.set(title="Gaps longer than this", xlabel="ms, log scale", ylabel="gaps, %, log scale", yscale="log")
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:g}" if value >= 0.01 else f"{value:.0e}")
        )
        axes.yaxis.set_minor_formatter(NullFormatter())

    return draw


def _known(cdfs: Sequence[Cdf | None]) -> list[tuple[int, Cdf]]:
    return [(at, cdf) for at, cdf in enumerate(cdfs) if cdf is not None and cdf.n]


def _least(cdfs: Sequence[Cdf | None]) -> float:
    """Where a logarithmic axis begins: values of 0, and a stray smallest one, are drawn at its edge."""
    starts = []
    for _, cdf in _known(cdfs):
        positive = cdf.value[(cdf.value > 0) & (cdf.share >= LEAST_SHARE)]
        starts.append(float(positive[0]) if len(positive) else 1e-3)
    return min(starts, default=1e-3)


def logarithmic_times(axes: Axes) -> None:
    """A logarithmic time axis with plain numbers."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,), numticks=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _bound_lines(axes: Axes, bounds: Sequence[Term], factor: float) -> None:
    """A line at each bound. Where it is on a percentile, a dot of a run to the left of it keeps it."""
    for term in bounds:
        axes.axvline(term.bound * factor, color=INK, linewidth=0.9, linestyle=(0, (1, 1)))
        statistic = term.figure.path.partition(".")[2]
        text = f"{statistic} {term.comparison} {term.figure.text(term.bound)}"
        axes.annotate(text, (term.bound * factor, 0.03), xycoords=axes.get_xaxis_transform(), xytext=(2.5, 0),
                      textcoords="offset points", fontsize=7, rotation=90, va="bottom")  # fmt: skip


def _kept(term: Term, latency: Latency, runs: Sequence[NamedRun], cdfs: Sequence[Cdf | None]) -> str:
    """Which runs keep a bound, how far the others are off, and which share of the values lies within it."""
    kept, broken, shares = [], [], []
    for run, cdf in zip(runs, cdfs, strict=True):
        value = term.figure.value(run.summary)
        if value is not None and term.met(value):
            kept.append(run.name)
        else:
            broken.append(f"{run.name} ({term.figure.text(value)})")
        if cdf is None or cdf.n == 0:
            continue
        values = request_latencies_s(run.requests, latency.key) if latency is not GAPS and run.requests else None
        met = float(np.mean(values <= term.bound)) if values is not None else _share_at(cdf, term.bound)
        shares.append(f"{run.name} {100 * met:.4g}%")
    said = [f"kept by {', '.join(kept)}" if kept else "", f"not by {', '.join(broken)}" if broken else ""]
    within = f"; values within it: {', '.join(shares)}" if shares else ""
    return f"SLO {term}: {', '.join(filter(None, said))}{within}."


def _share_at(cdf: Cdf, value: float) -> float:
    at = int(np.searchsorted(cdf.value, value, side="right"))
    return float(cdf.share[at - 1]) if at else 0.0


def _sentences(words: Sequence[str]) -> str:
    return " ".join(filter(None, words))

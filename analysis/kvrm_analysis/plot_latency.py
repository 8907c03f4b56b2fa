"""Latency distributions of requests, and of the gaps between tokens; objectives as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from kvrm_analysis.inspection import gap_counts
from kvrm_analysis.latencies import LATENCIES, Cdf, Latency, cdf_of, cdf_of_counts, request_latencies_s
from kvrm_analysis.plot_options import OBJECTIVES, PlotOptions, audits_of, not_ranked, status_of, title_of
from kvrm_analysis.recorded import recorded
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.sheet import Panel, empty, line_key, sheet
from kvrm_analysis.style import INK, colour, dash

#: Below this share of the values a distribution's body is not looked at: the axis begins there.
LEAST_SHARE = 0.002
GAPS = Latency("itl_s", "Gap between tokens (ITL)")


def draw_latency(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """Distribution functions of queue time, TTFT, TPOT and E2E, every request of every run."""
    panels, counts, kept = [], [], []
    for latency in LATENCIES:
        cdfs = [_of_requests(run, latency.key) for run in runs]
        bound = _bound(options, latency.key)
        panels.append(Panel(_drawing(latency, cdfs, bound), height=1.45))
        counts += [(latency.key, cdf.n if cdf is not None else 0) for cdf in cdfs]
        if bound is not None:
            kept.append(_within(latency, runs, cdfs, bound))
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
    bound = _bound(options, GAPS.key)
    panels = [
        Panel(_drawing(GAPS, cdfs, bound, milliseconds=True), height=1.7),
        Panel(_tail(cdfs, bound), height=1.7),
    ]
    gaps = ", ".join(f"{run.name} {cdf.n:,}" for run, cdf in zip(runs, cdfs, strict=True) if cdf is not None)
    words = [audits_of(runs), f"Gaps between tokens: {gaps}; each in a bucket at most 0.1% wide. Dots: p99."]
    words += [_within(GAPS, runs, cdfs, bound)] if bound is not None else []
    words += [not_ranked(runs), status_of(runs)]
    key = line_key([run.name for run in runs])
    return sheet(title=title_of(runs), caption=_sentences(words), panels=panels, key=key, width=options.width)


def _of_requests(run: NamedRun, key: str) -> Cdf | None:
    return None if run.requests is None else cdf_of(request_latencies_s(run.requests, key))


def _bound(options: PlotOptions, key: str) -> float | None:
    return next((options.objectives[word] for word in options.objectives if OBJECTIVES[word] == key), None)


def _drawing(
    latency: Latency, cdfs: Sequence[Cdf | None], bound_s: float | None, *, milliseconds: bool = False
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
        _bound_line(axes, bound_s, factor, unit)
        logarithmic_times(axes)
        axes.set(title=latency.title, xlabel=f"{unit}, log scale", ylabel="values, %", ylim=(0, 101))
        axes.yaxis.set_major_formatter(PercentFormatter(symbol=""))

    return draw


def _tail(cdfs: Sequence[Cdf | None], bound_s: float | None) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for at, cdf in _known(cdfs):
            above = 1 - cdf.share
            axes.step(1e3 * cdf.value[:-1], 100 * above[:-1], where="post", color=colour(at), linestyle=dash(at))
        _bound_line(axes, bound_s, 1e3, "ms")
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


def _bound_line(axes: Axes, bound_s: float | None, factor: float, unit: str) -> None:
    if bound_s is None:
        return
    axes.axvline(bound_s * factor, color=INK, linewidth=0.9, linestyle=(0, (1, 1)))
    where = axes.get_xaxis_transform()
    axes.annotate(f"SLO {bound_s * factor:g} {unit}", (bound_s * factor, 0.03), xycoords=where, xytext=(2.5, 0),
                  textcoords="offset points", fontsize=7, rotation=90, va="bottom")  # fmt: skip


def _within(latency: Latency, runs: Sequence[NamedRun], cdfs: Sequence[Cdf | None], bound_s: float) -> str:
    """Which share of the values met the objective."""
    shares = []
    for run, cdf in zip(runs, cdfs, strict=True):
        if cdf is None or cdf.n == 0:
            continue
        values = request_latencies_s(run.requests, latency.key) if latency is not GAPS and run.requests else None
        met = float(np.mean(values <= bound_s)) if values is not None else _share_at(cdf, bound_s)
        shares.append(f"{run.name} {100 * met:.4g}%")
    return f"{latency.title} within {bound_s:g} s: {', '.join(shares)}."


def _share_at(cdf: Cdf, value: float) -> float:
    at = int(np.searchsorted(cdf.value, value, side="right"))
    return float(cdf.share[at - 1]) if at else 0.0


def _sentences(words: Sequence[str]) -> str:
    return " ".join(filter(None, words))

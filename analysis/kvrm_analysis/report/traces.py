"""The page of a trace in a report: what `kvrm trace inspect` shows of it, in the report's own charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from kvrm_analysis import trace_series
from kvrm_analysis.report.bins import brief
from kvrm_analysis.report.inspecting import Inspected
from kvrm_analysis.report.markup import el
from kvrm_analysis.report.subject import Subject, chart, measure
from kvrm_analysis.report.tables import facts, figure
from kvrm_analysis.runs import NamedRun
from kvrm_traces import TraceReport
from kvrm_traces.inspection_text import ramp_words, report_facts, steady_words

#: Facts of an inspection that the page tells otherwise; and those of a source, which a run's requests are not.
TOLD = frozenset({"trace", "sha256", "requests", "span", "rate over time"})
OF_THE_SOURCE = frozenset({"order", "rejected rows"})
#: Stretches of the trace's clock, which a transform may have moved.
OF_THE_CLOCK = frozenset({"ramp", "steady window", "longest gap"})

Chart = dict[str, Any]


@dataclass(frozen=True)
class TracePage:
    """One trace's part of the page. ``axes``: by the name that its charts use."""

    content: Element
    charts: list[Chart]
    axes: dict[str, Any]


def trace_pages(subject: Subject, found: list[Inspected], documents: list[dict[str, Any]]) -> list[TracePage]:
    """A page for each distinct trace, in the order of the runs."""
    names = trace_names(subject)
    return [
        _page(f"trace{number}", names[each.at], each, subject.runs[each.at], documents[each.at])
        for number, each in enumerate(found, start=1)
    ]


def trace_names(subject: Subject) -> dict[int, str]:
    """A name for each distinct trace, by the first run that replayed it."""
    names = {at: str(subject.runs[at].summary["trace"]["name"]) for at in subject.traces}
    if len(set(names.values())) < len(names):
        return {at: f"{name} ({subject.runs[at].name})" for at, name in names.items()}
    return names


def _page(prefix: str, name: str, inspected: Inspected, run: NamedRun, document: dict[str, Any]) -> TracePage:
    content = el("div", {"class": "trace"}, el("h3", None, name))
    if inspected.instead is not None:
        content.append(el("p", {"class": "notice"}, _instead(run, inspected)))
    charts: list[Chart] = []
    axes: dict[str, Any] = {}
    if inspected.report is not None:
        drawn = [
            _rate(inspected.report, bool(run.summary["trace"].get("transforms"))),
            _gaps(inspected.report),
            _lengths(inspected.report),
        ]
        drawn += [_reuse(inspected.report), _turns(inspected.report)]
        for each, axis in filter(None, drawn):
            axes[f"{prefix}-{each['id']}"] = axis
            charts.append({**each, "id": f"{prefix}-{each['id']}", "axis": f"{prefix}-{each['id']}"})
        content.append(el("div", {"class": "charts"}, *(figure(each) for each in charts)))
    content.append(facts(_facts(inspected, run, document)))
    return TracePage(content, charts, axes)


def _instead(run: NamedRun, inspected: Inspected) -> str:
    if inspected.report is None:
        return f"The trace was not inspected: {inspected.instead}."
    return (
        f"Of the requests that run {run.name} recorded, not of the trace itself: {inspected.instead}. A run records "
        "arrivals and lengths: nothing of sessions, prefix hashes, rejected rows and the order of the source."
    )


def _facts(inspected: Inspected, run: NamedRun, document: dict[str, Any]) -> list[tuple[str, str]]:
    about, told, report = document.get("trace", {}), run.summary["trace"], inspected.report
    info = None if inspected.instead is not None or report is None else report.info
    entries = [
        ("name", str(told["name"])),
        ("source", str(about.get("source", "not recorded")) if info is None else info.source),
        ("format", str(about.get("format", "not recorded"))),
        ("sha256", str(told["sha256"])),
        ("requests", f"{told['rows']:,} over {told['span_s']:,.1f} s"),
        ("transforms", str(told.get("transforms") or "none")),
    ]
    if document.get("run", {}).get("driver") == "closed-loop":
        whose = "as the run sent them" if info is None else "as the trace has them"
        entries.append(("arrivals", f"closed loop, {whose}: a turn waited for the answer to the one before"))
    if report is None:
        return entries
    left_out = TOLD if info is not None else TOLD | OF_THE_SOURCE
    entries += [(name, text) for name, text in report_facts(report) if name not in left_out]
    return entries if not told.get("transforms") else [(name, text + _of_what(name, text)) for name, text in entries]


def _of_what(name: str, text: str) -> str:
    """What a fact is of where the trace was cut or scaled; nothing where it names no time."""
    if name in OF_THE_CLOCK:
        return ", in seconds of the replay" if any(map(str.isdigit, text)) else ""
    return ", in the whole source" if name in OF_THE_SOURCE else ""


Drawn = tuple[Chart, dict[str, Any]]


def _rate(report: TraceReport, transformed: bool) -> Drawn:
    unit, unit_s = trace_series.time_unit(report.info.span_s)
    edges = trace_series.rate_edges_s(report)
    width_s = float(edges[1])
    axis = {"label": "time since the first arrival", "unit": unit, "first": width_s / 2 / unit_s,
            "step": width_s / unit_s, "count": len(report.rates_per_s), "bin": f"{width_s:.4g} s"}  # fmt: skip
    shaded = [[each.start_s / unit_s, each.end_s / unit_s, each.name] for each in trace_series.windows(report)]
    ramp = "" if report.ramp is None else f"Ramp: {ramp_words(report.ramp)}. "
    steady = steady_words(report)
    note = f"{ramp}Steady window: {steady}{_of_what('steady window', steady) if transformed else ''}."
    line = {"name": "arrivals", "y": brief(np.array(report.rates_per_s))}
    how = {"kind": "stairs", "shaded": shaded, "wide": True}
    return chart("rate", "", "Rate of arrivals", note, [measure("rate", "requests/s", [line])], **how), axis


def _gaps(report: TraceReport) -> Drawn | None:
    gaps = trace_series.gaps(report)
    if gaps is None:
        return None
    lines = [{"name": "trace", "y": brief(gaps.trace)}, {"name": "exponential", "y": brief(gaps.exponential)}]
    axis = {"label": "gap", "unit": "s", "log": True, "values": brief(gaps.x), "before": "\N{GREATER-THAN OR EQUAL TO}"}
    ties = f"{report.info.ties:,} gaps are 0. " if report.info.ties else ""
    note = f"{ties}Exponential: the gaps of a Poisson process of this rate."
    made = chart("gaps", "", "Gaps between arrivals", note, [measure("gaps", "% at least so long", lines)],
                 log=True, falls=True)  # fmt: skip
    return made, _counted(axis)


def _lengths(report: TraceReport) -> Drawn:
    lengths = trace_series.lengths(report)
    lines = [{"name": "prompts", "y": brief(lengths.prompts)}, {"name": "outputs", "y": brief(lengths.outputs)}]
    axis = {"label": "tokens", "unit": "", "log": True, "edges": lengths.edges.tolist(),
            "texts": _classes(lengths.edges)}  # fmt: skip
    note = f"Classes of length, {trace_series.PARTS_AN_OCTAVE} to a factor of two."
    over = report.over_limit
    marks = [] if over is None else [[over.limit_tokens, "context"]]
    if over is not None and over.rows:
        note += f" {over.rows:,} requests have more than {over.limit_tokens:,} tokens, prompt and output."
    made = chart("lengths", "", "Lengths", note, [measure("lengths", "% of requests", lines)],
                 kind="stairs", marks=marks)  # fmt: skip
    return made, {**axis, "count": len(lengths.prompts)}


def _classes(edges: NDArray[np.int64]) -> list[str]:
    return [
        f"{low:,} tokens" if low + 1 == high else f"{low:,}\N{EN DASH}{high - 1:,} tokens"
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]


def _reuse(report: TraceReport) -> Drawn | None:
    reuse, found = trace_series.reuse(report), report.prefix_reuse
    if reuse is None or found is None:
        return None
    lines = [
        {"name": "LRU", "y": brief(reuse.lru)},
        {"name": "at best (Belady)", "y": brief(reuse.belady)},
        {"name": "without end", "y": brief(np.full(len(reuse.percent), reuse.infinite))},
    ]
    sample = "" if found.curve_share == 1 else f" From a sample of {100 * found.curve_share:.3g}% of them."
    note = f"Blocks that an earlier prompt had, of {found.unique_blocks:,} different ones.{sample}"
    axis = {"label": "cache, of the different blocks", "unit": "%", "log": True, "values": brief(reuse.percent)}
    made = chart("reuse", "", "Prefixes found again", note, [measure("reuse", "% of blocks", lines)], kind="points")
    return made, _counted(axis)


def _turns(report: TraceReport) -> Drawn | None:
    turns = trace_series.turns(report)
    if turns is None or report.sessions is None:
        return None
    note = f"{report.sessions.sessions:,} sessions, {report.sessions.follow_ups:,} follow-ups."
    at_most = slice(0, len(turns.x) - 1)  # no session has as many as the last edge
    axis = {"label": "turns", "unit": "", "log": True, "values": brief(turns.x[at_most]),
            "texts": [f"{count:,.0f} turns or more" for count in turns.x[at_most]]}  # fmt: skip
    lines = [{"name": "sessions", "y": brief(turns.y[at_most])}]
    made = chart("turns", "", "Turns a session", note, [measure("turns", "% with so many", lines)],
                 kind="points", log=True)  # fmt: skip
    return made, _counted(axis)


def _counted(axis: dict[str, Any]) -> dict[str, Any]:
    return {**axis, "count": len(axis["values"])}

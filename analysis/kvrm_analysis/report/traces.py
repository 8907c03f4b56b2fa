"""The page of a trace in a report: what arrived, how long it was, and how it clumped. From a run's requests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_analysis.drawing.series import Floats, integers
from kvrm_analysis.reading import columns
from kvrm_analysis.report.bins import brief
from kvrm_analysis.report.subject import Subject, chart, measure
from kvrm_analysis.runs import NamedRun
from kvrm_traces.burstiness import FANO_WINDOWS_S, Gaps, WindowCounts

#: Classes of lengths a power of two.
CLASSES_AN_OCTAVE = 4


def trace_charts(subject: Subject) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Lengths of prompts and outputs of each distinct trace, and their axis; none where requests were not kept."""
    tables = {at: columns(subject.runs[at], "requests", ["prompt_tokens", "output_tokens"]) for at in subject.traces}
    tables = {at: table for at, table in tables.items() if table.num_rows}
    if not tables:
        return [], {}
    highest = max(int(integers(table, name).max()) for table in tables.values() for name in table.column_names)
    edges = length_edges(highest)
    names = trace_names(subject)
    measures = []
    for title, column in (("prompts", "prompt_tokens"), ("outputs", "output_tokens")):
        lines = [
            {"name": names[at], "y": brief(_share(integers(table, column), edges))} for at, table in tables.items()
        ]
        measures.append(measure(title, "% of requests", lines))
    words = [
        f"{low:,}" if low + 1 == high else f"{low:,}\N{EN DASH}{high - 1:,}"
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    axis = {"label": "tokens", "unit": "", "first": 0, "step": 1, "count": len(words), "words": words}
    note = f"Classes of length, {CLASSES_AN_OCTAVE} to a factor of two."
    return [chart("lengths", "trace", "Lengths", note, measures, axis="lengths", kind="area")], {"lengths": axis}


def length_edges(highest: int) -> NDArray[np.int64]:
    """Edges of classes of lengths, 1 upward, each at least one token wide."""
    octaves = np.arange(0, np.log2(max(2, highest)) + 1, 1 / CLASSES_AN_OCTAVE)
    edges = np.unique(np.ceil(2**octaves).astype(np.int64))
    return edges[: int(np.searchsorted(edges, highest, side="right")) + 1]


def _share(lengths: NDArray[np.int64], edges: NDArray[np.int64]) -> Floats:
    counts = np.histogram(lengths, edges)[0]
    return np.asarray(100 * counts / len(lengths), np.float64)


def trace_names(subject: Subject) -> dict[int, str]:
    """A name for each distinct trace, by the first run that replayed it."""
    names = {at: str(subject.runs[at].summary["trace"]["name"]) for at in subject.traces}
    if len(set(names.values())) < len(names):
        return {at: f"{name} ({subject.runs[at].name})" for at, name in names.items()}
    return names


def trace_facts(run: NamedRun, document: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known of the trace that a run replayed."""
    about = document.get("trace", {})
    told = run.summary["trace"]
    entries = [
        ("name", str(told["name"])),
        ("source", str(about.get("source", "not recorded"))),
        ("format", str(about.get("format", "not recorded"))),
        ("sha256", str(told["sha256"])),
        ("requests", f"{told['rows']:,} over {told['span_s']:,.1f} s"),
        ("transforms", str(told.get("transforms") or "none")),
    ]
    table = columns(run, "requests", ["arrival_ns", "prompt_tokens", "output_tokens"])
    if not table.num_rows:
        return [*entries, ("lengths and burstiness", "requests were not recorded")]
    for name, column in (("prompt tokens", "prompt_tokens"), ("output tokens", "output_tokens")):
        entries.append((name, _spread(integers(table, column))))
    return entries + burstiness(np.sort(integers(table, "arrival_ns")))


def _spread(lengths: NDArray[np.int64]) -> str:
    p50, p99 = np.quantile(lengths, [0.5, 0.99], method="inverted_cdf").tolist()
    most, total = int(lengths.max()), int(lengths.sum())
    return f"mean {lengths.mean():,.1f}, p50 {p50:,}, p99 {p99:,}, max {most:,}; {total:,} in all"


def burstiness(arrivals_ns: NDArray[np.int64]) -> list[tuple[str, str]]:
    """Spread of the gaps and of the counts, of sorted arrivals."""
    arrivals_ns = arrivals_ns - arrivals_ns[0]
    gaps = Gaps()
    gaps.see(arrivals_ns)
    entries: list[tuple[str, float | None]] = [("CV of the gaps", gaps.cv())]
    for seconds in FANO_WINDOWS_S:
        counts = WindowCounts(seconds * 1_000_000_000, int(arrivals_ns[-1]))
        counts.see(arrivals_ns)
        entries.append((f"Fano factor, {seconds} s", counts.fano()))
    return [(name, "too few arrivals" if value is None else f"{value:.3g}") for name, value in entries]

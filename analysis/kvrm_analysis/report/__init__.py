"""The report of runs: one file of HTML that needs nothing else, neither a network nor a server.

Its page, style and script are files beside this one; its data are aggregates, so its size does not depend on how many
requests a run had. Text of traces and file names goes in as text only: the tables are built as trees (markup.py), the
charts by a script that never parses markup, and a policy in the page forbids every request and every other script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from kvrm_analysis.compare import heading
from kvrm_analysis.definitions import field_of
from kvrm_analysis.drawing.style import COLOURS, DARK_COLOURS
from kvrm_analysis.report import tables
from kvrm_analysis.report.charts import charts_of, cut
from kvrm_analysis.report.inspecting import inspect_traces
from kvrm_analysis.report.markup import el, html, script_json
from kvrm_analysis.report.subject import axes_of, shaded, subject_of
from kvrm_analysis.report.traces import trace_pages
from kvrm_analysis.runs import NamedRun, RunLike, open_runs
from kvrm_analysis.table_rows import SECTIONS
from kvrm_sim.errors import InputError
from kvrm_traces import Trace

SCRIPTS = ("format.js", "plot.js", "page.js")
#: id, title, and what is said under it.
PARTS = (
    ("results", "Results",
     "Point at a name, or reach it with Tab, for its definition. Latencies in parentheses are not ranked."),
    ("latency", "Latency and load",
     "Drag over a chart to zoom every chart of time; double-click to see all. Keys: arrows, plus, minus, Escape."),
    ("memory", "Memory", None),
    ("movement", "Movement", None),
    ("steps", "Steps", None),
    ("configuration", "Configuration", None),
    ("trace", "Trace", "As it was replayed, and as kvrm trace inspect shows it."),
    ("provenance", "Provenance", None),
    ("definitions", "Definitions", None),
)  # fmt: skip


def write_report(
    sources: Iterable[str | Path | RunLike],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    trace: Trace | None = None,
    reopen: bool = True,
) -> Path:
    """Write the report of runs, from folders (of runs or of comparisons) or from memory, as one file of HTML.

    The traces are opened again where run.toml says that they were, unless ``reopen`` is False; ``trace``: one of them,
    where it does not say enough (inspecting.py). The same runs and traces give the same bytes. Raises InputError for
    what is no run's folder, without a run, and for a ``trace`` that no run replayed.
    """
    target = Path(path)
    target.write_text(report_html(open_runs(sources, names), trace, reopen=reopen), encoding="utf-8")
    return target


def report_html(runs: Sequence[NamedRun], trace: Trace | None = None, *, reopen: bool = True) -> str:
    """The page's text: see :func:`write_report`. Raises InputError when a file of a run cannot be read."""
    if not runs:
        raise InputError("no run was given: a report needs at least one")
    documents = [run.document() if run.folder is not None else {} for run in runs]
    subject = subject_of(runs)
    found = inspect_traces(subject, documents, trace, reopen=reopen)
    traces = trace_pages(subject, found, documents)
    charts = charts_of(subject) + [each for page in traces for each in page.charts]
    axes = axes_of(subject)
    for page in traces:
        axes |= page.axes
    cut(charts, axes)
    data = {
        "runs": [
            {"name": run.name, "colour": tables.look_of(at)[0], "dash": tables.look_of(at)[1]}
            for at, run in enumerate(runs)
        ],
        "axes": axes,
        "shaded": shaded(subject),
        "charts": charts,
    }
    content: dict[str, list[Element]] = {
        "results": [*tables.headline(runs), tables.audits(runs), tables.caveats(runs)],
        "configuration": tables.configuration(runs, documents),
        "trace": [page.content for page in traces],
        "provenance": _provenance(runs, documents),
        "definitions": [tables.glossary(_fields(charts))],
    }
    return _page(runs, charts, content, data)


def _page(runs: Sequence[NamedRun], charts: list[dict[str, Any]], content: dict[str, list[Element]], data: Any) -> str:
    sections: list[Element] = []
    for name, title, about in PARTS:
        own = [chart for chart in charts if chart["section"] == name]
        if not own and not content.get(name):
            continue
        section = el(
            "section", {"id": name, "aria-labelledby": f"{name}-title"}, el("h2", {"id": f"{name}-title"}, title)
        )
        if about is not None:
            section.append(el("p", {"class": "about"}, about))
        section.extend(content.get(name, []))
        if own:
            section.append(el("div", {"class": "charts"}, *(tables.figure(chart) for chart in own)))
        sections.append(section)
    style = _palette() + _file("page.css")
    script = "\n".join(_file(name) for name in SCRIPTS)
    title = " · ".join(dict.fromkeys(str(run.summary["trace"]["name"]) for run in runs))
    filled = {
        "policy": f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        "title": html(el("i", None, f"{title}: {', '.join(run.name for run in runs)}"))[3:-4],
        "style": style,
        "heading": html(*_top(runs, sections)),
        "legend": html(*tables.legend(runs)),
        "sections": html(*sections),
        "footer": html(el("p", None, _footer(runs))),
        "data": script_json(data),
        "script": script,
    }
    pieces = _file("page.html").split("<!-- ")
    return pieces[0] + "".join(_put(piece, filled) for piece in pieces[1:])


def _palette() -> str:
    """The colours of figures as variables of the style: --light-0, --dark-0, ..."""
    pairs = enumerate(zip(COLOURS, DARK_COLOURS, strict=True))
    return "".join(f":root {{ --light-{at}: {light}; --dark-{at}: {dark}; }}\n" for at, (light, dark) in pairs)


def _put(piece: str, filled: dict[str, str]) -> str:
    """A piece of the template behind "<!-- ": its place, and the rest. Never a second time over what was put in."""
    name, rest = piece.split(" -->", 1)
    return filled[name] + rest


def _top(runs: Sequence[NamedRun], sections: Sequence[Element]) -> list[Element]:
    summaries = [run.summary for run in runs]
    tags = el("ul", {"class": "tags"})
    if not all(run["calibrated"] for run in summaries):
        tags.append(el("li", {"class": "caution"}, "uncalibrated: times rank policies and predict no machine"))
    overloaded = [run.name for run in runs if run.summary["overloaded"]]
    if overloaded:
        tags.append(el("li", {"class": "caution"}, f"overloaded: {', '.join(overloaded)}"))
    steps = sum(int(run["sim"]["steps"]) for run in summaries)
    tags.append(el("li", None, f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {steps:,} steps"))
    titles = {name: title for name, title, _ in PARTS}
    links = [el("a", {"href": f"#{section.get('id')}"}, titles[str(section.get("id"))]) for section in sections]
    names = ", ".join(dict.fromkeys(str(run["trace"]["name"]) for run in summaries))
    lead = heading(summaries)
    return [
        el("h1", None, names),
        el("p", {"class": "lead"}, lead.removeprefix(f"{names} (").replace(") · ", " · ", 1)),
        tags,
        el("nav", {"class": "contents", "aria-label": "Contents"}, *links),
    ]


def _provenance(runs: Sequence[NamedRun], documents: Sequence[dict[str, Any]]) -> list[Element]:
    made: list[Element] = []
    about = [
        {
            "folder": run.name if run.folder is None else run.folder.name,
            **tables.flat(document.get("run", {})),
            "seed": str(document.get("seed", "not recorded")),
            "trace sha256": str(run.summary["trace"]["sha256"]),
            "hardware profile": str(run.summary["hardware"]) + ("" if run.summary["calibrated"] else " (uncalibrated)"),
        }
        for run, document in zip(runs, documents, strict=True)
    ]
    keys = list(dict.fromkeys(key for entry in about for key in entry))
    made.append(tables.keys_table(runs, about, keys, "Versions, seeds and hashes"))
    profiles: dict[str, dict[str, Any]] = {}
    for document in documents:
        hardware = document.get("hardware", {})
        profiles.setdefault(str(hardware.get("name", "")), hardware)
    made += [tables.profile(name, hardware) for name, hardware in profiles.items() if name]
    return made


def _footer(runs: Sequence[NamedRun]) -> str:
    many = "these runs" if len(runs) > 1 else "this run"
    return f"Made by kvrm from the folders of {many}; everything is in this file, and it asks for nothing else."


def _fields(charts: Sequence[dict[str, Any]]) -> set[str]:
    shown = {field_of(row.path) for rows in SECTIONS.values() for row in rows}
    return shown | {measure["field"] for chart in charts for measure in chart["measures"] if "field" in measure}


def _file(name: str) -> str:
    return files("kvrm_analysis.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")

"""The tables of a report: results with their definitions, what differs in configuration, and origins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from kvrm_analysis.compare import notes
from kvrm_analysis.definitions import STATISTICS, definitions, field_of, statistic
from kvrm_analysis.drawing.style import COLOURS
from kvrm_analysis.ranking import ranks, unranked_because
from kvrm_analysis.report.markup import el
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.table_rows import ABSENT, SECTIONS, Row, is_printed, printed_rows

_LATENCY = "latency"
#: Columns (table_rows.py) of the rows that are seen at first; the others fold out.
HEADLINE = frozenset({
    "completed_requests", "output_tokens_per_s", "requests_per_s", "ttft_p50_s", "ttft_p99_s", "itl_p50_ms",
    "itl_p99_ms",
    "kv_footprint_gib", "reserved_kv_mean_gib", "used_kv_mean_gib", "moved_gib", "preemptions",
})  # fmt: skip


def look_of(index: int) -> tuple[int, int]:
    """Colour and dash of the index-th run: classes ``cN`` and ``dN`` of the page, as in figures (style.py)."""
    return index % len(COLOURS), index // len(COLOURS) % 3


def swatch(index: int) -> Element:
    """The line by which a run is known in the charts."""
    colour, dash = look_of(index)
    line = el("line", {"class": f"c{colour} d{dash}", "x1": "1", "x2": "23", "y1": "6", "y2": "6"})
    return el("svg", {"class": "swatch", "viewBox": "0 0 24 11", "aria-hidden": "true", "focusable": "false"}, line)


def term(text: str, field: str, *, statistic_name: str | None = None) -> Element:
    """Words with their definition on hover and focus."""
    attributes = {"type": "button", "class": "term", "data-field": field, "aria-describedby": f"def-{field}"}
    if statistic_name is not None and statistic(statistic_name) is not None:
        attributes["data-statistic"] = statistic_name
        attributes["aria-describedby"] += f" def-{statistic_name}"
    return el("button", attributes, text)


def _column(tag: str, at: int, attributes: dict[str, str], *children: Element | str) -> Element:
    """A cell of a run: hidden with it."""
    return el(tag, {**attributes, "data-column": str(at)}, *children)


def headline(runs: Sequence[NamedRun]) -> list[Element]:
    """The comparison's table (table_rows.py): a column a run, each name defined; and the button that unfolds it."""
    found = [run.summary for run in runs]
    head = el("tr", None, el("th", {"scope": "col"}, ""))
    for at, run in enumerate(runs):
        head.append(_column("th", at, {"scope": "col"}, swatch(at), run.name, el("span", {"class": "mark"}, "")))
    body = el("tbody")
    for section in SECTIONS:
        if not is_printed(section, found):
            continue
        rows = printed_rows(section, found)
        kind = "group" if any(row.column in HEADLINE for row in rows) else "group more"
        body.append(el("tr", {"class": kind}, el("th", {"scope": "rowgroup", "colspan": str(len(runs) + 1)}, section)))
        body.extend(_line(row, found) for row in rows)
    caption = el("caption", {"class": "unseen"}, "Results, a column a run")
    table = el("table", None, caption, el("thead", None, head), body)
    wide = el("div", {"class": "wide results", "tabindex": "0", "role": "region", "aria-label": "Results"}, table)
    return [wide, el("button", {"type": "button", "class": "fold", "id": "fold", "hidden": ""}, "Show all rows")]


def _line(row: Row, found: Sequence[dict[str, Any]]) -> Element:
    name = term(row.title.strip(), field_of(row.path), statistic_name=row.path[-1])
    line = el("tr", {} if row.column in HEADLINE else {"class": "more"}, el("th", {"scope": "row"}, name))
    best = ranks(found, *row.ranked) if row.ranked else [None] * len(found)
    measured = row.path[0] in definitions()[_LATENCY] and row.path[-1] != "n"
    for at, (run, rank) in enumerate(zip(found, best, strict=True)):
        text = row.text(run)
        unranked = measured and text != ABSENT and unranked_because(run, found) is not None
        kind = "absent" if text == ABSENT else "unranked" if unranked else "best" if rank == 1 else ""
        shown, mark = (f"({text}", ")") if unranked else (text, "*" if rank == 1 else "")
        cell = _column("td", at, {"class": kind} if kind else {}, shown, el("span", {"class": "mark"}, mark))
        if rank == 1:
            cell.append(el("span", {"class": "unseen"}, " (lowest)"))
        line.append(cell)
    return line


def audits(runs: Sequence[NamedRun]) -> Element:
    """The audit line of every run."""
    made = el("ul", {"class": "audit"})
    for at, run in enumerate(runs):
        made.append(
            _column(
                "li", at, {}, swatch(at), el("span", None, el("strong", None, run.name), f": {run.summary['audit']}")
            )
        )
    return made


def caveats(runs: Sequence[NamedRun]) -> Element:
    """What marks mean, and each warning once, with its runs."""
    lines = notes([run.summary for run in runs], [run.name for run in runs])[len(runs) :]
    return el("ul", {"class": "said"}, *(el("li", None, line) for line in lines))


def legend(runs: Sequence[NamedRun]) -> list[Element]:
    """A button a run."""
    return [
        el(
            "button",
            {"type": "button", "class": "run", "data-run": str(at), "aria-pressed": "true"},
            swatch(at),
            run.name,
        )
        for at, run in enumerate(runs)
    ]


def flat(document: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """A TOML document as dotted keys; a value with its provenance (hardware) is one entry."""
    found: dict[str, str] = {}
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and "provenance" in value:
            found[name] = f"{value.get('value')!r} ({value['provenance']})"
        elif isinstance(value, dict):
            found |= flat(value, f"{name}.")
        else:
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def configuration(runs: Sequence[NamedRun], documents: Sequence[dict[str, Any]]) -> list[Element]:
    """What differs between the runs' configurations; of one run, all of it. The rest folds out."""
    tables = [flat({key: value for key, value in document.items() if key != "run"}) for document in documents]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    differing = [key for key in keys if len({table.get(key) for table in tables}) > 1]
    equal = [key for key in keys if key not in set(differing)]
    made: list[Element] = []
    if len(runs) > 1 and not differing:
        made.append(el("p", {"class": "about"}, "Nothing differs."))
    elif len(runs) > 1:
        made.append(keys_table(runs, tables, differing, "What differs between the runs"))
    same = f"The {len(equal)} keys that are the same in every run" if len(runs) > 1 else f"All {len(equal)} keys"
    folded = el("details", {"class": "values"}, el("summary", None, same))
    folded.append(keys_table(runs[:1], tables[:1], equal, same, names=False))
    return [*made, folded]


def keys_table(
    runs: Sequence[NamedRun], tables: Sequence[dict[str, str]], keys: Iterable[str], what: str, *, names: bool = True
) -> Element:
    """A line a key, a column a run (or only ``value``)."""
    head = el("tr", None, el("th", {"scope": "col"}, "key"))
    for at, run in enumerate(runs):
        head.append(
            _column("th", at, {"scope": "col", "class": "text"}, *((swatch(at), run.name) if names else ("value",)))
        )
    body = el("tbody")
    for key in keys:
        line = el("tr", None, el("th", {"scope": "row"}, el("code", None, key)))
        for at, table in enumerate(tables):
            value = table.get(key)
            kind = "text" if value is not None else "text absent"
            line.append(_column("td", at, {"class": kind}, ABSENT if value is None else value))
        body.append(line)
    whole = el("table", None, el("caption", {"class": "unseen"}, what), el("thead", None, head), body)
    return el("div", {"class": "wide", "tabindex": "0", "role": "region", "aria-label": what}, whole)


def profile(name: str, hardware: dict[str, Any]) -> Element:
    """The coefficients of a hardware profile, each with where it comes from; folded."""
    head = el(
        "tr",
        None,
        *(
            el("th", {"scope": "col", "class": "text"}, title)
            for title in ("coefficient", "value", "provenance", "source")
        ),
    )
    body = el("tbody")
    for key, value in hardware.items():
        if isinstance(value, dict) and "provenance" in value:
            cells = (f"{value.get('value'):,.10g}", str(value["provenance"]), str(value.get("source", "")))
            line = el("tr", None, el("th", {"scope": "row"}, el("code", None, key)), el("td", None, cells[0]))
            line.extend(el("td", {"class": "text"}, cell) for cell in cells[1:])
            body.append(line)
    table = el("table", None, el("thead", None, head), body)
    what = f"Hardware profile {name}: {len(body)} coefficients"
    wide = el("div", {"class": "wide", "tabindex": "0", "role": "region", "aria-label": what}, table)
    return el("details", {"class": "values"}, el("summary", None, what), wide)


def facts(entries: Iterable[tuple[str, str]]) -> Element:
    """Names and what they are."""
    made = el("dl", {"class": "facts"})
    for name, text in entries:
        made.append(el("dt", None, name))
        made.append(el("dd", None, text))
    return made


def figure(chart: dict[str, Any]) -> Element:
    """The place of a chart, with its title and note; the script draws it there."""
    kind = "chart whole" if chart.get("kind") == "bars" or chart.get("wide") else "chart"
    caption = el(
        "figcaption", {"class": "head"}, el("h3", None, chart["title"]), el("div", {"class": "note"}, chart["note"])
    )
    return el("figure", {"class": kind, "id": f"chart-{chart['id']}"}, caption)


def glossary(fields: Iterable[str]) -> Element:
    """The definitions that the page refers to."""
    wanted = set(fields)
    made = el("dl", {"class": "glossary"})
    for section, entries in definitions().items():
        for field, entry in entries.items():
            if section == STATISTICS or field in wanted:
                made.append(el("div", None, el("dt", None, field), el("dd", {"id": f"def-{field}"}, entry.plain)))
    return made

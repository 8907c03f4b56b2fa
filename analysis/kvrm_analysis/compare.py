"""Runs side by side: a table for pandas, for the terminal, as Markdown and as CSV.

Every form shows the audit line, whether the cost was calibrated, and the footprint beside what was reserved. Latencies
of runs that cannot be ranked (ranking.py) stand in parentheses and never get the mark of the best.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from kvrm_analysis.ranking import RANKED, ranks, unranked_because
from kvrm_analysis.runs import RunLike, labels, summaries
from kvrm_analysis.table_rows import ABSENT, INTEGERS, SECTIONS, Row, is_printed, printed_rows

#: Names of files and of keys stay whole.
_FOLD: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
_LATENCIES = frozenset(metric for metric, _ in RANKED)


def comparison_table(runs: Iterable[RunLike]) -> pd.DataFrame:
    """One row a run, indexed by policy; units in the column names. Rank 1 is the lowest; absent where not ranked."""
    found = summaries(runs)
    index = pd.Index(labels(found), name="policy")
    columns: dict[str, Any] = {
        "model": [run["model"] for run in found],
        "hardware": [run["hardware"] for run in found],
        "trace": [run["trace"]["name"] for run in found],
        "calibrated": [run["calibrated"] for run in found],
        "overloaded": pd.Series([run["overloaded"] for run in found], index, dtype="boolean"),
        "audit": [run["audit"] for run in found],
    }
    for row in (row for rows in SECTIONS.values() for row in rows):
        dtype = "Int64" if row.column in INTEGERS else "Float64"
        columns[row.column] = pd.Series([row.value(run) for run in found], index, dtype=dtype)
    for metric, statistic in RANKED:
        name = f"{metric.removesuffix('_s')}_{statistic}_rank"
        columns[name] = pd.Series(ranks(found, metric, statistic), index, dtype="Int64")
    columns["not_ranked_because"] = [unranked_because(run, found) for run in found]
    columns["warnings"] = ["; ".join(run["warnings"]) for run in found]
    return pd.DataFrame(columns, index=index)


def to_csv(runs: Iterable[RunLike]) -> str:
    """The table as CSV, one row a run; empty where absent."""
    return comparison_table(runs).to_csv(lineterminator="\n")


def render_text(runs: Iterable[RunLike], width: int | None = None) -> str:
    """The table for a terminal: a column a run, then audit lines and what has to be known.

    ``width``: columns of the terminal; runs that do not fit beside each other follow below, and long lines are folded.
    None: every line is as long as it is.
    """
    found = summaries(runs)
    names = labels(found)
    body = [(title, [_aligned(cell) for cell in cells]) for title, cells in _lines(found, names)]
    titles = max(len(title) for title, _ in body)
    widths = [max(len(cells[at]) for _, cells in body if cells) for at in range(len(names))]

    lines = _folded([heading(found)], width)
    for columns in _beside(widths, titles, width):
        rule = "-" * (titles + sum(2 + widths[at] for at in columns))
        lines.append(rule)
        for title, cells in body:
            shown = [cells[at].rjust(widths[at]) for at in columns] if cells else []
            lines.append("  ".join([title.ljust(titles), *shown]).rstrip())
    return "\n".join([*lines, rule, *_folded(notes(found, names), width)])


def _beside(widths: Sequence[int], titles: int, width: int | None) -> list[list[int]]:
    """Which columns stand beside each other: as many as fit, and at least one."""
    groups: list[list[int]] = []
    room = 0
    for at, own in enumerate(widths):
        if not groups or (width is not None and room < 2 + own):
            groups.append([])
            room = (width or 0) - titles
        groups[-1].append(at)
        room -= 2 + own
    return groups


def _folded(lines: Sequence[str], width: int | None) -> list[str]:
    if width is None:
        return list(lines)
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="  ", **_FOLD)]


def to_markdown(runs: Iterable[RunLike]) -> str:
    """The same as Markdown: a column a run, then audit lines and what has to be known."""
    found = summaries(runs)
    names = labels(found)
    lines = [f"**{heading(found)}**", "", "| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for title, cells in list(_lines(found, names))[1:]:
        name = title.strip() if cells else f"*{title}*"
        lines.append(f"| {name} | " + " | ".join(cells or [""] * len(names)) + " |")
    return "\n".join([*lines, "", *(f"- {line}" for line in notes(found, names)), ""])


def _aligned(cell: str) -> str:
    """Room for a mark behind every number, so that digits stand below each other."""
    return cell + " " * (0 if cell.endswith(" *") else 1 if cell.endswith(")") else 2)


def _lines(found: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterable[tuple[str, list[str]]]:
    """(title, a cell a run), the names first; a section's name has no cells."""
    yield "", list(names)
    for section in SECTIONS:
        if not is_printed(section, found):
            continue
        yield section, []
        for row in printed_rows(section, found):
            yield f"  {row.title}", _cells(row, found)


def _cells(row: Row, found: Sequence[dict[str, Any]]) -> list[str]:
    cells = [row.text(run) for run in found]
    if row.path[0] not in _LATENCIES or row.path[-1] == "n":
        return cells
    best = ranks(found, *row.ranked) if row.ranked else [None] * len(found)
    return [_marked(*cell, found) for cell in zip(cells, best, found, strict=True)]


def _marked(text: str, rank: int | None, run: dict[str, Any], found: Sequence[dict[str, Any]]) -> str:
    """In parentheses when the run is not ranked; with a star when it is the best."""
    if text != ABSENT and unranked_because(run, found):
        return f"({text})"
    return f"{text} *" if rank == 1 else text


def heading(found: Sequence[dict[str, Any]]) -> str:
    """What was replayed on what, and whether its cost was measured."""
    first = found[0]
    models = ", ".join(dict.fromkeys(str(run["model"]) for run in found))
    hardware = ", ".join(dict.fromkeys(str(run["hardware"]) for run in found))
    traces = ", ".join(dict.fromkeys(str(run["trace"]["name"]) for run in found))
    rows = f"{first['trace']['rows']:,} requests over {first['trace']['span_s']:,.0f} s"
    if first["trace"].get("transforms"):
        rows += f"; {first['trace']['transforms']}"
    status = "calibrated" if all(run["calibrated"] for run in found) else "uncalibrated"
    return f"{traces} ({rows}) · {models} on {_replicas(first)}{hardware} · {status}"


def _replicas(run: dict[str, Any]) -> str:
    """How many replicas the figures are of, and who shares the requests out; nothing for one."""
    cluster = run.get("cluster")
    return "" if cluster is None else f"{cluster['replicas']} replicas ({cluster['router']}) of "


def notes(found: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """The audit line of every run, what parentheses and marks mean, and each caveat once with its runs."""
    lines = [f"{name}: {run['audit']}" for name, run in zip(names, found, strict=True)]
    reasons = {name: unranked_because(run, found) for name, run in zip(names, found, strict=True)}
    if len(found) > 1:
        lines.append("* lowest of the runs that kept up and served the same requests; (…) is not ranked")
        lines += [
            f"{name}: no latency ranking: {reason}"
            for name, reason in reasons.items()
            if reason not in (None, "overloaded")
        ]
    said: dict[str, list[str]] = {}
    for name, run in zip(names, found, strict=True):
        for warning in run["warnings"]:
            said.setdefault(warning, []).append(name)
    return lines + [
        warning if len(found) == 1 or len(who) == len(found) else f"{', '.join(who)}: {warning}"
        for warning, who in said.items()
    ]

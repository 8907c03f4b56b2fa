"""Capacities as a table for a terminal, and as a figure of what was asked for around each edge."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import FAINT, colour, look, save
from kvrm_analysis.searches.capacity import Capacity
from kvrm_analysis.searches.slo import Slo, Term

WIDTH_INCHES = 7.4
PANEL_INCHES = 2.3
#: Probes further from an edge than this factor are outside the figure: they are the steps of the bracketing.
SHOWN = 1.6


def table(capacities: Sequence[Capacity], unit: str, digits: int, gpus_per_replica: int | None = None) -> list[str]:
    """One line a policy, with a heading. ``unit``: of the load; ``digits`` behind its point. ``gpus_per_replica``:
    where replicas are counted, for how many GPUs they are.
    """
    gpus = [] if gpus_per_replica is None else ["GPUs"]
    rows = [["policy", unit, *gpus, "interval", "edges, least to most", "runs"]]
    for each in capacities:
        interval = "-"
        if each.interval is not None and each.coverage is not None:
            interval = f"{_span(each.interval, digits)} ({each.coverage:.1%})"
        edges = _edges(each, unit, digits)
        runs = sum(len(probes) for probes in each.probes)
        if gpus_per_replica is not None:
            gpus = [_number(None if each.at is None else each.at * gpus_per_replica, 0)]
        rows.append([each.policy, _number(each.at, digits), *gpus, interval, edges, str(runs)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def notes(capacities: Sequence[Capacity], unit: str, slo: Slo) -> list[str]:
    """What the reader of the table should know, a line each."""
    found = []
    for each in capacities:
        if each.at is None:
            found.append(f"{each.policy}: {slo} is not met at any load that was tried ({_tried(each, unit)})")
        elif any(missed is None for _, missed in each.edges) and unit == "requests/s":
            found.append(f"{each.policy}: still met at {_tried(each, unit)}: this objective bounds no rate")
        if each.contradicted:
            found.append(
                f"{each.policy}: {each.contradicted} of {len(each.edges)} realisations missed the objective at a load "
                "below one that met it; the interval reaches over both"
            )
    return found


def _edges(capacity: Capacity, unit: str, digits: int) -> str:
    """Of rates from the least that was met to the greatest from which one was missed; of replicas where it was met."""
    if capacity.at is None:
        return "-"
    if unit == "replicas":
        counts = [met_from for _, met_from in capacity.edges]
        known = [count for count in counts if count is not None]
        return _span((min(known), None if None in counts else max(known)), digits)
    loads = [load for edge in capacity.edges for load in edge if load is not None]
    return _span((min(loads), max(loads)), digits)


def _tried(capacity: Capacity, unit: str) -> str:
    loads = [probe.load for probes in capacity.probes for probe in probes]
    return f"{min(loads):.4g} to {max(loads):.4g} {unit}"


def _span(ends: tuple[float | None, float | None], digits: int) -> str:
    return " to ".join("open" if end is None else _number(end, digits) for end in ends)


def _number(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:,.{digits}f}"


def capacity_figure(capacities: Sequence[Capacity], slo: Slo, unit: str, title: str, path: str | Path) -> Path:
    """Draw each bounded figure over the load, a panel a bound, as PNG and SVG at ``path``; returns the PNG's path.

    A point is a run: filled where it met the objective. The band is the interval of the capacity.
    """
    target = Path(path)
    caption = textwrap.wrap(
        "A point is a run: filled where it met every bound, hollow where it missed one or was overloaded. The line "
        "stands at the capacity, the band is its interval; dashed: the bound.",
        118,
    )
    height = 0.75 + (PANEL_INCHES + 0.6) * len(slo.terms) + 0.15 * len(caption)
    with look():
        page = Page(WIDTH_INCHES, height)
        page.text(0.1, 0.09, title, fontsize=9.5)
        for number, term in enumerate(slo.terms):
            axes = page.axes(0.75, 0.72 + number * (PANEL_INCHES + 0.6), WIDTH_INCHES - 0.95, PANEL_INCHES)
            _panel(axes, capacities, term, number)
            axes.set_xlabel(unit)
            if number == 0:
                page.legend(axes, 0.36, min(5, len(capacities)))
        page.text(0.1, height - 0.12 - 0.15 * len(caption), "\n".join(caption), fontsize=7.5)
    save(page.figure, target)
    return target.with_suffix(".png")


def _panel(axes: Axes, capacities: Sequence[Capacity], term: Term, number: int) -> None:
    scale, label = _scaled(term)
    for at, each in enumerate(capacities):
        near = [probe for probes in each.probes for probe in probes if _is_near(probe.load, each)]
        for met in (True, False):
            points = [
                (probe.load, value * scale)
                for probe in near
                if probe.met == met and (value := probe.values[number]) is not None
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True), "o", markersize=3.2, color=colour(at), alpha=0.75, linestyle="none",
                    markerfacecolor=colour(at) if met else "none", markeredgewidth=0.7,
                )  # fmt: skip
        axes.plot([], [], "o", color=colour(at), label=each.policy, markersize=4)
        if each.at is not None:
            axes.axvline(each.at, color=colour(at), linewidth=1.1)
        if each.interval is not None and None not in each.interval:
            low, high = each.interval
            axes.axvspan(float(low or 0), float(high or 0), color=colour(at), alpha=0.14, linewidth=0)
    axes.axhline(term.bound * scale, color=FAINT, linestyle=(0, (4, 2)), linewidth=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=6.5)
    axes.set_ylabel(label)


def _is_near(load: float, capacity: Capacity) -> bool:
    return capacity.at is None or capacity.at / SHOWN <= load <= capacity.at * SHOWN


def _scaled(term: Term) -> tuple[float, str]:
    """Factor and label of the axis: milliseconds and GiB, where a figure counts seconds or bytes."""
    name = term.figure.short
    if term.figure.unit == "s" and term.bound < 1:
        return 1e3, f"{name}, ms"
    if term.figure.unit == "s":
        return 1.0, f"{name}, s"
    if term.figure.unit == "bytes":
        return 2.0**-30, f"{name}, GiB"
    return 1.0, name

"""The page of a validation: executed steps against their prediction, parts, and end-to-end figures at each load.

Takes the report as plain data, so it draws without the device that ran the steps.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrm_analysis.drawing.accuracy import Accuracy, Times, clock_of, draw_accuracy, draw_times, no_records, repeats_of
from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import INK, colour, look, save

WIDTH_INCHES = 10.2
CAPTION_COLUMNS = 186
BAR_INCHES = 0.26
#: Left edges of the two columns; names stand left of them.
LEFT, RIGHT = 0.72, 6.0
#: Key of the report -> what its panel is called.
FIGURES = {
    "ttft_p50": "First token, p50",
    "ttft_p99": "First token, p99",
    "itl_p50": "Gap between tokens, p50",
    "itl_p99": "Gap between tokens, p99",
    "throughput": "Output tokens/s",
}


def validation_page(report: Mapping[str, Any], steps: pa.Table | None, path: str | Path) -> Path:
    """Draw the page as PNG and SVG at ``path``, whatever its suffix; returns the PNG's path.

    ``report``: of :func:`kvrm_gpu.validate.validate`. ``steps``: columns policy, p10_ns, p50_ns, p90_ns (measured) and
    predicted_ns, one row a step; None draws the page without them. The same data gives the same bytes.
    """
    target = Path(path)
    save(draw_validation(report, steps), target)
    return target.with_suffix(".png")


def draw_validation(report: Mapping[str, Any], steps: pa.Table | None) -> Figure:
    """The figure itself, for a notebook. One policy alone, with none to compare it with, has panels of its own."""
    lines = textwrap.wrap(caption(report), CAPTION_COLUMNS, break_on_hyphens=False)
    draw = _draw_one if len(report["policies"]) == 1 else _draw_several
    tall = BAR_INCHES * len(report["policies"])
    top_of_loads = 4.62 if draw is _draw_one else max(4.92, 1.42 + tall + 2.35)
    top_of_caption = top_of_loads + 2.35
    with look():
        page = Page(WIDTH_INCHES, top_of_caption + 0.145 * len(lines) + 0.1)
        page.text(0.1, 0.09, heading(report), fontsize=10, fontweight="bold")
        times = page.axes(LEFT, 0.62, 3.2, 3.2)
        if steps is None:
            no_records(times, "Whole steps")
        else:
            draw_times(times, times_of(steps, list(report["policies"])))
        draw(page, report["policies"], top_of_loads)
        page.text(0.1, top_of_caption, "\n".join(lines), fontsize=7.5)
    return page.figure


def _draw_several(page: Page, policies: Mapping[str, Any], top_of_loads: float) -> None:
    """A bar and a colour a policy; the closed loop's figures in a panel each."""
    height = BAR_INCHES * len(policies)
    wide = WIDTH_INCHES - RIGHT - 0.15
    draw_accuracy(page.axes(RIGHT, 0.62, wide, height), "Whole steps, by policy", accuracies_of(policies), 1.85)
    _draw_parts(page.axes(RIGHT, 1.42 + height, wide, 1.2), policies)
    left = LEFT
    for name, title in FIGURES.items():
        axes = page.axes(left, top_of_loads, 1.5, 1.75)
        _draw_loads(axes, title, [found["closed_loop"] for found in policies.values()], name)
        if left == LEFT:
            axes.set_ylabel("error, %")
        left += 1.95
    handles = [(name, colour(at)) for at, name in enumerate(policies)]
    _draw_names(page, handles, top_of_loads - 0.45)


def _draw_one(page: Page, policies: Mapping[str, Any], top_of_loads: float) -> None:
    """Parts with their figures beside them; the closed loop in one panel, a line a figure and a colour a load."""
    ((name, found),) = policies.items()
    wide = WIDTH_INCHES - RIGHT - 0.15
    (whole,) = accuracies_of(policies)
    repeats = "" if whole.spread is None else f", repeats {100 * whole.spread:.1f}%"
    page.text(RIGHT, 0.42, f"{name}: steps are {100 * whole.error:.1f}% off {whole.note}{repeats}", fontsize=8.5)
    axes = page.axes(RIGHT, 0.92, wide, 2.9)
    _draw_parts(axes, policies)
    for at, part in enumerate(found["parts"].values()):
        if part["error"] is not None:
            text = f"{100 * part['error']:+.1f}%, {part['share']:.0%} of the time"
            axes.annotate(text, (100 * part["error"], at), xytext=(0, 9), textcoords="offset points", ha="center",
                          fontsize=7)  # fmt: skip
    axes.margins(x=0.25)
    _draw_loop(page.axes(LEFT + 1.1, top_of_loads, WIDTH_INCHES - LEFT - 1.1 - 0.15, 1.75), found["closed_loop"])


def heading(report: Mapping[str, Any]) -> str:
    """What was executed, on what, and whether the simulator decided what the device did."""
    same = "decisions identical" if report["decisions_identical"] else "DECISIONS DIFFER"
    trace = report["trace"]
    where = f"{report['model']} on {report['hardware']}, {report['backend']}"
    held = f"{same}, {report['token_mismatches']} token mismatches"
    return f"{trace['name']} ({trace['rows']} requests) · {where} · {held}"


def caption(report: Mapping[str, Any]) -> str:
    """How the marks are read, and on how much they rest."""
    alone = report["repeats"] == 1
    parts = [
        f"Upper row: {report['steps']:,} steps of the simulator's plans, executed at saturation (lockstep);",
        f"each time is the median of {repeats_of(report['repeats'])}.",
        "Parts: error of a part's sum over the run; a disc's area is the part's share of the measured time.",
        "Lower row: the closed loop, in which measured times drive the clock: error of the simulated figure over the",
        "measured one"
        + ("." if alone else "; bars: the range of the repeats to each side. An error whose bar reaches 0 is noise."),
        "Loads are shares of the rate that a policy can serve: at 1 a small error of the rate is a large one of the",
        f"queue. Device: {report['device']}; scale {report['scale']}; time: {clock_of(report)}.",
    ]
    if not report["calibrated"]:
        parts.append("The profile is uncalibrated.")
    return " ".join(parts)


def times_of(steps: pa.Table, policies: Sequence[str]) -> list[Times]:
    """Measured and predicted times of every step of a validation, policy by policy."""
    frame = steps.to_pandas()
    return [
        Times(
            name=policy,
            colour=colour(at),
            measured_ms=own[["p10_ns", "p50_ns", "p90_ns"]].to_numpy(np.float64).T / 1e6,
            predicted_ms=own["predicted_ns"].to_numpy(np.float64) / 1e6,
        )
        for at, policy in enumerate(policies)
        if len(own := frame[frame["policy"] == policy])
    ]


def accuracies_of(policies: Mapping[str, Any]) -> list[Accuracy]:
    """How far the steps of each policy of a report are off."""
    return [
        Accuracy(
            name=policy,
            colour=colour(at),
            error=found["step_time_median_abs_error"],
            spread=found["step_time_repeat_spread"],
            note=f"(p90 {100 * found['step_time_p90_abs_error']:.1f}; {found['steps']:,} steps"
            + ("" if found["fitted"] else "; not fitted")
            + ")",
        )
        for at, (policy, found) in enumerate(policies.items())
    ]


def _draw_parts(axes: Axes, policies: Mapping[str, Any]) -> None:
    """One disc a policy on each part's line."""
    names = list(dict.fromkeys(name for found in policies.values() for name in found["parts"]))
    for at, found in enumerate(policies.values()):
        for name, part in found["parts"].items():
            if part["error"] is not None:
                y = names.index(name) + 0.6 * ((at + 0.5) / len(policies) - 0.5)
                axes.scatter(
                    100 * part["error"], y, s=6 + 120 * part["share"], color=colour(at), alpha=0.8, linewidth=0
                )
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(names)), [name.replace("+", " + ") for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title("Parts of a step")
    axes.set_xlabel("error of the part's sum, %: predicted over measured")
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x")
    axes.tick_params(axis="y", length=0)


def _draw_loads(axes: Axes, title: str, loops: Sequence[Mapping[str, Any]], name: str) -> None:
    """Errors of one figure: a group of policies at each load."""
    loads = list(dict.fromkeys(share for loop in loops for share in loop))
    for at, loop in enumerate(loops):
        for place, share in enumerate(loads):
            figure = loop[share][name] if share in loop else None
            if figure is None:
                continue
            x = place + 0.7 * ((at + 0.5) / len(loops) - 0.5)
            spread = 100 * (figure["repeat_spread"] or 0.0)
            axes.errorbar(
                x, 100 * figure["error"], yerr=spread, fmt="o", markersize=3.4, elinewidth=1.1, color=colour(at)
            )
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(loads)), [f"{float(share):g}" for share in loads])
    axes.set_xlim(-0.5, len(loads) - 0.5)
    axes.set_xlabel("load / saturation")
    axes.set_title(title, fontsize=8.5)


def _draw_loop(axes: Axes, loop: Mapping[str, Any]) -> None:
    """Errors of every figure of one policy, each load in its colour."""
    for at, (share, figures) in enumerate(loop.items()):
        shown = [(line, figures[name]) for line, name in enumerate(FIGURES) if figures[name] is not None]
        axes.errorbar(
            [100 * figure["error"] for _, figure in shown],
            [line + 0.6 * ((at + 0.5) / len(loop) - 0.5) for line, _ in shown],
            xerr=[100 * (figure["repeat_spread"] or 0.0) for _, figure in shown],
            fmt="o",
            markersize=3.4,
            elinewidth=1.1,
            color=colour(at),
            label=f"{float(share):g}",
        )
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(FIGURES)), list(FIGURES.values()))
    axes.set_ylim(len(FIGURES) - 0.5, -0.5)
    axes.set_title("Closed loop")
    axes.set_xlabel("error, %: simulated over measured")
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x")
    axes.tick_params(axis="y", length=0)
    axes.legend(title="load / saturation", fontsize=7, title_fontsize=7, loc="best")


def _draw_names(page: Page, names: Sequence[tuple[str, str]], top: float) -> None:
    """The policies in their colours, in one line."""
    left = LEFT
    page.text(left, top, "Closed loop:", fontsize=8.5)
    left += 0.95
    for name, shade in names:
        page.text(left, top, name, fontsize=8.5, fontweight="bold", color=shade)
        left += 0.3 + 0.085 * len(name)

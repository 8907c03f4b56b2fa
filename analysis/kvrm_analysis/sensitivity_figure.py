"""Sobol indices as bars with their intervals, a panel an output."""

from __future__ import annotations

import textwrap
from pathlib import Path

from matplotlib.axes import Axes

from kvrm_analysis.page import Page
from kvrm_analysis.sensitivity import Index, Sensitivity
from kvrm_analysis.style import COLOURS, INK, look, save

WIDTH_INCHES = 7.4
LEFT_INCHES = 2.5
ROW_INCHES = 0.34
BLUE, GREY = COLOURS[1], "#BBBBBB"


def sensitivity_figure(found: Sensitivity, path: str | Path) -> Path:
    """Draw it as PNG and SVG at ``path``; returns the PNG's path."""
    target, study = Path(path), found.study
    shown = [figure for figure in study.outputs if found.indices[figure.short]]
    keys = len(study.space.keys)
    panel = 0.25 + ROW_INCHES * keys
    caption = textwrap.wrap(
        "Share of an output's variance over the whole of the axes: blue, by the key alone; grey, with all that it does "
        f"together with others. Lines: {study.confidence:.0%} intervals. Keys by their total.",
        118,
    )
    with look():
        page = Page(WIDTH_INCHES, 0.75 + (panel + 0.35) * len(shown) + 0.45 + 0.15 * len(caption))
        page.text(0.1, 0.09, f"{study.file.name}: {study.points} points, {study.points * study.block:,} cells",
                  fontsize=9.5)  # fmt: skip
        for number, figure in enumerate(shown):
            top = 0.6 + number * (panel + 0.35)
            axes = page.axes(LEFT_INCHES, top, WIDTH_INCHES - LEFT_INCHES - 0.3, panel)
            low, high = found.spread[figure.short]
            axes.set_title(f"{figure.short}, {figure.text(low)} to {figure.text(high)}")
            _bars(axes, sorted(found.indices[figure.short], key=lambda each: each.total))
            if number == len(shown) - 1:
                axes.set_xlabel("share of the variance")
        page.text(0.1, 0.75 + (panel + 0.35) * len(shown) + 0.2, "\n".join(caption), fontsize=7.5)
    save(page.figure, target)
    return target.with_suffix(".png")


def _bars(axes: Axes, indices: list[Index]) -> None:
    for at, each in enumerate(indices):
        for offset, value, half, fill in (
            (-0.18, each.total, each.total_half, GREY), (0.18, each.first, each.first_half, BLUE)
        ):  # fmt: skip
            axes.barh(at + offset, max(0.0, value), height=0.32, color=fill)
            axes.plot([value - half, value + half], [at + offset] * 2, color=INK, linewidth=0.9)
    axes.set_yticks(range(len(indices)), [each.key for each in indices])
    axes.set_xlim(left=min(0.0, *(each.first - each.first_half for each in indices)))
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")

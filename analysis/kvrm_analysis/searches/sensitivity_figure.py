"""Sobol indices as bars with their intervals, a panel an output."""

from __future__ import annotations

import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import COLOURS, INK, look, save
from kvrm_analysis.searches.basis import sentence
from kvrm_analysis.searches.sensitivity import Index, Sensitivity

WIDTH_INCHES = 7.4
LEFT_INCHES = 2.5
ROW_INCHES = 0.34
GAP_INCHES = 0.55
BLUE, GREY = COLOURS[1], "#BBBBBB"


def sensitivity_figure(found: Sensitivity, path: str | Path) -> Path:
    """Draw it as PNG and SVG at ``path``; returns the PNG's path."""
    target = Path(path)
    save(draw_sensitivity(found), target)
    return target.with_suffix(".png")


def draw_sensitivity(found: Sensitivity) -> Figure:
    """The figure itself, for a notebook."""
    study = found.study
    shown = [figure for figure in study.outputs if found.indices[figure.short]]
    keys = len(study.space.keys)
    panel = 0.1 + ROW_INCHES * keys
    ends = [end for of in found.indices.values() for each in of for end in _ends(each)]
    most = min(1.6, max([1.05, *ends]))  # one scale for all panels
    caption = textwrap.wrap(
        "Share of an output's variance over the whole of the axes: blue, by the key alone; grey, with all that it does "
        f"together with others. Lines: {study.confidence:.0%} intervals. Keys by their total." + sentence(found.basis),
        118,
    )
    with look():
        page = Page(WIDTH_INCHES, 0.6 + (panel + GAP_INCHES) * len(shown) + 0.2 + 0.15 * len(caption))
        page.text(0.1, 0.09, f"{study.file.name}: {study.points} points, {study.points * study.block:,} cells",
                  fontsize=9.5)  # fmt: skip
        for number, figure in enumerate(shown):
            top = 0.6 + number * (panel + GAP_INCHES)
            axes = page.axes(LEFT_INCHES, top, WIDTH_INCHES - LEFT_INCHES - 0.3, panel)
            low, high = found.spread[figure.short]
            axes.set_title(f"{figure.short}, {figure.text(low)} to {figure.text(high)}")
            _bars(axes, sorted(found.indices[figure.short], key=lambda each: each.total))
            axes.set_xlim(-0.1, most)
            if number == len(shown) - 1:
                axes.set_xlabel("share of the variance")
        page.text(0.1, 0.6 + (panel + GAP_INCHES) * len(shown), "\n".join(caption), fontsize=7.5)
    return page.figure


def _ends(index: Index) -> tuple[float, float]:
    return index.first + index.first_half, index.total + index.total_half


def _bars(axes: Axes, indices: list[Index]) -> None:
    for at, each in enumerate(indices):
        for offset, value, half, fill in (
            (-0.18, each.total, each.total_half, GREY), (0.18, each.first, each.first_half, BLUE)
        ):  # fmt: skip
            axes.barh(at + offset, max(0.0, value), height=0.32, color=fill)
            axes.plot([value - half, value + half], [at + offset] * 2, color=INK, linewidth=0.9)
    axes.set_yticks(range(len(indices)), [each.key for each in indices])
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")

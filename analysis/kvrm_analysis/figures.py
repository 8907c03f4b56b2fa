"""The comparison in one figure: load and bursts, latency over time, memory promised and filled, copies into staging."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kvrm_analysis.panels import MEMORY_COLUMNS, draw_memory, draw_moves, draw_time
from kvrm_analysis.runs import RunLike
from kvrm_analysis.scene import caption, scene_of, title
from kvrm_analysis.style import INK, look, save

#: Text width of a page: nothing is scaled when the figure spans it.
WIDTH_INCHES = 7.4
CAPTION_COLUMNS = 132


def compare_figure(runs: Sequence[RunLike], path: str | Path) -> Path:
    """Draw runs of one trace side by side as PNG and SVG at ``path``, whatever its suffix; returns the PNG's path.

    The same runs give the same bytes. Raises InputError without a run.
    """
    target = Path(path)
    save(draw_comparison(runs), target)
    return target.with_suffix(".png")


def draw_comparison(runs: Sequence[RunLike]) -> Figure:
    """The figure itself, for a notebook."""
    scene = scene_of(runs)
    lines = textwrap.wrap(caption(scene), CAPTION_COLUMNS)
    heights = [
        5.0,
        0.55 + 1.2 * -(-len(runs) // MEMORY_COLUMNS),
        0.75 + 0.2 * len(runs),
        0.1 + 0.145 * len(lines),
    ]
    with look():
        figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + 0.3), layout="constrained")
        figure.suptitle(title(scene), fontsize=9.5, x=0.012, ha="left", color=INK)
        parts: Any = figure.subfigures(4, 1, height_ratios=heights)
        time, memory, moves, note = parts
        draw_time(time, scene)
        draw_memory(memory, scene)
        draw_moves(moves, scene)
        note.text(0.012, 0.96, "\n".join(lines), va="top", ha="left", fontsize=7.5, color=INK)
    return figure

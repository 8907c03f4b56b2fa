"""The comparison in one figure: load and bursts, latency over time, memory promised and filled, copies into staging."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.panels import (
    BAR_HEIGHT,
    MEMORY_COLUMNS,
    MEMORY_ROW,
    TIME_GAP,
    TIME_HEIGHTS,
    draw_memory,
    draw_moves,
    draw_time,
)
from kvrm_analysis.drawing.scene import caption, scene_of, title
from kvrm_analysis.drawing.style import look, save
from kvrm_analysis.runs import RunLike

#: Text width of a page: nothing is scaled when the figure spans it.
WIDTH_INCHES = 7.4
CAPTION_COLUMNS = 124


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
    lines = textwrap.wrap(caption(scene), CAPTION_COLUMNS, break_on_hyphens=False)
    rows = -(-len(runs) // MEMORY_COLUMNS)
    top_of_time = 0.75 + 0.19 * rows
    top_of_memory = top_of_time + sum(TIME_HEIGHTS) + 2 * TIME_GAP + 0.5
    top_of_moves = top_of_memory + 0.35 + MEMORY_ROW * rows
    top_of_caption = top_of_moves + 0.22 + BAR_HEIGHT * len(runs) + 0.55
    with look():
        page = Page(WIDTH_INCHES, top_of_caption + 0.14 * len(lines) + 0.08)
        page.text(0.1, 0.09, title(scene), fontsize=9.5)
        labelled = draw_time(page, scene, top_of_time)
        page.legend(labelled, 0.36, min(MEMORY_COLUMNS, len(runs)))
        draw_memory(page, scene, top_of_memory)
        draw_moves(page, scene, top_of_moves)
        page.text(0.1, top_of_caption, "\n".join(lines), fontsize=7.5)
    return page.figure

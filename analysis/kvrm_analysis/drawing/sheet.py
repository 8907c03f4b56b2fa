"""A figure of equal panels under one title, with a key of names above and a caption below, laid out in inches.

Nothing is scaled where the figure is shown at its own width: ``PAGE`` spans a page (two columns of panels), ``COLUMN``
a column of a paper (one). Letters are the same size in both.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import colour, dash, look

PAGE, COLUMN = 7.2, 3.5

#: Inches: left of an axes (its labels), right of it, above it (its title), below it (its times and their name).
LEFT, RIGHT, ABOVE, BELOW = 0.62, 0.13, 0.26, 0.44
#: Letters an inch, at the sizes below: what is wrapped stays within the figure.
LETTERS = {9.0: 14.2, 8.5: 14.0, 7.5: 18.0}


@dataclass(frozen=True)
class Panel:
    """One axes: ``draw`` fills it, its title and labels included. ``wide``: over all columns. ``left``: inches for the
    labels beside it.
    """

    draw: Callable[[Axes], None]
    height: float = 1.3
    wide: bool = False
    left: float = LEFT


#: What a colour stands for: a name and what is drawn beside it.
Key = Sequence[tuple[str, Artist]]


def line_key(names: Sequence[str]) -> Key:
    """Each run as the line that it has in every panel."""
    return [
        (name, Line2D([], [], color=colour(at), linestyle=dash(at), linewidth=1.8)) for at, name in enumerate(names)
    ]


def patch_key(colours: Sequence[tuple[str, str]]) -> Key:
    """Names of filled areas, each with its colour."""
    return [(name, Patch(facecolor=fill, edgecolor="none")) for name, fill in colours]


def sheet(*, title: str, caption: str, panels: Sequence[Panel], key: Key = (), width: float = PAGE) -> Figure:
    """The figure. ``width``: inches; from 5 on there are two columns of panels."""
    columns = 2 if width >= 5 else 1
    titles = _wrapped(title, width, 9.0)
    notes = _wrapped(caption, width, 7.5)
    entries = _key_rows(key, width)
    top = 0.1 + 0.17 * len(titles) + 0.06
    top_of_panels = top + 0.19 * len(entries) + (0.06 if entries else 0.0)
    rows = _rows(panels, columns)
    height = sum(ABOVE + max(panel.height for panel in row) + BELOW for row in rows)
    with look():
        page = Page(width, top_of_panels + height + 0.13 * len(notes) + 0.14)
        page.text(0.08, 0.09, "\n".join(titles), fontsize=9.0)
        for at, row in enumerate(entries):
            _draw_key(page, row, top + 0.19 * at)
        _draw_panels(page, rows, columns, width, top_of_panels)
        page.text(0.08, top_of_panels + height + 0.04, "\n".join(notes), fontsize=7.5)
    return page.figure


def _rows(panels: Sequence[Panel], columns: int) -> list[list[Panel]]:
    rows: list[list[Panel]] = []
    for panel in panels:
        last = rows[-1] if rows else None
        if last is None or panel.wide or last[0].wide or len(last) == columns:
            rows.append([panel])
        else:
            last.append(panel)
    return rows


def _draw_panels(page: Page, rows: Sequence[Sequence[Panel]], columns: int, width: float, top: float) -> None:
    each = width / columns
    for row in rows:
        tallest = max(panel.height for panel in row)
        for at, panel in enumerate(row):
            wide = width if panel.wide else each
            panel.draw(page.axes(at * each + panel.left, top + ABOVE, wide - panel.left - RIGHT, panel.height))
        top += ABOVE + tallest + BELOW


def _wrapped(text: str, width: float, size: float) -> list[str]:
    columns = int((width - 0.16) * LETTERS[size])
    return [line for part in text.split("\n") for line in textwrap.wrap(part, columns, break_on_hyphens=False)]


def _key_rows(key: Key, width: float) -> list[list[tuple[float, str, Artist]]]:
    """Rows of (left edge, name, what is drawn beside it), as many as fit beside each other."""
    rows: list[list[tuple[float, str, Artist]]] = []
    left = width
    for name, artist in key:
        needed = 0.5 + len(name) / LETTERS[8.5]
        if left + needed > width - 0.08:
            rows.append([])
            left = 0.12
        rows[-1].append((left, name, artist))
        left += needed
    return rows


def _draw_key(page: Page, entries: Sequence[tuple[float, str, Artist]], top: float) -> None:
    for left, name, artist in entries:
        page.legend_at([artist], [name], left, top)


def empty(axes: Axes, title: str, why: str) -> None:
    """A panel that says why it shows nothing."""
    axes.set_title(title)
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize=8, wrap=True)
    axes.set_xticks([])
    axes.set_yticks([])

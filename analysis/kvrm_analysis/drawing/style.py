"""How figures look: colours that the colour-blind can tell apart (Okabe and Ito, 2008), type, and reproducible bytes.

A run keeps its colour and dash in every panel of a figure: they go by its place in the list.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from matplotlib import rc_context
from matplotlib.figure import Figure

from kvrm_analysis.ours import MARK

#: Black, blue, vermillion, green, orange, purple, sky blue. Their yellow is too pale for lines on white.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")
#: The same hues for lines on a dark page (a report), in the same order.
DARK_COLOURS = ("#F2F2F2", "#4AA8E8", "#FF8A4C", "#2CC295", "#F0B93A", "#E59BC6", "#9BD7F5")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)))

INK = "#222222"
FAINT = "#8A8A8A"
SHADE = "#F2E2B8"  # bursts

RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same glyphs everywhere
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.3,
    "lines.solid_joinstyle": "round",
    "savefig.dpi": 200,
    "svg.hashsalt": "kvrm",
    "pdf.fonttype": 42,  # letters stay letters: they can be searched and edited
}

#: Formats of figures, each with metadata that name us, and nothing that would differ from time to time.
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": MARK},
    "svg": {"Date": None, "Creator": MARK},
    "pdf": {"CreationDate": None, "Creator": MARK, "Producer": None},
}


def look() -> AbstractContextManager[None]:
    """Everything drawn within has this style."""
    return rc_context(cast(Any, RC))  # matplotlib types the keys as a literal of all of them


def colour(index: int) -> str:
    """Colour of the index-th policy."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> Any:
    """Line style of the index-th policy: it changes when the colours start again."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


def save(figure: Figure, path: Path) -> None:
    """Write PNG and SVG beside each other, whatever ``path`` ends in; the same figure gives the same bytes."""
    for name in ("png", "svg"):
        save_as(figure, path.with_suffix(f".{name}"))


def save_as(figure: Figure, path: Path) -> None:
    """Write one file in the format of its suffix (one of ``FORMATS``); the same figure gives the same bytes."""
    with look():
        figure.savefig(path, metadata=FORMATS[path.suffix.removeprefix(".")])

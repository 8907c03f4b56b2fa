"""A figure laid out in inches from its upper left corner.

Automatic layouts solve for positions whose last bits differ from run to run, and with them the bytes of the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrm_analysis.drawing.style import INK


class Page:
    """A new figure of ``width`` x ``height`` inches, and what is put on it."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height))
        self._width = width
        self._height = height

    def axes(self, left: float, top: float, width: float, height: float, **how: Any) -> Axes:
        """Axes whose frame has this corner and size, inches."""
        bottom = self._height - top - height
        box = (left / self._width, bottom / self._height, width / self._width, height / self._height)
        return self.figure.add_axes(box, **how)

    def text(self, left: float, top: float, text: str, **how: Any) -> None:
        """Text whose upper left corner is here, unless ``ha`` says otherwise."""
        how = {"va": "top", "ha": "left", "color": INK, **how}
        self.figure.text(left / self._width, 1 - top / self._height, text, **how)

    def legend(self, axes: Axes, top: float, columns: int) -> None:
        """The legend of one axes, centred over the page."""
        self.figure.legend(
            *axes.get_legend_handles_labels(),
            loc="upper center",
            bbox_to_anchor=(0.5, 1 - top / self._height),
            borderaxespad=0,
            ncols=columns,
            handlelength=1.8,
        )

    def legend_at(self, artists: Sequence[Artist], names: Sequence[str], left: float, top: float) -> None:
        """A legend in one row whose upper left corner is here."""
        self.figure.legend(
            list(artists),
            list(names),
            loc="upper left",
            bbox_to_anchor=(left / self._width, 1 - top / self._height),
            borderaxespad=0,
            borderpad=0,
            ncols=len(names),
            handlelength=1.8,
            handletextpad=0.5,
        )

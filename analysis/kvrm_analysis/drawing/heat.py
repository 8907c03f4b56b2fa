"""The panel of a heat map: means of the cells of a study over two of its axes, each written into its colour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from kvrm_analysis.drawing.series import Floats
from kvrm_analysis.drawing.style import FAINT, INK
from kvrm_analysis.studies.study_table import StudyTable, word

#: Values that span more than this are shaded by their logarithm.
WIDE = 20.0
#: How many letters a tick has at most.
MOST_LETTERS = 22


def grid_of(study: StudyTable, x: str, y: str, metric: Floats, by: str | None, facet: object) -> Floats:
    """Mean of a number of each cell, [values of y, values of x]; NaN where no cell is done."""
    values = pd.Series(metric)
    words = {axis: study.cells[axis].map(word) for axis in (x, y, *([by] if by else []))}
    here = pd.Series(True, values.index) if by is None else words[by] == word(facet)
    found = np.full((len(study.values(y)), len(study.values(x))), np.nan)
    for row, of_y in enumerate(study.values(y)):
        for column, of_x in enumerate(study.values(x)):
            chosen = values[here & (words[x] == word(of_x)) & (words[y] == word(of_y))].dropna()
            found[row, column] = chosen.mean() if len(chosen) else np.nan
    return found


@dataclass(frozen=True)
class Shade:
    """Colours of values, the better the darker; logarithmic where they span more than a factor of ``WIDE``."""

    low: float
    high: float
    logarithmic: bool
    more: bool

    def of(self, values: Floats) -> Floats:
        """0 (worst) to 1 (best); NaN stays."""
        if self.high <= self.low:
            return np.where(np.isnan(values), np.nan, 0.5)
        if self.logarithmic:
            place = np.log(values / self.low) / np.log(self.high / self.low)
        else:
            place = (values - self.low) / (self.high - self.low)
        return np.asarray(place if self.more else 1 - place, np.float64)


def shade_of(values: Floats, more: bool) -> Shade:
    """Colours that span these values; ``more``: more is better."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    return Shade(low, high, low > 0 and high > WIDE * low, more)


def heat(
    study: StudyTable,
    axes_names: tuple[str, str],
    grid: Floats,
    unranked: NDArray[np.bool_],
    shade: Shade,
    title: str,
) -> Callable[[Axes], None]:
    """What draws a panel of a ``grid`` over axes (x, y); ``unranked``: numbers that stand in parentheses."""

    def draw(axes: Axes) -> None:
        places = shade.of(grid)
        axes.imshow(places, aspect="auto", origin="lower", cmap="cividis_r", vmin=0, vmax=1)
        for (row, column), value in np.ndenumerate(grid):
            text, ink = ("x", FAINT) if np.isnan(value) else (f"{value:.3g}", INK)
            text = f"({text})" if unranked[row, column] else text
            ink = "white" if places[row, column] > 0.5 else ink
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=ink)
        for axis, name in zip((axes.xaxis, axes.yaxis), axes_names, strict=True):
            words = [short(value) for value in study.values(name)]
            axis.set_ticks(range(len(words)), words)
        axes.tick_params(length=0, labelsize=7)
        axes.grid(visible=False)
        head, dot, key = axes_names[1].rpartition(".")
        axes.set(title=title, xlabel=axes_names[0])
        axes.set_ylabel(f"{head}{dot}\n{key}" if len(axes_names[1]) > 16 and head else axes_names[1], fontsize=7.5)

    return draw


def short(value: object) -> str:
    """A value of an axis for its tick: a long one loses its middle."""
    whole = word(value)
    half = MOST_LETTERS // 2
    return whole if len(whole) <= MOST_LETTERS else f"{whole[: half - 1]}…{whole[-half:]}"

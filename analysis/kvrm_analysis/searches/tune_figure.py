"""A search in one figure: every trial over the two figures of the front, and the best so far."""

from __future__ import annotations

import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet

from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import COLOURS, FAINT, look, save
from kvrm_analysis.searches.basis import sentence
from kvrm_analysis.searches.figures_of_merit import Figure
from kvrm_analysis.searches.tune_answer import Tuned, front_of
from kvrm_analysis.searches.tuning import Tried

WIDTH_INCHES = 7.4
HEIGHT_INCHES = 2.9
#: Of the title's font that fit in a line.
TITLE_CHARACTERS = 100
BLACK, BLUE, RED = COLOURS[:3]


def tune_figure(tuned: Tuned, path: str | Path) -> Path:
    """Draw it as PNG and SVG at ``path``; returns the PNG's path."""
    target = Path(path)
    save(draw_tune(tuned), target)
    return target.with_suffix(".png")


def draw_tune(tuned: Tuned) -> Sheet:
    """The figure itself, for a notebook. Without two figures there is no first panel."""
    study = tuned.study
    asked = " and ".join(str(goal) for goal in study.goals) + (f" with {study.slo}" if study.slo else "")
    title = textwrap.wrap(
        f"{study.file.name}: {asked}, {len(tuned.trials)} trials by {study.sampler}", TITLE_CHARACTERS
    )
    caption = textwrap.wrap(caption_of(tuned), 118)
    top = 0.5 + 0.16 * (len(title) - 1)
    with look():
        page = Page(WIDTH_INCHES, top + HEIGHT_INCHES + 0.5 + 0.15 * len(caption))
        page.text(0.1, 0.09, "\n".join(title), fontsize=9.5)
        two = front_of(study, tuned.best) is not None
        if two:
            _front(page.axes(0.7, top, 3.9 if len(study.goals) == 1 else 6.4, HEIGHT_INCHES), tuned)
        if len(study.goals) == 1:
            left, width = (5.25, 1.95) if two else (0.7, 6.4)
            _so_far(page.axes(left, top, width, HEIGHT_INCHES), tuned)
        page.text(0.1, top + HEIGHT_INCHES + 0.45, "\n".join(caption), fontsize=7.5)
    return page.figure


def caption_of(tuned: Tuned) -> str:
    """What is drawn, and nothing that is not; how the cost is known, and of how many requests."""
    study, pair = tuned.study, front_of(tuned.study, tuned.best)
    alone = len(study.goals) == 1
    if pair is None:
        return "The best so far, by trial." + sentence(tuned.basis)
    said = ["A point is a trial on the whole trace: filled where it met everything, a cross where it was overloaded."]
    if len(tuned.front) > 1:
        said.append("The line joins the trials that none is better than in both figures.")
    if _bounds(tuned, pair[1][0]):
        said.append("Dashed: a bound.")
    if tuned.best is not None:
        said.append("Star: the best.")
    if alone:
        said.append("Right: the best so far.")
    return " ".join(said) + sentence(tuned.basis)


def _bounds(tuned: Tuned, figure: Figure) -> list[float]:
    return [term.bound for term in tuned.study.slo.terms if term.figure == figure] if tuned.study.slo else []


def kind_of(tuned: Tuned, trial: Tried) -> str:
    """What became of a trial, as in the legend."""
    if trial.feasible:
        return "meets everything"
    overloaded = trial.row["overloaded"] and not tuned.study.allow_overload
    return "overloaded" if overloaded else "misses a bound"


def _front(axes: Axes, tuned: Tuned) -> None:
    pair = front_of(tuned.study, tuned.best)
    assert pair is not None
    (upright, _), (across, _) = pair
    (up, up_label), (right, right_label) = _scaled(upright), _scaled(across)
    kinds = (("overloaded", "x", "none"), ("misses a bound", "o", "none"), ("meets everything", "o", BLUE))
    for label, marker, face in kinds:
        points = [
            ((across.in_row(trial.row) or 0.0) * right, (upright.in_row(trial.row) or 0.0) * up)
            for trial in tuned.trials
            if not trial.given_up and kind_of(tuned, trial) == label and trial.values is not None
            and across.in_row(trial.row) is not None
        ]  # fmt: skip
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=BLUE, markerfacecolor=face, markersize=3.6, label=label,
                      linestyle="none", markeredgewidth=0.7)  # fmt: skip
    line = sorted(
        ((across.in_row(each.row) or 0.0) * right, (upright.in_row(each.row) or 0.0) * up) for each in tuned.front
    )
    if len(line) > 1:
        axes.plot(*zip(*line, strict=True), "-", color=BLACK, linewidth=0.9, label="front", zorder=0)
    for bound in _bounds(tuned, across):
        axes.axvline(bound * right, color=FAINT, linestyle=(0, (4, 2)), linewidth=1)
    if tuned.best is not None:
        at = (across.in_row(tuned.best.row) or 0.0) * right, (upright.in_row(tuned.best.row) or 0.0) * up
        axes.plot(*at, marker="*", color=RED, markersize=10, linestyle="none", label="best")
    _log_where_wide(axes, [x for x, _ in line])
    axes.set_xlabel(right_label)
    axes.set_ylabel(up_label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=7.5)


def _log_where_wide(axes: Axes, values: list[float]) -> None:
    if values and min(values) > 0 and max(values) / min(values) > 20:
        axes.set_xscale("log")


def _so_far(axes: Axes, tuned: Tuned) -> None:
    goal = tuned.study.goals[0]
    scale, label = _scaled(goal.figure)
    best: float | None = None
    numbers, values = [], []
    for trial in tuned.trials:
        if trial.feasible and trial.values is not None and (best is None or goal.better(trial.values[0], best)):
            best = trial.values[0]
        if best is not None:
            numbers.append(trial.number)
            values.append(best * scale)
    axes.plot(numbers, values, color=BLACK, drawstyle="steps-post")
    axes.set_xlim(0, max(1, len(tuned.trials) - 1))
    axes.set_xlabel("trial")
    axes.set_ylabel(f"best {label}")


def _scaled(figure: Figure) -> tuple[float, str]:
    """Factor and label of an axis: milliseconds and GiB, where a figure counts seconds or bytes."""
    if figure.unit == "s":
        return 1e3, f"{figure.short}, ms"
    return (2.0**-30, f"{figure.short}, GiB") if figure.unit == "bytes" else (1.0, figure.short)

"""The page of a validation: what it says, what it draws, and the same bytes for the same data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from kvrm_analysis.drawing.validation_page import FIGURES, draw_validation, validation_page
from tests.analysis.made_up_measurements import validation_report, validation_steps


def words(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in figure.findobj(Text))


def panel(figure: Figure, title: str) -> Axes:
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def test_png_and_svg_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    assert validation_page(validation_report(), validation_steps(), tmp_path / "a.svg") == tmp_path / "a.png"
    validation_page(validation_report(), validation_steps(), tmp_path / "b.png")
    for suffix in ("png", "svg"):
        first, again = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert first == again


def test_it_says_what_was_executed_and_whether_it_held() -> None:
    text = words(draw_validation(validation_report(), validation_steps()))
    for expected in (
        "azure-conv-like (20 requests)",
        "decisions identical, 0 token mismatches",
        "static: 7.0% off, n 40",
        "(p90 15.0; 40 steps; not fitted)",
        "load / saturation",
        "the range of the repeats to each side",
    ):
        assert expected in text
    text = words(draw_validation(validation_report(identical=False, mismatches=3), validation_steps()))
    assert "DECISIONS DIFFER, 3 token mismatches" in text


def test_an_error_is_drawn_at_its_load_with_the_range_of_repeats_to_each_side() -> None:
    axes = panel(draw_validation(validation_report(), validation_steps()), "First token, p50")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "1"]
    spans = sorted({tuple(round(float(y), 6) for y in bar.get_segments()[0][:, 1]) for bar in axes.collections})
    assert spans == [(-25.0, 35.0), (3.0, 7.0)]


def test_times_at_another_pace_than_the_clocks_are_said_to_be() -> None:
    report = validation_report()
    assert "undisturbed" not in words(draw_validation(report, None))
    report["pace"] = {"loop": {"p50": 1.4}}
    assert "at the pace of the undisturbed machine" in words(draw_validation(report, None))


def test_a_figure_that_no_run_has_is_left_out() -> None:
    axes = panel(draw_validation(validation_report(), validation_steps()), "Gap between tokens, p99")
    assert list(axes.collections) == []


@pytest.mark.parametrize("count", [1, 2])
def test_without_step_times_the_panel_says_so(count: int) -> None:
    report = validation_report()
    report["policies"] = dict(list(report["policies"].items())[:count])
    figure = draw_validation(report, None)
    assert "not recorded" in [text.get_text() for text in panel(figure, "Whole steps").texts]


def one_policy() -> dict[str, Any]:
    report = validation_report()
    return report | {"policies": {"static": report["policies"]["static"]}}


def test_one_policy_has_its_parts_and_loads_in_two_full_panels() -> None:
    figure = draw_validation(one_policy(), None)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Whole steps", "Parts of a step", "Closed loop"]
    text = words(figure)
    for expected in ("static: steps are 7.0% off (p90 15.0; 40 steps", "repeats 2.0%", "+25.0%, 10% of the time"):
        assert expected in text
    loop = panel(figure, "Closed loop")
    assert [label.get_text() for label in loop.get_yticklabels()] == list(FIGURES.values())
    legend = loop.get_legend()
    assert legend is not None
    assert [label.get_text() for label in legend.get_texts()] == ["0.5", "1"]


@pytest.mark.parametrize("report", [validation_report, one_policy], ids=["two policies", "one"])
def test_one_repeat_is_drawn_without_a_spread(report: Callable[[], dict[str, Any]]) -> None:
    found = report() | {"repeats": 1}
    for policy in found["policies"].values():
        policy["step_time_repeat_spread"] = None
        for figures in policy["closed_loop"].values():
            for figure in figures.values():
                if isinstance(figure, dict):
                    figure |= {"repeat_spread": None, "noise": None}
    text = words(draw_validation(found, None))
    assert "one repeat, whose spread is unknown" in text
    assert "spread of repeats" not in text
    assert "range of the repeats" not in text

"""The page of a calibration: what it says, and the same bytes for the same data."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.text import Text

from kvrm_analysis.drawing.profile_page import draw_profile, profile_page
from tests.analysis.made_up_measurements import calibration_report, calibration_table


@cache
def words() -> str:
    """Everything written on the page."""
    return " ".join(" ".join(text.get_text().split()) for text in draw_profile(*made_up()).findobj(Text))


def made_up() -> tuple[pa.Table, dict[str, Any]]:
    return calibration_table(), calibration_report()


def test_the_same_calibration_gives_the_same_bytes_in_one_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.png"):
        assert profile_page(*made_up(), tmp_path / name) == tmp_path / name
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.svg"]


def test_the_lines_are_the_costs_that_the_points_were_made_from() -> None:
    text = words()
    for expected in (
        "eager: 5 µs + 2 µs a kernel",
        "graph replay: 8 µs + 0.5 µs a kernel",
        "host to device: 3 µs + 0.0205 µs a KiB",
        "copy by copy: 40 µs + 1 µs a segment",
        "decode, block table: 9 µs + 70 µs a 1,000 pairs",
        "all layers and the head: 300 µs + 9 µs a row",
    ):
        assert expected in text


def test_it_says_what_was_held_out_and_how_far_off_it_is() -> None:
    text = words()
    for expected in (
        "fitted cells: 10.0% off, n 60",
        "held-out cells: 10.0% off, n 20",
        "policies not fitted: 10.0% off, n 40",
        "(10 held-out steps; p90 20.0; on fitted cells 5.0)",
        "(not fitted, 40 steps; p90 20.0)",
    ):
        assert expected in text


def test_it_names_the_device_the_units_and_the_number_of_measurements() -> None:
    text = words()
    for expected in ("Test Device: tiny-llama, 2026-01-01", "µs", "KiB copied", "measured, ms", "15 repeats",
                     "120 steps", "spread of repeats", "of the processor, for this thread alone"):  # fmt: skip
        assert expected in text


def test_a_part_that_was_not_measured_leaves_its_panel_empty() -> None:
    table = calibration_table()
    without = table.filter([part != "transfer" for part in table["part"].to_pylist()])
    figure = draw_profile(without, calibration_report())
    panel = next(axes for axes in figure.axes if "Groups moved" in axes.get_title(loc="left"))
    assert "not recorded" in [text.get_text() for text in panel.texts]

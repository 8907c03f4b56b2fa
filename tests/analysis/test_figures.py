"""The comparison figure: drawn for every kind of input, and the same bytes for the same runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.text import Text

from kvrm_analysis.drawing.figures import compare_figure, draw_comparison
from kvrm_analysis.drawing.scene import caption, scene_of
from kvrm_analysis.runs import RunLike
from kvrm_sim.errors import InputError
from tests.analysis.made_up_runs import made_up_run, six_runs


def words(runs: Sequence[RunLike]) -> str:
    """Everything written in a figure."""
    return "\n".join(text.get_text() for text in draw_comparison(runs).findobj(Text))


def test_png_and_svg_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    assert compare_figure(six_runs(), tmp_path / "a.png") == tmp_path / "a.png"
    compare_figure(six_runs(), tmp_path / "b.svg")
    for suffix in ("png", "svg"):
        first, again = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert first == again
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()


def test_it_says_what_it_shows() -> None:
    text = " ".join(words(six_runs()).split())
    for expected in (
        "static",
        "kv-rm-delta",
        "uncalibrated",
        "bursts shaded",
        "ms, log scale",
        "s, log scale",
        "GiB",
        "groups a decode step, mean",
        "set aside",
        "requests/s",
        "time since the first arrival, s",
        "injected 870 = 870 completed",
        "8,700 gaps",
    ):
        assert expected in text


def test_it_says_who_is_not_ranked_and_who_goes_on_beyond_the_axis() -> None:
    late = made_up_run("static", last_finish_ns=300 * 10**9, peak_waiting=700)
    times = late.steps["end_ns"].to_pylist()
    steps = late.steps.set_column(late.steps.schema.get_field_index("end_ns"), "end_ns", [[3 * time for time in times]])
    text = caption(scene_of([dataclasses.replace(late, steps=steps), made_up_run("kv-rm", completed=800, rejected=70)]))
    assert "No latency ranking (overloaded): static." in text
    assert "No latency ranking (served fewer requests): kv-rm." in text
    assert "Beyond the axis ends: static at 300 s." in text
    assert "kv-rm: injected 870 = 800 completed + 70 rejected" in text


@pytest.mark.parametrize("count", [1, 7])
def test_one_run_and_more_than_a_row_of_them_can_be_drawn(count: int, tmp_path: Path) -> None:
    runs = [made_up_run("kv-rm", gap_ms=10 + at) for at in range(count)]
    compare_figure(runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


def test_a_run_without_records_can_be_drawn(tmp_path: Path) -> None:
    run = made_up_run("dynamic")
    empty = dataclasses.replace(run, steps=run.steps.slice(0, 0), requests=None)
    compare_figure([empty], tmp_path / "empty.png")
    assert "First token: requests were not recorded" in words([empty])


def test_no_run_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run was given"):
        compare_figure([], tmp_path / "none.png")

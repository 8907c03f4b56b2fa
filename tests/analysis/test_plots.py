"""Figures of runs: each kind is drawn, says what it shows and on how much it rests, and is the same every time."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from kvrm_analysis.drawing.plot_memory import blended
from kvrm_analysis.drawing.plot_options import PlotOptions
from kvrm_analysis.drawing.plots import KINDS, draw_kinds
from kvrm_analysis.drawing.sheet import COLUMN, PAGE
from kvrm_analysis.drawing.style import FORMATS, save_as
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.searches.slo import parse_slo
from kvrm_sim.errors import InputError
from tests.analysis.made_up_runs import made_up_run
from tests.analysis.small_runs import replayed

OF_RUNS = [name for name, kind in KINDS.items() if kind.source == "runs"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[NamedRun]:
    folder = tmp_path_factory.mktemp("runs")
    return [replayed(folder / policy, policy) for policy in ("static", "graph-paged", "kv-rm")]


def drawn(runs: list[NamedRun], kind: str, options: PlotOptions | None = None) -> Figure:
    folders = [run.folder for run in runs if run.folder is not None]
    if options is None:
        slo = parse_slo("ttft_p99 <= 500ms, itl_p99 <= 50ms") if kind in ("latency", "gaps") else None
        options = PlotOptions(slo=slo, window_s=(60.0, 120.0) if kind == "pool" else None)
    return draw_kinds(folders, [kind], options=options).figures[kind]


def words(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in figure.findobj(Text)).split())


SAYS = {
    "latency": ("p99 <= 500 ms", "SLO ttft_p99 <= 500 ms: ", "values within it: static", "s, log scale", "values, %"),
    "gaps": ("p99 <= 50 ms", "SLO itl_p99 <= 50 ms: ", "Gaps longer than this", "ms, log scale"),
    "time": ("requests/s", "tokens/s", "Requests that wait", "time since the first arrival, s"),
    "memory": ("GiB", "reserved", "set aside", "filled on average", "pool"),
    "pool": ("block", "holds tokens", "held, nothing in it yet", "2,600 blocks of 16 tokens", "samples"),
    "transfers": ("runs, %", "a decode step", "Lengths of runs, blocks"),
    "bytes": ("GiB/s", "% of the bytes", "none"),
    "parts": ("mean step, ms", "attention", "transport", "Steps: static"),
    "padding": ("% of the rows", "graphs", "Graphs captured"),
}


@pytest.mark.parametrize("kind", OF_RUNS)
def test_it_says_what_it_shows(runs: list[NamedRun], kind: str) -> None:
    text = words(drawn(runs, kind))
    for expected in (*SAYS[kind], "static", "graph-paged", "kv-rm", "injected 300", "ncalibrated", "chat-burst"):
        assert expected in text


@pytest.mark.parametrize("kind", OF_RUNS)
def test_letters_stay_within_a_column_and_a_page(runs: list[NamedRun], kind: str) -> None:
    for width in (COLUMN, PAGE):
        figure = drawn(runs, kind, PlotOptions(width=width, window_s=(60.0, 70.0) if kind == "pool" else None))
        assert figure.get_figwidth() == width
        box = figure.get_tightbbox()  # inches
        assert box.x0 >= -0.02
        assert box.x1 <= width + 0.02
        assert box.y0 >= -0.02
        assert box.y1 <= figure.get_figheight() + 0.02


def test_every_format_has_the_same_bytes_every_time(runs: list[NamedRun], tmp_path: Path) -> None:
    for name in FORMATS:
        files = [tmp_path / f"{at}.{name}" for at in "ab"]
        for file in files:
            save_as(drawn(runs[:1], "memory"), file)
        assert files[0].read_bytes() == files[1].read_bytes()
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


def test_names_are_shown_as_they_are_given(runs: list[NamedRun], tmp_path: Path) -> None:
    name = "<script>alert(1)</script> & $x^2$ \\frac"
    folder = runs[0].folder
    assert folder is not None
    figure = draw_kinds([folder], ["memory"], names=[name]).figures["memory"]
    assert name in words(figure)
    save_as(figure, tmp_path / "a.svg")
    assert "<script" not in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_without_kinds_all_are_drawn_that_have_something_to_show() -> None:
    drawn_ones = draw_kinds([made_up_run("dynamic"), made_up_run("graph-paged")])
    assert drawn_ones.left_out == {
        "bytes": "nothing was copied into staging",
        "padding": "no step ran in a graph",
    }
    assert "bursts shaded" in words(drawn_ones.figures["time"])
    assert set(drawn_ones.figures) == {"latency", "time", "memory", "transfers", "parts"}


def test_runs_without_requests_are_drawn_as_far_as_they_go() -> None:
    run = replace(made_up_run("static"), requests=None)
    found = draw_kinds([run])
    assert found.left_out["latency"] == "requests were not recorded"
    assert "Wait for the first token" not in words(found.figures["time"])


def test_what_cannot_be_drawn_is_refused(runs: list[NamedRun], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="kind 'heatmap' is drawn of a study; of runs there are latency"):
        draw_kinds([made_up_run("static")], ["heatmap"])
    with pytest.raises(InputError, match="was not written to a folder"):
        draw_kinds([made_up_run("static")], ["pool"])
    with pytest.raises(InputError, match="reserved_kv_mean <= 5 GiB: no distribution shows it"):
        PlotOptions(slo=parse_slo("reserved_kv_mean <= 5GiB"))
    with pytest.raises(InputError, match="not the folder of a run"):
        draw_kinds([tmp_path / "nothing"])


def test_the_colours_of_a_band_are_the_mean_of_its_blocks() -> None:
    codes = np.array([[0, 0, 1, 1, 0, 1]], np.int16)
    bands = blended(codes, ("#FFFFFF", "#000000"), 3)
    assert bands[0, :, 0].tolist() == [1.0, 0.0, 0.5]
    assert blended(codes, ("#FFFFFF", "#000000"), 100).shape == (1, 6, 3)

"""Figures of a study's table, and of a validation: what is an axis, what is better, and what has no result."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from kvrm_analysis.drawing.plot_study import StudyOptions, draw_heatmap, draw_pareto, draw_tornado
from kvrm_analysis.drawing.plots import draw_kinds, source_of
from kvrm_analysis.drawing.sheet import COLUMN
from kvrm_analysis.studies.study_table import (
    StudyTable,
    label_of,
    load_study,
    more_is_better,
    pareto_front,
    study_table,
)
from kvrm_sim.errors import InputError
from tests.analysis.made_up_measurements import validation_report, validation_steps


def table() -> pd.DataFrame:
    rows = []
    for policy, size, speed, seed in itertools.product(("static", "kv-rm"), (8, 16, 32), (0.5, 2.0), (0, 1)):
        fits = not (policy == "static" and size == 32)
        rows.append(
            {
                "policy": policy,
                "pager.block_size_tokens": size,
                "trace.speedup": speed,
                "seed": seed,
                "trace": "chat-burst",
                "status": "done" if fits else "does_not_fit",
                "error": None if fits else "too large",
                "calibrated": False if fits else None,
                "overloaded": speed > 1 if fits else None,
                "ttft_p99_s": speed * size + seed if fits else np.nan,
                "output_tokens_per_s": 1000.0 * speed - size if fits else np.nan,
                "reserved_kv_mean_bytes": (3.0 if policy == "static" else 1.0) * 2**30 if fits else np.nan,
            }
        )
    return pd.DataFrame(rows)


def study() -> StudyTable:
    return study_table(table(), "study")


def words(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in figure.findobj(Text)).split())


def test_what_varies_is_an_axis_and_what_repeats_is_not() -> None:
    assert study().axes == ("policy", "pager.block_size_tokens", "trace.speedup")
    assert study().repeats == ("seed",)
    assert len(study().cells) == 20
    assert study().values("pager.block_size_tokens") == [8, 16, 32]


def test_a_heat_map_shows_means_over_repeats_and_where_there_is_no_result() -> None:
    text = words(draw_heatmap(study(), StudyOptions()))
    assert "TTFT p99, s over pager.block_size_tokens (to the right) and trace.speedup (up)" in text
    assert "policy = static" in text
    assert "(64.5)" in text  # 2 * 32, and the mean of the seeds
    assert " x " in text
    assert "20 cells with results; 4 does not fit." in text
    assert "Uncalibrated" in text
    assert "10 cells are overloaded" in text
    assert " 4.5 " in text  # half the speed keeps up


def test_the_front_is_what_nothing_beats() -> None:
    text = words(draw_pareto(study(), StudyOptions()))
    assert "output tokens/s against reserved KV mean, GiB" in text
    assert "Front (n 1): (1, 492): policy kv-rm, pager.block_size_tokens 8, trace.speedup 0.5." in text
    assert "Means over repeats (seed)" in text
    assert "10 cells are overloaded: pale, and not on the front" in text
    points = np.array([[1.0, 5.0], [2.0, 9.0], [1.5, 4.0], [3.0, 9.0]])
    assert pareto_front(points, (False, True)).tolist() == [0, 1]
    assert pareto_front(points, (False, False)).tolist() == [0, 2]


def test_the_widest_axis_is_on_top_of_a_tornado() -> None:
    whole = table().query("policy == 'kv-rm'").assign(overloaded=False)
    figure = draw_tornado(study_table(whole, "study"), StudyOptions(metric="ttft_p99_s", width=COLUMN))
    names = [text.get_text() for text in figure.findobj(Text) if text.get_text() in study().axes]
    assert names == ["trace.speedup", "pager.block_size_tokens"]  # upwards
    assert "mean of all 12 cells shown" in words(figure)
    assert "Not balanced" not in words(figure)


def test_a_tornado_of_latencies_leaves_overloaded_cells_out_and_says_what_is_missing() -> None:
    text = words(draw_tornado(study(), StudyOptions(metric="ttft_p99_s")))
    assert "mean of all 10 cells shown" in text
    assert "10 cells are overloaded and left out here" in text
    assert "parentheses" not in text
    assert "Not balanced: 14 of the 24 combinations are missing" in text
    text = words(draw_tornado(study(), StudyOptions(metric="output_tokens_per_s")))
    assert "mean of all 20 cells shown" in text
    assert "Not balanced: 4 of the 24" in text
    with pytest.raises(InputError, match=r"no cell has one to compare \(12 are overloaded\)"):
        draw_tornado(study_table(table().query("policy == 'kv-rm'").assign(overloaded=True), "study"), StudyOptions())


def test_a_heat_map_names_its_axes_and_has_room_for_long_values() -> None:
    frame = table().replace({"policy": {"static": "graph-paged"}})
    left_out = (frame["status"] != "done") & (frame["seed"] == 1)
    frame.loc[left_out, ["status", "error"]] = ["refused", "constraints: this cell is not in the study"]
    figure = draw_heatmap(study_table(frame, "study"), StudyOptions(x="trace.speedup", y="policy"))
    axes = figure.axes[0]
    assert axes.get_ylabel() == "policy"
    FigureCanvasAgg(figure).draw()
    assert all(label.get_window_extent().x0 >= 0 for label in (*axes.get_yticklabels(), axes.yaxis.label))
    assert "2 does not fit, 2 left out by a constraint" in words(figure)
    for twice in (StudyOptions(x="policy", y="policy"), StudyOptions(x="policy", by="policy")):
        with pytest.raises(InputError, match="'policy' is asked for twice"):
            draw_heatmap(study(), twice)


@pytest.mark.parametrize(
    ("metric", "label", "more"),
    [
        ("itl_p99_s", "ITL p99, ms", False),
        ("output_tokens_per_s", "output tokens/s", True),
        ("kv_footprint_bytes", "KV footprint, GiB", False),
        ("completed_share", "completed share", True),
        ("preemptions", "preemptions", False),
    ],
)
def test_units_and_directions(metric: str, label: str, more: bool) -> None:
    assert label_of(metric) == label
    assert more_is_better(metric) == more


def test_a_table_is_read_from_its_file_and_from_its_folder(tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "cells.parquet")
    assert source_of(tmp_path) == source_of(tmp_path / "cells.parquet") == "study"
    assert load_study(tmp_path).axes == study().axes
    assert set(draw_kinds([tmp_path]).figures) == {"heatmap", "pareto", "tornado"}
    one_axis = table().query("policy == 'kv-rm' and `trace.speedup` == 0.5")
    one_axis.to_parquet(tmp_path / "cells.parquet")
    assert draw_kinds([tmp_path]).left_out == {"heatmap": "1 axes vary, it needs two"}


def test_what_a_table_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column 'ttft_p9_s'; did you mean ttft_p99_s"):
        draw_heatmap(study(), StudyOptions(metric="ttft_p9_s"))
    with pytest.raises(InputError, match=r"no column 'nope'; its metrics are .*ttft_p99_s, output_tokens_per_s, res"):
        draw_tornado(study(), StudyOptions(metric="nope"))
    with pytest.raises(InputError, match="'policy' is no metric: it holds no numbers; there are ttft_p99_s"):
        draw_heatmap(study(), StudyOptions(metric="policy"))
    with pytest.raises(InputError, match="'error' is no metric"):
        draw_heatmap(study(), StudyOptions(metric="error"))
    with pytest.raises(InputError, match=r"no column 'speed'; did you mean trace\.speedup\?"):
        draw_heatmap(study(), StudyOptions(x="speed"))
    with pytest.raises(InputError, match=r"no column 'nope'; its axes are policy, pager\.block_size_tokens, trace"):
        draw_pareto(study(), StudyOptions(by="nope"))
    with pytest.raises(InputError, match="'ttft_p99_s' is a result, not an axis; its axes are policy"):
        draw_heatmap(study(), StudyOptions(y="ttft_p99_s"))
    with pytest.raises(InputError, match="'trace' is chat-burst in every cell; its axes are policy"):
        draw_heatmap(study(), StudyOptions(x="trace"))
    with pytest.raises(InputError, match=r"kind 'heatmp' is unknown; did you mean 'heatmap'\?"):
        draw_kinds([tmp_path / "a.parquet"], ["heatmp"])
    with pytest.raises(InputError, match="none of its 4 cells is done"):
        study_table(table().query("status != 'done'"), "study")
    (tmp_path / "no.parquet").write_text("no Parquet")
    with pytest.raises(InputError, match="cannot be read as the table of a study"):
        draw_kinds([tmp_path / "no.parquet"])


def test_a_metric_is_found_without_its_unit(tmp_path: Path) -> None:
    whole, short = (words(draw_tornado(study(), StudyOptions(metric=name))) for name in ("ttft_p99_s", "ttft_p99"))
    assert short == whole
    assert "output tokens/s" in words(draw_pareto(study(), StudyOptions(y="output_tokens")))


def test_without_a_kind_only_those_are_drawn_that_x_and_y_are_of(tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "cells.parquet")
    found = draw_kinds([tmp_path], study=StudyOptions(x="trace.speedup"))
    assert (set(found.figures), found.left_out) == ({"heatmap", "tornado"}, {"pareto": "x = trace.speedup is an axis"})
    found = draw_kinds([tmp_path], study=StudyOptions(x="ttft_p99"))
    assert (set(found.figures), found.left_out) == ({"pareto", "tornado"}, {"heatmap": "x = ttft_p99 is a metric"})


def test_repeats_are_one_axis_however_many_columns_tell_them_apart() -> None:
    whole = table().query("policy == 'kv-rm'").assign(overloaded=False)
    whole["repeat"] = whole["seed"]
    assert "Not balanced" not in words(draw_tornado(study_table(whole, "study"), StudyOptions()))


def test_a_validation_is_drawn_from_its_folder(tmp_path: Path) -> None:
    report = validation_report()
    (tmp_path / "report.json").write_text(json.dumps(report), encoding="utf-8")
    import pyarrow.parquet as pq

    pq.write_table(validation_steps(), tmp_path / "steps.parquet")
    text = words(draw_kinds([tmp_path]).figures["validation"])
    for expected in ("measured, ms", "predicted, ms", "median absolute error, %", str(next(iter(report["policies"])))):
        assert expected in text
    with pytest.raises(InputError, match="kind 'latency' is drawn of runs; of a validation there are validation"):
        draw_kinds([tmp_path], ["latency"])
    (tmp_path / "report.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="not the report of a validation"):
        draw_kinds([tmp_path])

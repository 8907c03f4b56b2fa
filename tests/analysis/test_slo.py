"""Objectives as they are written: names of figures, units, and what a run keeps of them."""

from __future__ import annotations

import math

import pytest

import kvrm
from kvrm_analysis.searches.figures_of_merit import FIGURES, figure_named
from kvrm_analysis.searches.slo import parse_goal, parse_slo
from kvrm_analysis.studies.cell_rows import row_of
from kvrm_sim.errors import InputError

RUN = {"itl_s": {"p99": 0.06}, "completed_share": 0.999, "reserved_kv_bytes": {"mean": 3e9}, "ttft_s": {"p99": None}}


def test_every_figure_stands_in_the_json_of_a_run_under_its_path_and_in_a_row_under_its_column() -> None:
    run = kvrm.replay(kvrm.open_trace("azure-conv-like", rows=150), "kv-rm", keep=False, pool_blocks=3000).summary
    row = row_of(run)
    values = {path: figure.value(run) for path, figure in FIGURES.items()}
    assert values == {path: figure.in_row(row) for path, figure in FIGURES.items()}
    parts = ("host", "compaction", "run_ahead", "speculation")
    absent = {path for path, value in values.items() if value is None and path.partition(".")[0] not in parts}
    assert absent == {"cached_kv_bytes.mean", "cached_kv_bytes.peak", "prefix_hit_tokens", "evicted_blocks"}
    assert values["itl_s.p99"] == run["itl_s"]["p99"]
    assert len({figure.short for figure in FIGURES.values()}) == len(FIGURES)


@pytest.mark.parametrize(
    ("text", "path", "bound"),
    [
        ("itl_p99 <= 50ms", "itl_s.p99", 0.05),
        ("itl_s.p99<=0.05", "itl_s.p99", 0.05),
        ("itl_p99_s <= 0.05", "itl_s.p99", 0.05),
        ("itl_s.p99 <= 50 ms", "itl_s.p99", 0.05),
        ("tpot_exclusive_mean < 1e2 us", "tpot_exclusive_s.mean", 1e-4),
        ("e2e_max <= 2min", "e2e_s.max", 120.0),
        ("reserved_kv_mean <= 40GiB", "reserved_kv_bytes.mean", 40 * 2**30),
        ("kv_footprint_bytes <= 40 GB", "kv_footprint_bytes", 4e10),
        ("output_tokens_per_s.steady >= 1000/s", "output_tokens_per_s.steady", 1000.0),
        ("requests_per_s.whole >= 2.5", "requests_per_s.whole", 2.5),
        ("completed_share >= 99.9%", "completed_share", 0.999),
        ("preemptions <= 0", "preemptions", 0.0),
    ],
)
def test_an_amount_is_read_in_the_unit_of_its_figure(text: str, path: str, bound: float) -> None:
    (term,) = parse_slo(text).terms
    assert term.figure.path == path
    assert math.isclose(term.bound, bound, rel_tol=1e-12)


def test_terms_are_joined_and_each_counts() -> None:
    slo = parse_slo(["itl_p99 <= 50ms and completed_share >= 99%", "reserved_kv_mean < 2GB, ttft_p99 <= 1s"])
    assert [str(term.figure.short) for term in slo.broken(RUN)] == ["itl_p99", "reserved_kv_mean", "ttft_p99"]
    assert [figure.short for figure in slo.missing(RUN)] == ["ttft_p99"]
    assert str(parse_slo("itl_p99<=60ms")) == "itl_p99 <= 60 ms"
    assert parse_slo("itl_p99 < 60ms").broken(RUN)
    assert not parse_slo("itl_p99 <= 60ms").broken(RUN)


def test_by_how_much_a_bound_is_missed() -> None:
    upper, lower = parse_slo("itl_p99 <= 50ms and completed_share > 90%").terms
    assert upper.excess(0.06) == pytest.approx(0.2)
    assert upper.excess(0.05) == 0
    assert upper.excess(0.04) == pytest.approx(-0.2)
    assert lower.excess(0.45) == pytest.approx(0.5)
    assert lower.excess(0.9) > 0, "equal to a strict bound"
    assert lower.excess(0.95) < 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("itl_p99 <= 50", "50 of what? Write 50ms (units: s, ms, us"),
        ("itl_p99 <= 50MB", "'MB' is no unit of itl_p99"),
        ("itl_p95 <= 50ms", "'itl_p95' is no figure of a run; did you mean 'itl_p9"),
        ("itl_p99 = 50ms", "is not FIGURE <= AMOUNT"),
        ("itl_p99 <= fast", "'fast' is no number with a unit, e.g. 50ms"),
        ("itl_p99 <= nan", "'nan' is no number with a unit"),
        ("preemptions <= 5s", "'s' is no unit of preemptions (units: none, a plain number)"),
        ("", "is not FIGURE <= AMOUNT"),
        ("itl_p99<=-1s", "'itl_p99<=-1s': the bound should be above 0"),
        ("ttft_p99 <= 0s", "the bound should be above 0; no ttft_p99 is below 0"),
        ("preemptions < 0", "the bound should be above 0"),
        ("preemptions <= -1", "the bound should be above 0"),
    ],
)
def test_a_wrong_objective_says_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_slo(text, "--slo")
    assert str(error.value).startswith("--slo: ")
    assert message in str(error.value)


def test_goals() -> None:
    goal = parse_goal("minimise reserved_kv_mean")
    assert (goal.figure.path, goal.maximize, str(goal)) == (
        "reserved_kv_bytes.mean",
        False,
        "minimize reserved_kv_mean",
    )
    assert parse_goal("maximize requests_per_s.steady").better(2, 1)
    for text in ("requests_per_s.steady", "least itl_p99", "minimize"):
        with pytest.raises(InputError, match="is not 'minimize FIGURE'"):
            parse_goal(text)
    with pytest.raises(InputError, match="did you mean"):
        parse_goal("minimize itl_p9")


def test_a_value_is_shown_with_its_unit() -> None:
    shown = {"itl_p99": (0.0513, "51.3 ms"), "e2e_max": (12.5, "12.5 s"), "reserved_kv_mean": (3 * 2**30, "3 GiB")}
    assert {name: figure_named(name).text(value) for name, (value, _) in shown.items()} == {
        name: text for name, (_, text) in shown.items()
    }
    assert figure_named("itl_p99").text(None) == "no value"

"""What differs between runs, and when it is a failure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kvrm
from kvrm_analysis.conditions import condition
from kvrm_analysis.difference_text import MAIN, render
from kvrm_analysis.differences import bootstrap
from kvrm_analysis.searches.figures_of_merit import FIGURES
from kvrm_sim.errors import InputError
from tests.analysis.made_up_runs import made_up_run


@pytest.fixture(scope="module")
def repeats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repeats")
    for policy in ("graph-paged", "kv-rm"):
        for seed in (3, 1, 2):
            trace = kvrm.open_trace("azure-conv-like", rows=60, seed=seed)
            kvrm.replay(trace, policy, out=folder / policy / f"seed-{seed}", seed=seed)
    return folder


def test_settings_and_numbers_that_differ_are_told(repeats: Path) -> None:
    found = kvrm.diff(repeats / "graph-paged" / "seed-1", repeats / "kv-rm" / "seed-1")
    assert found.settings["policy.name"] == ("graph-paged", "kv-rm")
    assert found.settings["policy.read.what"] == ("table", "staged")
    assert "model.name" not in found.settings
    assert not any(key.endswith(".source") for key in found.settings)
    by_name = {metric.name: metric for metric in found.metrics}
    p99 = by_name["itl_p99_s"]
    assert p99.a is not None
    assert p99.b is not None
    assert p99.change == pytest.approx(p99.b / p99.a - 1)
    assert p99.interval is None
    assert by_name["injected_requests"].change == 0
    assert by_name["transfer_moved_bytes"].change is None  # from nothing to something has no percentage
    text = render(found)
    assert "policy.read.what" in text
    assert "itl_p99_s" in text
    assert "uncalibrated" in text
    assert "injected_requests" not in text


def test_a_run_does_not_differ_from_itself(repeats: Path) -> None:
    folder = repeats / "kv-rm" / "seed-1"
    found = kvrm.diff(folder, folder, fail_if=["itl_p99 > +0%", "itl_p99 < -0%"])
    assert found.settings == {}
    assert not any(metric.differs for metric in found.metrics)
    assert found.failures == ()
    assert "settings: the same" in render(found)
    assert "results: the same, every number" in render(found)


def test_repeats_are_paired_by_seed_and_have_intervals(repeats: Path) -> None:
    found = kvrm.diff(repeats / "graph-paged", repeats / "kv-rm", fail_if=["itl_p50 > +10%"])
    assert found.repeats == (3, 3)
    assert found.paired
    assert "trace.sha256" not in found.settings
    p50 = next(metric for metric in found.metrics if metric.name == "itl_p50_s")
    assert p50.change is not None
    assert p50.interval is not None
    assert p50.interval[0] <= p50.change <= p50.interval[1]
    assert found.failures[0].sure
    assert "mean of 3 repeats, paired by seed" in render(found)


def test_other_seeds_are_not_paired(repeats: Path) -> None:
    a = [repeats / "graph-paged" / f"seed-{seed}" for seed in (1, 2)]
    b = [repeats / "kv-rm" / f"seed-{seed}" for seed in (2, 3)]
    assert not kvrm.diff(a, b).paired


def test_runs_that_are_no_repeats_of_each_other_are_refused(repeats: Path) -> None:
    mixed = [repeats / "graph-paged" / "seed-1", repeats / "kv-rm" / "seed-1"]
    with pytest.raises(InputError, match="no repeats of one configuration: policy"):
        kvrm.diff(mixed, repeats / "kv-rm")


def test_an_interval_holds_the_difference_and_is_the_same_every_time() -> None:
    rng = np.random.default_rng(5)
    a = rng.normal(10, 1, 40)
    b = a * 1.1 + rng.normal(0, 0.1, 40)
    paired, apart = bootstrap(a, b, paired=True), bootstrap(a, b, paired=False)
    assert paired is not None
    assert apart is not None
    assert paired[0] < 0.1 < paired[1]
    assert paired[1] - paired[0] < (apart[1] - apart[0]) / 3
    assert bootstrap(a, b, paired=True) == paired
    assert bootstrap(np.zeros(3), b, paired=False) is None


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("itl_p99 > +5%", True),
        ("itl_p99 > +300%", False),
        ("itl_p99 < -5%", False),
        ("itl_p99 > +40ms", True),
        ("itl_p99_s > +0.05", False),
        ("itl_p99 >= 50ms", True),
        ("itl_s.p99 < 0.05", False),
        ("preemptions > +2", True),
        ("preemptions < -2", False),
        ("preemptions > +5%", True),  # from 0 there is no percentage
        ("transfer_blocks_per_group > 0", True),  # null: nothing passes unseen
    ],
)
def test_conditions_are_about_shares_differences_and_values(tmp_path: Path, text: str, fails: bool) -> None:
    a = made_up_run("static", gap_ms=20)
    b = made_up_run("static", gap_ms=65, preemptions=3)
    from kvrm_analysis.differences import difference
    from kvrm_analysis.runs import NamedRun

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.toml").write_text("seed = 0\n", encoding="utf-8")
    sides = [[NamedRun(name, run, folder)] for name, run in (("a", a), ("b", b))]
    found = difference(sides[0], sides[1], ("a", "b"), [text])
    assert bool(found.failures) == fails


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("itl_p99", r"is not FIGURE > AMOUNT"),
        ("", r"is not FIGURE > AMOUNT"),
        ("itl_p99 = 5", r"is not FIGURE > AMOUNT"),
        ("itl_p9 > +5%", r"'itl_p9' is no figure of a run"),
        ("itl_p99 > fast", r"'fast' is no number with a unit, e.g. 50ms"),
        ("itl_p99 > 50", r"50 of what\? Write 50ms"),
        ("itl_p99 > +5x%", r"'5x' is no finite number"),
        ("itl_p50 > +nan%", r"'nan' is no finite number"),
        ("itl_p50 > -inf%", r"'inf' is no finite number"),
        ("itl_p50 > +1e400%", r"'1e400' is no finite number"),
        ("itl_p50 > +1e400ms", r"'1e400ms' is no number with a unit"),
        ("reserved_kv_mean > 1e308GiB", r"'1e308GiB' is no number with a unit"),
        ("itl_p99 > 5%", r"needs its sign: \+5% or -5%"),
    ],
)
def test_a_condition_that_cannot_be_read_says_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        condition(text)


def test_every_number_that_is_printed_is_a_figure_of_a_run() -> None:
    assert set(MAIN) <= {figure.column for figure in FIGURES.values()}

"""`kvrm tune`: what it reads, what it finds, that it goes on where it stopped, and that it beats drawing at random."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import kvrm
from kvrm_analysis.engines.engines import SerialEngine
from kvrm_analysis.searches.search_space import read_space
from kvrm_analysis.searches.tune_figure import caption_of, draw_tune, kind_of
from kvrm_analysis.searches.tune_study import tune_of
from kvrm_analysis.searches.tuning import JOURNAL, Tried
from kvrm_analysis.studies.cell_rows import failed_row, row_of
from kvrm_analysis.studies.cell_work import Ran
from kvrm_analysis.studies.study_file import study_of
from kvrm_sim.errors import ConfigError, InputError
from tests.conftest import REPO

pytest.importorskip("optuna", reason="the extra tune is not installed")

STUDY: dict[str, Any] = {
    "name": "small",
    "base": {"trace": "azure-conv-like", "trace.rows": 200, "policy": "graph-paged"},
    "axes": {
        "trace.requests_per_s": {"range": [3.0, 16.0]},
        "policy.schedule.token_budget": {"log_range": [128, 8192]},
        "policy.schedule.slots": {"log_range": [8, 128]},
        "policy.pager.block_size_tokens": [8, 16, 32],
        "policy.schedule.order": ["fcfs", "shortest_prompt"],
    },
    "tune": {
        "objective": "maximize requests_per_s.steady",
        "slo": ["itl_p99 <= 80ms", "ttft_p99 <= 3s"],
        "trials": 24,
        "batch": 4,
    },
}


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """A row of a run, from which the rows of made-up cells are made."""
    return row_of(kvrm.replay(kvrm.open_trace("azure-conv-like", rows=200), "graph-paged", keep=False).summary)


class MadeUp:
    """An engine whose cells are a formula: more rate is better until a bound that the other keys move."""

    workers = 1

    def __init__(self, example: Mapping[str, Any], stop_after: int | None = None) -> None:
        self.example, self.left = example, stop_after
        self.ran: list[dict[str, Any]] = []

    def map(self, _: object, tasks: Iterable[Any]) -> Iterator[tuple[int, Ran]]:
        for at, task in enumerate(tasks):
            if self.left is not None:
                if self.left == 0:
                    raise KeyboardInterrupt
                self.left -= 1
            self.ran.append(dict(task.settings))
            yield at, Ran(self.row(task.settings))

    def row(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        rate, budget = settings["trace.requests_per_s"], settings["policy.schedule.token_budget"]
        slots, block = settings["policy.schedule.slots"], settings["policy.pager.block_size_tokens"]
        if budget < slots:
            return failed_row("refused", "a budget below the slots")
        itl = 0.01 + budget / 40_000 + slots / 4_000 + (0.01 if block == 8 else 0.0)
        ttft = 0.2 * rate**2 * (300 / budget) ** 0.5 * (64 / slots) ** 0.5 * 0.3
        return {
            **self.example,
            "requests_steady_per_s": rate,
            "itl_p99_s": itl,
            "ttft_p99_s": ttft,
            "overloaded": False,
            "injected_requests": settings.get("trace.limit", 200),
        }

    def __enter__(self) -> MadeUp:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def told(trials: Iterable[Tried]) -> list[tuple[Any, ...]]:
    return [(trial.number, dict(trial.settings), trial.values, trial.given_up) for trial in trials]


def with_tune(**changes: Any) -> dict[str, Any]:
    return {**STUDY, "tune": {**STUDY["tune"], **changes}}


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(example: dict[str, Any], tmp_path: Path) -> None:
    whole = kvrm.tune(STUDY, engine=MadeUp(example))
    for stop_after in (0, 13):
        out = tmp_path / str(stop_after)
        with pytest.raises(KeyboardInterrupt):
            kvrm.tune(STUDY, out=out, engine=MadeUp(example, stop_after))
        rest = MadeUp(example)
        resumed = kvrm.tune(STUDY, out=out, engine=rest)
        assert told(resumed.trials) == told(whole.trials)
        assert resumed.best is not None
        ended = stop_after // 4 * 4
        assert len(rest.ran) <= 24 - ended + len(resumed.neighbours)


def test_a_search_is_grown_and_another_study_is_refused(example: dict[str, Any], tmp_path: Path) -> None:
    kvrm.tune(STUDY, out=tmp_path / "t", engine=MadeUp(example), trials=8)
    grown = kvrm.tune(STUDY, out=tmp_path / "t", engine=MadeUp(example), trials=16)
    assert told(grown.trials) == told(kvrm.tune(STUDY, engine=MadeUp(example), trials=16).trials)
    with pytest.raises(InputError, match="its trials are of another study"):
        kvrm.tune(with_tune(slo="itl_p99 <= 70ms"), out=tmp_path / "t", engine=MadeUp(example))
    anew = kvrm.tune(with_tune(slo="itl_p99 <= 70ms"), out=tmp_path / "t", engine=MadeUp(example), resume=False)
    assert len(anew.trials) == 24
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match=f"holds no {JOURNAL}"):
        kvrm.tune(STUDY, out=tmp_path / "other", engine=MadeUp(example))


def test_the_best_is_the_best_feasible_trial_and_its_neighbours_differ_in_one_key(example: dict[str, Any]) -> None:
    found = kvrm.tune(STUDY, engine=MadeUp(example), trials=40)
    made_up = MadeUp(example)
    able = []
    for trial in found.trials:
        row = made_up.row(trial.settings)
        good = row["status"] == "done" and row["itl_p99_s"] <= 0.08 and row["ttft_p99_s"] <= 3
        assert trial.feasible == good
        able += [row["requests_steady_per_s"]] if good else []
    assert found.best is not None
    assert found.best.values == (max(able),)
    assert {each.key for each in found.neighbours} == set(found.study.space.keys)
    for each in found.neighbours:
        assert each.value != found.best.settings[each.key]
    assert all(trial.row["itl_p99_s"] <= 0.08 for trial in found.front), "one bound spans the front, the others hold"
    rates = [trial.row["requests_steady_per_s"] for trial in found.front]
    assert rates == sorted(rates, reverse=True)
    assert f"best is trial {found.best.number}" in found.to_text()


def test_early_windows_give_up_what_is_hopeless_and_cost_less(example: dict[str, Any]) -> None:
    whole = kvrm.tune(STUDY, engine=MadeUp(example), trials=40)
    early = kvrm.tune(with_tune(windows=[0.25]), engine=MadeUp(example), trials=40)
    lost = [trial for trial in early.trials if trial.given_up]
    assert lost
    assert all(trial.row["injected_requests"] == 50 and trial.requests == 50 for trial in lost)
    assert early.requests < whole.requests
    assert early.best is not None
    assert early.best.row["injected_requests"] == 200


def test_two_objectives_give_a_front(example: dict[str, Any]) -> None:
    found = kvrm.tune(
        with_tune(objective=["maximize requests_per_s.steady", "minimize itl_p99"], slo="ttft_p99 <= 3s"),
        engine=MadeUp(example),
        trials=48,
    )
    assert found.study.sampler == "nsga2"
    assert found.best is None
    points = [trial.values or () for trial in found.front]
    assert len(points) > 2
    for rate, itl in points:
        assert not any(r >= rate and i <= itl and (r, i) != (rate, itl) for r, i in points)


def test_the_figure_says_what_is_drawn_and_cuts_nothing_off(example: dict[str, Any]) -> None:
    """Of two objectives there is no star and no right panel; no text leaves the page."""
    one = kvrm.tune(STUDY, engine=MadeUp(example), trials=16)
    two = kvrm.tune(
        with_tune(objective=["maximize requests_per_s.steady", "minimize itl_p99"], slo="ttft_p99 <= 3s"),
        engine=MadeUp(example),
        trials=16,
    )
    assert "Star" in caption_of(one)
    assert "Right" in caption_of(one)
    assert "Star" not in caption_of(two)
    assert "Right" not in caption_of(two)
    assert "line" in caption_of(two)
    assert "line" not in caption_of(dataclasses.replace(two, front=two.front[:1])), "one trial is no line"
    for found in (one, two):
        assert "Uncalibrated (times rank cells and predict no machine), n = 200 requests a cell." in caption_of(found)
        assert "uncalibrated (times rank cells and predict no machine), n = 200 requests a cell" in found.to_text()
        drawn = draw_tune(found)
        drawn.draw_without_rendering()
        assert all(text.get_window_extent().x1 <= drawn.bbox.x1 for text in drawn.texts)
        assert all(text.get_window_extent().y0 >= 0 for text in drawn.texts)


def test_an_overloaded_trial_is_called_so(example: dict[str, Any]) -> None:
    found = kvrm.tune(STUDY, engine=MadeUp(example), trials=8)
    trial = dataclasses.replace(found.trials[0], excess=1.0, row={**example, "overloaded": True})
    assert kind_of(found, trial) == "overloaded"
    assert kind_of(found, dataclasses.replace(trial, row={**example, "overloaded": False})) == "misses a bound"
    allowed = dataclasses.replace(found, study=dataclasses.replace(found.study, allow_overload=True))
    assert kind_of(allowed, trial) == "misses a bound"


def test_no_trial_meets_it_and_the_nearest_is_named(example: dict[str, Any]) -> None:
    found = kvrm.tune(with_tune(slo=["itl_p99 <= 1ms"]), engine=MadeUp(example), trials=8)
    assert found.best is None
    assert "no trial meets everything; nearest is" in found.to_text()
    assert "itl_p99 <= 1 ms: off by" in found.to_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tune": None}, "tune: missing"),
        ({"tune": {"objectve": "minimize itl_p99"}}, "tune.objectve: unknown key; did you mean 'objective'?"),
        ({"tune": {"objective": "itl_p99"}}, "tune.objective: 'itl_p99' is not 'minimize FIGURE'"),
        ({"tune": {"objective": "minimize itl_p95"}}, "is no figure of a run; did you mean"),
        ({"tune": {"objective": "minimize itl_p99", "slo": "ttft_p99 <= 3"}}, "tune.slo: 3 of what?"),
        ({"tune": {"objective": "minimize itl_p99", "trials": 0}}, "tune.trials = 0: should be a whole number"),
        ({"tune": {"objective": "minimize itl_p99", "sampler": "grid"}}, "should be one of tpe, nsga2, random"),
        ({"tune": {"objective": "minimize itl_p99", "windows": [0.5, 0.2]}}, "should be ascending shares"),
        ({"axes": {}}, "axes: missing: nothing to search"),
        ({"axes": {"pool_blocks": {"range": [5, 1]}}}, "axes.pool_blocks.range = [5, 1]: should be two whole numbers"),
        ({"axes": {"pol_blocks": {"range": [1, 5]}}}, "axes.pol_blocks: unknown key; did you mean 'pool_blocks'?"),
        ({"variants": [{"policy": "static"}]}, "variants: `kvrm tune` searches [axes]"),
        ({"base": {"policy": "static"}}, "base.trace: missing"),
    ],
)
def test_a_wrong_study_is_refused_before_any_work(changes: dict[str, Any], message: str) -> None:
    values = {key: value for key, value in (STUDY | changes).items() if value is not None}
    if "base" in changes:
        values["axes"] = {"pool_blocks": {"range": [1000, 5000]}}
    with pytest.raises(ConfigError) as error:
        tune_of(study_of(values))
    assert message in str(error.value)


def test_neighbours_of_a_list_of_words_are_all_others_and_of_numbers_the_next() -> None:
    space = read_space(study_of(STUDY), "tune")
    settings = {
        "trace.requests_per_s": 3.0,
        "policy.schedule.token_budget": 1024,
        "policy.schedule.slots": 128,
        "policy.pager.block_size_tokens": 16,
        "policy.schedule.order": "fcfs",
    }
    beside: dict[str, list[Any]] = {}
    for key, change in space.neighbours(settings):
        beside.setdefault(key, []).append(change[key])
    assert beside["policy.pager.block_size_tokens"] == [8, 32]
    assert beside["policy.schedule.order"] == ["shortest_prompt"]
    assert beside["trace.requests_per_s"] == [pytest.approx(3.65)]
    assert len(beside["policy.schedule.token_budget"]) == 2
    assert len(beside["policy.schedule.slots"]) == 1


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"install the extra, pip install 'kvrm\[tune\]'"):
        kvrm.tune(STUDY, engine=SerialEngine())


def test_real_cells_are_searched_and_the_answer_is_written(tmp_path: Path) -> None:
    out = tmp_path / "tune"
    found = kvrm.tune(STUDY, out=out, engine=SerialEngine(), trials=12)
    assert {path.name for path in out.iterdir()} == {
        *("study.toml", JOURNAL, "trials.csv", "summary.json", "tune.png", "tune.svg")
    }
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["trials"] == 12
    assert found.best is not None
    cell = found.study.file.base | dict(found.best.settings)
    rate = cell["trace.requests_per_s"]
    again = kvrm.replay(
        kvrm.open_trace("azure-conv-like", rows=200).at_rate(rate),
        "graph-paged",
        keep=False,
        overrides={
            key.removeprefix("policy."): value
            for key, value in found.best.settings.items()
            if key.startswith("policy.")
        },
    ).summary
    assert found.best.values == (again["requests_per_s"]["steady"],)
    assert again["itl_s"]["p99"] <= 0.08


def wins_over_random(study: Any, seeds: range) -> tuple[int, float]:
    """How often the search ends better than a random one of as many cells, and by what factor in the mean."""
    engine, wins, sums = SerialEngine(), 0, {"tpe": 0.0, "random": 0.0}
    for seed in seeds:
        found = {name: kvrm.tune(study, engine=engine, sampler=name, seed=seed).best for name in sums}
        values = {name: best.values[0] if best is not None and best.values else 0.0 for name, best in found.items()}
        wins += values["tpe"] > values["random"]
        sums = {name: sums[name] + values[name] for name in sums}
    return wins, sums["tpe"] / sums["random"]


def test_tune_beats_a_random_search_of_as_many_cells() -> None:
    wins, factor = wins_over_random(with_tune(trials=36), range(3))
    assert wins >= 2
    assert factor > 1.03


@pytest.mark.long
def test_tune_beats_a_random_search_of_64_cells_on_the_documented_example() -> None:
    wins, factor = wins_over_random(REPO / "docs" / "studies" / "most-requests.toml", range(4))
    assert wins >= 3
    assert factor > 1.05


def test_a_study_says_what_it_is_by_its_fingerprint() -> None:
    study = tune_of(study_of(STUDY))
    assert dataclasses.replace(study, trials=500).fingerprint == study.fingerprint
    assert dataclasses.replace(study, seed=1).fingerprint != study.fingerprint
    other = {**STUDY, "axes": {**STUDY["axes"], "policy.schedule.slots": {"log_range": [8, 64]}}}
    assert tune_of(study_of(other)).fingerprint != study.fingerprint


def test_trials_that_a_constraint_excludes_are_counted_and_all_of_them_are_an_error(example: dict[str, Any]) -> None:
    rules = ["policy.pager.block_size_tokens > 8", "policy.schedule.order == 'fcfs'"]
    found = kvrm.tune({**STUDY, "constraints": rules}, engine=MadeUp(example))
    assert all(count > 0 for count in found.excluded.values())
    assert found.to_dict()["excluded"] == sum(found.excluded.values()) < len(found.trials)
    assert f"{found.excluded[rules[0]]} trials excluded by the constraint {rules[0]}" in found.to_text()
    with pytest.raises(ConfigError, match="constraints: each of the 24 trials is excluded: 24 by 'seed > 0'"):
        kvrm.tune({**STUDY, "constraints": ["seed > 0"]}, engine=MadeUp(example))

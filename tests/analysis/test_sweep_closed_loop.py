"""Cells of a study in a closed loop: how long users think is a key like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvrm
from kvrm_analysis.engines.engines import SerialEngine
from kvrm_analysis.studies.cell_rows import row_of
from kvrm_analysis.studies.study import load_study
from kvrm_analysis.studies.sweep import planned, run_plan

THINKS = ["constant:1", "exponential:4", "recorded:0"]
POOL = {"pool_blocks": 512}


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    lines = [f"{at / 4},{20 + at % 50},{3 + at % 40},s{at % 9}" for at in range(60)]
    path = tmp_path / "chats.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,session_id", *lines, ""]), encoding="utf-8")
    return path


def study(chats: Path, thinks: list[str], **base: Any) -> dict[str, Any]:
    base = {"trace": str(chats), "trace.turns": "delta", "model": "tiny-llama", "policy": "graph-paged", **POOL, **base}
    return {"base": base, "axes": {"driver": ["span", "closed-loop"], "trace.think": thinks}}


def test_a_cell_is_the_replay_that_its_settings_say(chats: Path) -> None:
    with planned(load_study(study(chats, THINKS, seed=7))) as plan:
        assert not plan.nothing_drawn
        cells = run_plan(plan, SerialEngine()).cells.to_pylist()
    assert [(row["status"], row["error"]) for row in cells] == [("done", None)] * 6
    for row in cells:
        trace = kvrm.open_trace(chats, turns="delta").with_think(row["trace.think"], seed=7)
        run = kvrm.replay(trace, "graph-paged", model="tiny-llama", driver=row["driver"], keep=False, seed=7, **POOL)
        expected = row_of(run.summary)
        assert {name: row[name] for name in expected} == expected


def test_a_seed_is_part_of_a_cell_where_it_draws_times(chats: Path) -> None:
    keys = []
    for think in ("constant:1", "exponential:4"):
        of_seeds = []
        for seed in (1, 2):
            with planned(load_study(study(chats, [think], seed=seed))) as plan:
                of_seeds.append(plan.keys)
                assert plan.nothing_drawn == (think == "constant:1")
        keys.append(of_seeds)
    assert keys[0][0] == keys[0][1]
    assert not set(keys[1][0]) & set(keys[1][1])
    assert len(set(keys[0][0])) == 2  # a driver each


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace.think": "soon"}, "think 'soon': must be constant:SECONDS"),
        ({"trace.think": None}, "needs the column think_ms"),
        ({"cluster": 2}, "a cluster runs with driver 'span'"),
    ],
)
def test_what_cannot_be_a_closed_loop_is_refused(chats: Path, changes: dict[str, Any], message: str) -> None:
    base = {**study(chats, [])["base"], "driver": "closed-loop", "trace.think": "constant:1", **changes}
    base = {name: value for name, value in base.items() if value is not None}
    with planned(load_study({"base": base, "axes": {"stop_at_s": [5.0]}})) as plan:
        (row,) = run_plan(plan, SerialEngine()).cells.to_pylist()
    assert row["status"] == "refused"
    assert message in row["error"]

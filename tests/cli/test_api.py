"""The public functions of `kvrm`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

import kvrm
from kvrm_sim.words import PrefillMode
from kvrm_traces.errors import InputError


def test_public_names() -> None:
    assert sorted(kvrm.__all__) == [
        "Capacities",
        "ClusterOptions",
        "Comparison",
        "Plots",
        "Replay",
        "ReplicaOptions",
        "Validation",
        "calibrate",
        "calibrate_from_steps",
        "capacity",
        "catalogue",
        "compare",
        "convert_trace",
        "diff",
        "explain",
        "fetch_trace",
        "fit_trace",
        "inspect_trace",
        "merge_traces",
        "open_trace",
        "plan",
        "plot",
        "plot_kinds",
        "replay",
        "report",
        "sensitivity",
        "sweep",
        "sweep_dry_run",
        "timeline",
        "tune",
        "validate",
    ]
    assert kvrm.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        _ = kvrm.tuna  # type: ignore[attr-defined]  # its absence is what is tested


def test_compare_returns_a_table_with_one_row_a_policy() -> None:
    trace = kvrm.open_trace("azure-conv-like", rows=50)
    done = kvrm.compare(trace, policies=["static", "kv-rm", "kv-rm"])
    table = done.to_pandas()
    assert isinstance(table, pd.DataFrame)
    assert len(table) == 3
    assert done.folder is None
    assert json.loads(done.to_json()) == done.to_dict()
    assert [run["policy"] for run in done.runs] == ["static", "kv-rm", "kv-rm"]


def test_a_policy_that_appears_twice_has_two_folders(tmp_path: Path) -> None:
    trace = kvrm.open_trace("azure-conv-like", rows=20)
    done = kvrm.compare(trace, ["kv-rm", "kv-rm"], out=tmp_path / "out")
    assert [result.folder for result in done.results] == [tmp_path / "out" / "kv-rm", tmp_path / "out" / "kv-rm-2"]


@pytest.mark.parametrize("written", [True, False])
def test_a_replay_gives_its_records(tmp_path: Path, written: bool) -> None:
    out = tmp_path / "a" if written else None
    trace = kvrm.open_trace("azure-conv-like", rows=50)
    shares: list[tuple[str, float]] = []
    done = kvrm.replay(trace, "kv-rm", out=out, progress=lambda name, share: shares.append((name, share)), window_s=0.5)
    assert len(done.requests()) == 50 == done.summary["counts"]["injected"]
    assert len(done.steps()) > 0
    assert len(done.pool()) > 0
    assert done.folder == out
    assert {name for name, _ in shares} == {"kv-rm"}
    assert all(0 <= share <= 1 for _, share in shares)
    assert shares[0] == ("kv-rm", 0.0), "told before the core is compiled, which may take a minute"


def test_no_policy_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="no policy"):
        kvrm.compare("azure-conv-like", [])


def test_a_plan_needs_no_run() -> None:
    plan = kvrm.plan("kv-rm", model="tiny-llama", overrides={"schedule.slots": 4})
    assert plan.slots == 4
    assert plan.pool_blocks > 0


@pytest.mark.parametrize("prefill", get_args(PrefillMode))
def test_every_policy_takes_every_way_to_prefill(prefill: PrefillMode) -> None:
    for policy in kvrm.catalogue("policies"):
        assert kvrm.plan(policy, prefill=prefill).pool_blocks > 0


def test_a_run_that_keeps_no_tables_says_so() -> None:
    done = kvrm.replay(kvrm.open_trace("azure-conv-like", rows=20), keep=False)
    assert done.summary["counts"]["injected"] == 20
    with pytest.raises(InputError, match="requests: the tables of this run were not kept"):
        done.requests()


@pytest.mark.parametrize("stop_at_s", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_stop_is_a_time_of_the_simulated_clock(stop_at_s: float) -> None:
    with pytest.raises(InputError, match="stop_at_s"):
        kvrm.replay("azure-conv-like", stop_at_s=stop_at_s)
    with pytest.raises(InputError, match="stop_at_s"):
        kvrm.compare("azure-conv-like", stop_at_s=stop_at_s)


def test_a_trace_is_never_converted_onto_itself(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n")
    with pytest.raises(InputError, match="is the trace that is read"):
        kvrm.convert_trace(source, tmp_path / "." / "t.csv", force=True)
    assert source.read_text().startswith("arrival_s")

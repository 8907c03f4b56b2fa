"""What the numbers of a run mean, from requests whose token times are known (cases G, and A's on lengths)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrm_sim import state as st
from kvrm_sim.engine import run
from kvrm_sim.meters import bucket_ns
from kvrm_traces import open_trace
from tests.sim.core_runs import CoreRun
from tests.sim.small_replays import S, contiguous, core, paged, times, tiny, trace_of


def values(run_: CoreRun, which: int) -> list[float]:
    """The values in a histogram in seconds, ascending, as the middles of their buckets (0.1% wide)."""
    counts = run_.replica.arrays.histograms[which]
    return [bucket_ns(int(bucket)) / S for bucket in np.flatnonzero(counts) for _ in range(counts[bucket])]


@pytest.mark.core
def test_the_first_token_is_no_gap() -> None:
    """G01: tokens at 1.0, 1.1, 1.2 s: ITL [0.1, 0.1]."""
    # A step of 0.1 s, and 0.1 s for each of 9 prompt tokens.
    run_ = core(paged(), (0, 9, 3), costs={"host_step_ns": S / 10, "prefill_token_ns": S / 10})
    assert (run_.rows[0].first_token_ns, run_.rows[0].finish_ns) == (S, 12 * S // 10)
    assert times(run_, st.H_ITL) == (2, 2 * S / 10, S // 10, S // 10)
    assert times(run_, st.H_TTFT) == (1, S, S, S)


@pytest.mark.core
def test_time_per_output_token_with_and_without_the_first() -> None:
    """G02: TTFT 1.0, 11 tokens, end 1.5: exclusive 0.0500, inclusive 0.1364."""
    run_ = core(paged(), (0, 19, 11), costs={"host_step_ns": S / 20, "prefill_token_ns": S / 20})
    assert run_.rows[0].finish_ns == 15 * S // 10
    assert times(run_, st.H_TPOT_EXCLUSIVE)[:2] == (1, S / 20)
    assert times(run_, st.H_TPOT_INCLUSIVE)[:2] == (1, 15 * S // 110)


def test_both_forms_are_named_in_the_summary(tmp_path: Path) -> None:
    """G02: and both are in the output under names of their own."""
    summary = run(trace_of(tmp_path, (0, 19, 11)), tiny("dynamic", step_ns=S / 20)).summary
    assert summary["tpot_exclusive_s"]["mean"] == pytest.approx(0.05)
    assert summary["tpot_inclusive_s"]["mean"] == pytest.approx(0.05), "here the first token costs as much as others"
    assert summary["ttft_s"]["mean"] == pytest.approx(0.05)


@pytest.mark.core
def test_the_mean_over_requests_is_not_the_mean_over_tokens() -> None:
    """G03: 2 tokens with a gap of 1.0 s, 101 tokens with gaps of 0.01 s: 0.505 by request, 0.0198 by token."""
    # A decode step reads the whole reservation: 10,100 tokens of the first request, 101 of the second.
    config = contiguous("oracle", pool_blocks=700, read_what="reserved", read_extent="bucket")
    run_ = core(config, (0, 10_099, 2), (10 * S, 1, 101), costs={"attention_token_ns": S / 10_100})
    by_request, by_token = times(run_, st.H_TPOT_EXCLUSIVE), times(run_, st.H_ITL)
    assert by_request == (2, 1.01 * S, S // 100, S)
    assert by_request[1] / by_request[0] / S == pytest.approx(0.505)
    assert by_token[:2] == (101, 2 * S)
    assert by_token[1] / by_token[0] / S == pytest.approx(0.0198, abs=5e-6)


def all_values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in all_values(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in all_values(inner)]
    return [value]


def test_one_token_outputs_have_no_gap_and_no_time_per_token(tmp_path: Path) -> None:
    """G04: n = 0 and null, never 0 and never NaN, in the file too."""
    folder = tmp_path / "run"
    summary = run(trace_of(tmp_path, *[(at * S, 50, 1) for at in range(5)]), tiny("graph-paged"), out=folder).summary
    for metric in ("itl_s", "tpot_exclusive_s", "tpot_inclusive_s"):
        assert summary[metric]["n"] == 0
        assert {summary[metric][name] for name in ("mean", "p50", "p90", "p99", "max")} == {None}
    assert summary["ttft_s"]["n"] == summary["e2e_s"]["n"] == 5
    assert summary["spikes"] is None
    text = (folder / "summary.json").read_text()
    leaves = all_values(json.loads(text))
    assert not any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in leaves)
    steps = run(trace_of(tmp_path, (0, 50, 1)), tiny("graph-paged")).steps.to_pylist()
    assert [(step["gaps"], step["itl_p50_ns"], step["itl_max_ns"]) for step in steps] == [(0, None, None)]


@pytest.mark.core
def test_the_first_token_comes_with_the_last_chunk() -> None:
    """G07: chunks of 0.9 and 1.3 s: TTFT 2.2 s, at the end of the last one."""
    # 0.1 s for each token that a chunk reads: 9, then 9 + 4 of the prompt of 13.
    config = paged(slots=1, token_budget=9)
    run_ = core(config, (0, 13, 2), costs={"prefill_token_ns": S / 10})
    assert [step["duration_ns"] for step in run_.steps[:2]] == [9 * S // 10, 13 * S // 10]
    assert times(run_, st.H_TTFT) == (1, 22 * S / 10, 22 * S // 10, 22 * S // 10)


@pytest.mark.core
def test_a_start_burst_is_seen_in_the_first_tokens() -> None:
    """G08: 8 users start at 0, prefill 0.1 s each in series: TTFT 0.1 … 0.8 s."""
    config = paged(prefill="separate", token_budget=10)
    run_ = core(config, *[(0, 10, 2)] * 8, costs={"host_step_ns": S / 10})
    assert [row.first_token_ns for row in run_.rows] == [S * n // 10 for n in range(1, 9)]


def test_the_steady_window_stands_beside_the_whole_run(tmp_path: Path) -> None:
    """G08: a burst of 100 at the start, then one a second for 200 s: the steady rate is that of the stream."""
    rows = [(0, 10, 2)] * 100 + [(at * S, 10, 2) for at in range(1, 201)]
    summary = run(trace_of(tmp_path, *rows), tiny("dynamic", step_ns=S / 100)).summary
    assert summary["steady_window_s"] == [20.0, 200.0]
    rates = summary["requests_per_s"]
    assert rates["whole"] == pytest.approx(300 / 200.02)
    assert rates["steady"] == pytest.approx(1.0)


@pytest.mark.core
def test_a_percentile_is_one_of_the_values() -> None:
    """G10: of 10, 20 and 30 s the p99 by nearest rank is 30, never above the maximum."""
    run_ = core(paged(slots=1), *[(0, 10, 1)] * 3, costs={"host_step_ns": 10.0 * S})
    assert values(run_, st.H_TTFT) == pytest.approx([10, 20, 30], rel=0.001)
    assert times(run_, st.H_TTFT)[3] == 30 * S


def test_percentiles_of_few_requests_are_flagged(tmp_path: Path) -> None:
    """G10: the summary says 30 s, n = 3, and that n is too small for p99 and p90."""
    config = tiny("dynamic", step_ns=10 * S, overrides={"schedule.slots": 1})
    ttft = run(trace_of(tmp_path, *[(0, 10, 1)] * 3), config).summary["ttft_s"]
    assert (ttft["n"], ttft["p99"], ttft["max"]) == (3, 30.0, 30.0)
    assert ttft["p50"] == pytest.approx(20, rel=0.0005)
    assert [flag.split(":")[0] for flag in ttft["flags"]] == ["p90", "p99"]
    assert ttft["p99_interval"] is None


def test_each_metric_says_how_many_it_counted(tmp_path: Path) -> None:
    """G12: 10 in, 3 finish before the stop: 3 in E2E, 4 first tokens, 4 admitted, 7 censored and marked."""
    config = tiny("dynamic", step_ns=S, overrides={"schedule.slots": 1})
    summary = run(trace_of(tmp_path, *[(0, 10, 3)] * 10), config, stop_at_s=10.5).summary
    counted = {name: summary[name]["n"] for name in ("queue_s", "ttft_s", "e2e_s", "tpot_exclusive_s")}
    assert counted == {"queue_s": 4, "ttft_s": 4, "e2e_s": 3, "tpot_exclusive_s": 3}
    assert summary["counts"]["unfinished"] == 7
    assert any(line.startswith("unfinished: 7 of 10 requests censored") for line in summary["warnings"])


def test_the_order_of_the_cells_of_a_sweep_does_not_matter(tmp_path: Path) -> None:
    """G13: each run starts from an empty pool; nothing is left from the one before."""
    trace = trace_of(tmp_path, *[(at * 2_000_000, 100 + at, 30) for at in range(40)])
    policies = ["static", "kv-rm", "graph-paged", "orca-pow2", "kv-rm-delta"]

    def cell(policy: str) -> dict[str, Any]:
        summary = run(trace, tiny(policy, pool_blocks=130)).summary
        summary.pop("sim")
        return summary

    forwards = {policy: cell(policy) for policy in policies}
    backwards = {policy: cell(policy) for policy in reversed(policies)}
    assert forwards == backwards
    assert cell("kv-rm") == forwards["kv-rm"]


def test_a_request_cut_by_the_context_limit_counts_what_it_delivered(tmp_path: Path) -> None:
    """A15: limit 1024, 1000 in, 100 out: 24 tokens everywhere, and "ended by the limit" is counted."""
    config = tiny("dynamic", step_ns=S, over_limit="truncate")
    result = run(trace_of(tmp_path, (0, 1000, 100)), config)
    (row,) = result.requests.to_pylist()
    assert (row["outcome"], row["reason"]) == ("truncated", "context_limit")
    assert (row["output_tokens"], row["delivered_tokens"]) == (100, 24)
    assert result.summary["counts"]["truncated"] == 1
    assert result.summary["delivered_tokens"] == 24
    assert result.summary["output_tokens_per_s"]["whole"] == pytest.approx(1.0), "24 tokens in 24 steps of 1 s"
    assert any(line.startswith("truncated: 1 of 1") for line in result.warnings)


@pytest.mark.parametrize("recorded", [1, 16, 17, 20, 585])
def test_recorded_lengths_are_delivered_exactly(recorded: int, tmp_path: Path) -> None:
    """A16, A17: no cap stands between: exactly the recorded tokens, and the reason is the end of the trace's record."""
    (row,) = run(trace_of(tmp_path, (0, 30, recorded)), tiny("kv-rm")).requests.to_pylist()
    assert (row["delivered_tokens"], row["outcome"], row["reason"]) == (recorded, "completed", "trace_end")


def test_replaying_the_converted_trace_is_the_identity(tmp_path: Path) -> None:
    """A20: 200 requests to Parquet and back: the same bytes of requests, steps and pool."""
    trace = open_trace("azure-conv-like", rows=200, seed=42).speedup(3)
    trace.to_parquet(tmp_path / "exported.parquet")
    config = tiny("kv-rm", pool_blocks=400, over_limit="truncate")
    for name, source in (("first", trace), ("second", open_trace(tmp_path / "exported.parquet"))):
        run(source, config, out=tmp_path / name)
    for file in ("requests.parquet", "steps.parquet", "pool.parquet"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes(), file


def test_replaying_what_a_run_recorded_is_the_identity(tmp_path: Path) -> None:
    """A20: the simulator's own requests.parquet as a trace gives the same completions at the same times."""
    config = tiny("graph-paged", pool_blocks=300, over_limit="truncate")
    first = run(open_trace("azure-conv-like", rows=200, seed=42).speedup(5), config)
    rows = sorted(first.requests.to_pylist(), key=lambda row: row["row"])
    assert {row["outcome"] for row in rows} >= {"completed", "truncated"}
    exported = [(row["arrival_ns"], row["prompt_tokens"], row["output_tokens"]) for row in rows]
    second = run(trace_of(tmp_path, *exported), config)
    assert second.requests.equals(first.requests)

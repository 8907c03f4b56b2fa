"""The RUN object: every number from made-up arrays whose answer is known."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kvrm_sim.distribution import Distribution
from kvrm_sim.errors import InvariantError
from kvrm_sim.memory import plan_memory
from kvrm_sim.meters import BUCKETS, bucket_ns, bucket_of
from kvrm_sim.state import (
    H_E2E,
    H_ITL,
    H_QUEUE,
    H_TPOT_EXCLUSIVE,
    H_TPOT_INCLUSIVE,
    H_TTFT,
    H_WINDOW_P99,
    NEVER,
)
from tests.sim.run_arrays import MS, S, bucket_indices, make_config, make_trace, summary_of, tallied

REQUIRED = {
    "policy": str,
    "model": str,
    "hardware": str,
    "calibrated": bool,
    "trace": dict,
    "counts": dict,
    "output_tokens_per_s": dict,
    "requests_per_s": dict,
    "reserved_kv_bytes": dict,
    "allocated_kv_bytes": dict,
    "used_kv_bytes": dict,
    "kv_footprint_bytes": int,
    "pool_blocks": int,
    "transfer": dict,
    "captures": int,
    "capture_stall_s": float,
    "preemptions": int,
    "recomputed_tokens": int,
    "warnings": list,
    "sim": dict,
}


def distribution(values_ns: Any) -> Distribution:
    tallies, histograms = tallied({0: values_ns})
    return Distribution.of(tallies[0], histograms[0])


def codes(run: dict[str, Any]) -> set[str]:
    return {line.split(":")[0] for line in run["warnings"]}


def all_numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for entry in value.values() for number in all_numbers(entry)]
    if isinstance(value, list):
        return [number for entry in value for number in all_numbers(entry)]
    return [value] if isinstance(value, float) else []


def test_the_fields_of_the_interface_are_there_and_plain_json() -> None:
    run = summary_of({H_TTFT: [S], H_ITL: [MS] * 200})
    assert {name: type(run[name]) for name in REQUIRED} == REQUIRED
    for metric in ("ttft_s", "itl_s", "tpot_exclusive_s", "tpot_inclusive_s", "e2e_s", "queue_s"):
        assert set(run[metric]) >= {"n", "mean", "p50", "p90", "p99", "max"}
    assert set(run["trace"]) >= {"name", "sha256", "rows"}
    assert set(run["sim"]) == {"steps", "span_s", "wall_s", "requests_per_wall_s", "peak_rss_bytes"}
    assert {"block_fill", "padding_waste", "prefix_hit_tokens", "spikes"} <= set(run)
    assert json.loads(json.dumps(run, allow_nan=False)) == run


def test_buckets_here_and_in_the_core_agree() -> None:
    values = [0, 1, 2, 3, 1023, 1024, 1025, 3_300_000, 10**9, 2**49, 2**50, 2**62]
    assert bucket_indices(values).tolist() == [int(bucket_of(value)) for value in values]


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_within_a_tenth_of_a_percent_of_nearest_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 5000))
    values = np.maximum(1, rng.lognormal(rng.uniform(2, 20), rng.uniform(0.1, 3), count)).astype(np.int64)
    found = distribution(values)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        exact = np.quantile(values, q, method="inverted_cdf")
        value = found.percentile_ns(name)
        assert value is not None
        assert abs(value - exact) <= max(0.001 * exact, 0.5)
        assert values.min() <= value <= values.max()
    assert found.to_dict()["mean"] == pytest.approx(values.mean() / 1e9, rel=1e-12)


def test_no_lowest_edge_hides_short_tokens() -> None:
    """G15: 1,000 tokens of 3.3 ms have p50 = 3.3 ms."""
    itl = summary_of({H_ITL: [3_300_000] * 1000})["itl_s"]
    assert (itl["p50"], itl["p99"], itl["max"]) == (0.0033, 0.0033, 0.0033)


def test_percentiles_of_few_values_are_ranks_and_flagged() -> None:
    """G10: p99 of [10, 20, 30] is 30 (nearest rank), never above the maximum; flagged below n = 100."""
    few = distribution([10, 20, 30])
    assert [few.percentile_ns(name) for name in ("p50", "p90", "p99")] == pytest.approx([20, 30, 30], rel=5e-4)
    assert few.percentile_ns("p99") <= 30  # type: ignore[operator]  # not None: n = 3
    assert few.unsupported() == ["p90", "p99"]
    assert distribution(range(1, 9)).to_dict()["flags"] == ["p90: n = 8 is too small", "p99: n = 8 is too small"]
    assert distribution(range(1, 100)).unsupported() == ["p99"]
    assert distribution(range(1, 101)).unsupported() == []
    assert few.to_dict()["p99_interval"] is None


def test_the_interval_of_p99_holds_the_true_one_as_often_as_it_says() -> None:
    """G10: an interval is shown beside p99."""
    rng = np.random.default_rng(1)
    true = -np.log(0.01) * 1e9
    held = 0
    for _ in range(200):
        interval = distribution((rng.exponential(1e9, 2000)).astype(np.int64)).interval_ns("p99")
        assert interval is not None
        held += interval[0] <= true <= interval[1]
    assert 0.92 <= held / 200 <= 0.99


def test_times_beyond_the_last_bucket_keep_their_exact_maximum() -> None:
    found = distribution([2**51, 2**52])
    assert found.percentile_ns("p99") == 2**52
    assert bucket_ns(BUCKETS - 1) < 2**50


def test_first_token_times_stay_out_of_the_gaps() -> None:
    """G01: tokens at 1.0, 1.1, 1.2 s: TTFT 1.0, and two gaps of 0.1."""
    run = summary_of({H_TTFT: [S], H_ITL: [100 * MS, 100 * MS]})
    assert (run["ttft_s"]["n"], run["ttft_s"]["max"]) == (1, 1.0)
    assert (run["itl_s"]["n"], run["itl_s"]["mean"], run["itl_s"]["max"]) == (2, 0.1, 0.1)


def test_tpot_is_given_both_ways() -> None:
    """G02: TTFT 1.0 s, 11 tokens, end 1.5 s: exclusive 0.0500, inclusive 0.1364."""
    run = summary_of({H_TPOT_EXCLUSIVE: [500 * MS // 10], H_TPOT_INCLUSIVE: [1500 * MS // 11]})
    assert run["tpot_exclusive_s"]["mean"] == pytest.approx(0.0500, abs=1e-6)
    assert run["tpot_inclusive_s"]["mean"] == pytest.approx(0.1364, abs=5e-5)


def test_gaps_are_weighted_by_token_and_tpot_by_request() -> None:
    """G03: one gap of 1.0 s and a hundred of 0.01 s: 0.0198 by token, 0.505 by request."""
    run = summary_of({H_ITL: [S] + [10 * MS] * 100, H_TPOT_EXCLUSIVE: [S, 10 * MS]})
    assert run["itl_s"]["mean"] == pytest.approx(0.0198, abs=5e-5)
    assert run["tpot_exclusive_s"]["mean"] == pytest.approx(0.505)


def test_what_does_not_exist_is_null_with_n_zero() -> None:
    """G04: one-token outputs have no gap: n = 0 and null, never 0, never NaN."""
    run = summary_of({H_TTFT: [S], H_E2E: [S]})
    for metric in ("itl_s", "tpot_exclusive_s"):
        assert run[metric] == {
            "n": 0, "mean": None, "p50": None, "p90": None, "p99": None, "max": None, "p99_interval": None, "flags": []
        }  # fmt: skip
    assert run["spikes"] is None
    assert run["padding_waste"] is None
    assert run["transfer"]["blocks_per_group_mean"] is None
    assert run["prefix_hit_tokens"] is None
    assert all(np.isfinite(all_numbers(run)))


def test_a_run_in_which_nothing_arrived_divides_by_nothing() -> None:
    run = summary_of(injected=0, completed=0, last_finish_ns=0, now_ns=0, steps=0, steady_finishes=0)
    assert run["output_tokens_per_s"] == {"whole": None, "steady": None}
    assert run["reserved_kv_bytes"]["mean"] is None
    assert run["overloaded"] is None
    assert run["sim"]["span_s"] == 0.0


def test_every_metric_has_its_own_n_and_censored_requests_are_named() -> None:
    """G12, E02: 10 injected, 3 finished: e2e has n = 3, ttft n = 5, and 7 unfinished are in no end-to-end latency."""
    run = summary_of(
        {H_TTFT: [S] * 5, H_E2E: [2 * S] * 3, H_QUEUE: [0] * 6}, injected=10, completed=3, unfinished=7, now_ns=50 * S
    )
    assert (run["queue_s"]["n"], run["ttft_s"]["n"], run["e2e_s"]["n"]) == (6, 5, 3)
    assert run["audit"] == "injected 10 = 3 completed + 0 rejected + 0 truncated + 7 unfinished"
    assert "unfinished" in codes(run)
    assert run["sim"]["span_s"] == 50.0
    assert run["completed_share"] == 0.3


def test_lost_requests_are_an_error() -> None:
    with pytest.raises(InvariantError, match="not conserved: injected 10 = 3 completed"):
        summary_of(injected=10, completed=3)


def test_what_was_dropped_or_cut_stands_beside_throughput() -> None:
    """A15, E01: a request cut at the limit counts its 24 delivered tokens; drops are warnings."""
    run = summary_of(injected=3, completed=1, truncated=1, rejected=1, delivered_tokens=124, last_finish_ns=100 * S)
    assert run["output_tokens_per_s"]["whole"] == pytest.approx(1.24)
    assert run["requests_per_s"]["whole"] == pytest.approx(0.02)
    assert {"truncated", "rejected"} <= codes(run)
    assert "rejected" not in codes(summary_of())


def test_steady_rates_have_bounds_and_need_a_hundred_finishes() -> None:
    run = summary_of()
    assert run["steady_window_s"] == [10.0, 100.0]
    assert run["output_tokens_per_s"]["steady"] == pytest.approx(40_000 / 90)
    assert run["requests_per_s"]["steady"] == pytest.approx(10.0)
    few = summary_of(steady_finishes=99)
    assert few["output_tokens_per_s"]["steady"] is None
    assert few["output_tokens_per_s"]["whole"] is not None
    unknown = summary_of(steady_until_ns=NEVER)
    assert (unknown["steady_window_s"], unknown["requests_per_s"]["steady"], unknown["overloaded"]) == (None,) * 3


def test_memory_is_weighted_with_time_from_first_arrival_to_last_finish() -> None:
    """B15: reserved and used apart. 10 blocks for half the span, idle the other half."""
    half = 55.0 * S
    plan = plan_memory(make_config())
    run = summary_of(
        acc_reserved=40 * half, acc_allocated=10 * half, acc_used=100 * half, acc_running=4 * half,
        peak_reserved_blocks=40, peak_allocated_blocks=10, peak_used_tokens=100, peak_running=4,
    )  # fmt: skip
    assert run["reserved_kv_bytes"] == {"mean": 20 * plan.block_bytes, "peak": 40 * plan.block_bytes}
    assert run["allocated_kv_bytes"]["mean"] == 5 * plan.block_bytes
    assert run["used_kv_bytes"] == {"mean": 50 * plan.kv_bytes_per_token, "peak": 100 * plan.kv_bytes_per_token}
    assert run["running"] == {"mean": 2.0, "peak": 4}
    assert run["kv_footprint_bytes"] == run["pool_bytes"] + run["staging_bytes"] + run["graphs_bytes"]


def test_fill_counts_the_tokens_in_held_blocks() -> None:
    """B19: 17-token prompts in blocks of 16 fill 17 of 32 slots, 53.1%."""
    run = summary_of(acc_allocated=2.0 * S, acc_used=17.0 * S)
    assert run["block_fill"] == pytest.approx(0.531, abs=5e-4)


def test_transfers_are_per_decode_step_and_in_bytes() -> None:
    plan = plan_memory(make_config())
    transfer = summary_of(groups=800, moved_blocks=3200, needed_tokens=50_000, submit_ns=MS, move_ns=2 * S)["transfer"]
    assert transfer["groups_per_step_mean"] == 2.0
    assert transfer["blocks_per_group_mean"] == 4.0
    assert transfer["bytes_moved"] == 3200 * plan.block_bytes
    assert transfer["bytes_needed"] == 50_000 * plan.kv_bytes_per_token
    assert (transfer["submit_s"], transfer["move_s"]) == (0.001, 2.0)


def test_padding_and_recomputation_are_shares() -> None:
    run = summary_of(padded_rows=200, padded_live_rows=150, recomputed_tokens=1000, prefill_tokens=50_000)
    assert run["padding_waste"] == 0.25
    assert run["recompute_tax"] == 0.01
    assert summary_of(config=make_config(prefill="none"), recomputed_tokens=1000)["recompute_tax"] is None


def test_spikes_are_windows_far_above_the_median_gap() -> None:
    gaps = [10 * MS] * 1000
    run = summary_of({H_ITL: gaps, H_WINDOW_P99: [11 * MS] * 95 + [29 * MS] + [31 * MS] * 3 + [900 * MS]})
    assert (run["spikes"], run["spike_windows"]) == (4, 100)


@pytest.mark.parametrize(
    ("waiting", "overloaded"),
    [
        (np.zeros(10), False),
        (np.arange(10) * 20.0, True),  # the backlog grows all along
        ([0, 0, 0, 0, 0, 0, 0, 10, 40, 90], True),  # it grows at the end
        ([30, 36, 33, 37, 31, 35, 36, 33, 35, 36], False),  # a queue, but a stable one
        ([0, 0, 0, 300, 320, 310, 300, 290, 280, 270], True),  # shrinks at last, but is far from served
        ([0, 0, 400, 200, 0, 0, 0, 10, 20, 40], False),  # a burst in the middle was worse
        ([0, 0, 0, 0, 0, 0, 0, 0.1, 0.2, 0.9], False),  # less than one request
        ([0, 0, 0, 0, 0, 0, 0, 0.5, 1, 3], False),  # less than 0.5% of 1,000 requests
    ],
)
def test_overload_is_a_backlog_that_grows_or_is_large_at_the_last_arrival(
    waiting: list[float], overloaded: bool
) -> None:
    run = summary_of(waiting_means=waiting)
    assert run["overloaded"] is overloaded
    assert ("overloaded" in codes(run)) is overloaded


def test_serving_longer_than_arrivals_came_is_overload_too() -> None:
    assert summary_of(last_finish_ns=201 * S, peak_waiting=500)["overloaded"] is True
    assert summary_of(last_finish_ns=201 * S, peak_waiting=1)["overloaded"] is False
    assert summary_of(last_finish_ns=199 * S, peak_waiting=500)["overloaded"] is False


def test_a_pool_that_never_fills_is_said() -> None:
    """A06: below half of the pool, policies that differ in memory cannot differ."""
    blocks = plan_memory(make_config()).pool_blocks
    assert "pool_underused" in codes(summary_of(peak_allocated_blocks=blocks // 2 - 1))
    assert "pool_underused" not in codes(summary_of(peak_allocated_blocks=blocks // 2 + 1))


def test_caveats_name_what_the_figures_rest_on() -> None:
    """E11: a profile that was not measured says uncalibrated."""
    run = summary_of(
        {H_TTFT: [S] * 5},
        config=make_config(prefill="none"),
        trace=make_trace(rows=1500, rejected={"zero_prompt": 3}, columns=("arrival_ns", "prefix_hashes")),
        off_ladder_steps=3,
        over_capacity_steps=2,
    )
    assert run["calibrated"] is False
    assert codes(run) >= {
        "uncalibrated", "prefill_none", "off_ladder", "over_capacity", "trace_rows_refused", "stopped",
        "prefix_sharing", "small_n",
    }  # fmt: skip
    assert run["prefix_hit_tokens"] == 0
    assert any("500 of 1,500" in line for line in run["warnings"])


def test_only_sim_depends_on_the_machine_that_simulates() -> None:
    """E07: no wall clock outside `sim`."""
    run = summary_of({H_TTFT: [S] * 200})
    again = summary_of({H_TTFT: [S] * 200})
    assert run == again
    assert [name for name in run if "wall" in json.dumps(run[name])] == ["sim"]
    assert run["sim"]["requests_per_wall_s"] == 2000.0


def test_burstiness_is_carried_when_known() -> None:
    assert summary_of()["burstiness"] is None
    assert summary_of(burstiness={"gap_cv": 13.1})["burstiness"] == {"gap_cv": 13.1}

"""Prefill and decode on different replicas: each request served once, the transfer in the gap that it belongs to."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import run
from kvrm_sim.errors import ConfigError, InputError
from kvrm_sim.memory import plan_memory
from kvrm_sim.result import RunResult
from kvrm_sim.split import Link, decode_config, run_split
from kvrm_traces import open_trace
from tests.sim.small_replays import S, random_rows, steady_hardware, tiny, trace_of


def linked(latency_ns: float, *, step_ns: float = S, **settings: Any) -> ReplicaConfig:
    """Steps of 1 s and a link that takes ``latency_ns``, whatever it carries."""
    config = tiny("dynamic", **settings)
    values = steady_hardware(step_ns).to_dict()
    values["peer_latency_ns"]["value"] = latency_ns
    return config.model_copy(update={"hardware": type(config.hardware)(**values)})


def by_row(result: RunResult) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.requests.sort_by("row").to_pylist()
    return found


def test_a_request_by_hand(tmp_path: Path) -> None:
    """Arrives at 0; its prompt takes a step of 1 s; the link 300 ms and the 1 ns that nothing is sent faster than;
    three more tokens take 3 s.
    """
    result = run_split(trace_of(tmp_path, (0, 40, 4)), linked(0.3 * S), prefill_replicas=1, decode_replicas=1)
    (row,) = by_row(result)
    assert (row["first_token_ns"], row["transfer_ns"], row["finish_ns"]) == (S, 3 * S // 10 + 1, 43 * S // 10 + 1)
    assert (row["outcome"], row["delivered_tokens"], row["transfer_groups"]) == ("completed", 4, 1)
    summary = result.summary
    assert summary["ttft_s"]["mean"] == 1.0
    assert (summary["itl_s"]["n"], summary["itl_s"]["max"]) == (3, 1.300000001), "the first gap holds the transfer"
    assert summary["itl_s"]["mean"] == pytest.approx(3.3 / 3)
    assert summary["e2e_s"]["mean"] == pytest.approx(4.3)
    assert summary["tpot_exclusive_s"]["mean"] == pytest.approx(1.1)
    assert summary["cluster"]["kv_transfer"]["n"] == 1


def slow_link(token_ns: float, **settings: Any) -> ReplicaConfig:
    """Steps of 1 s, a link without latency on which a token takes so long, and segments nothing."""
    config = linked(1.0, **settings)
    values = config.hardware.to_dict()
    values["peer_bytes_per_s"]["value"] = 1e9 * config.rank_kv_bytes_per_token / token_ns
    values["copy_segment_ns"]["value"] = 1e-6
    return config.model_copy(update={"hardware": type(config.hardware)(**values)})


def test_transfers_of_a_pair_share_its_link_and_pairs_share_nothing(tmp_path: Path) -> None:
    """Three prompts of 40 tokens end in one step; alone each takes 2 s."""
    rows, config = [(0, 40, 3)] * 3, slow_link(S / 20)
    one = by_row(run_split(trace_of(tmp_path, *rows), config, prefill_replicas=1, decode_replicas=1))
    assert [round(row["transfer_ns"] / S, 6) for row in one] == [6, 6, 6]
    several = by_row(run_split(trace_of(tmp_path, *rows), config, prefill_replicas=1, decode_replicas=3))
    assert [round(row["transfer_ns"] / S, 6) for row in several] == [2, 2, 2]
    assert [row["decode_replica"] for row in several] == [1, 2, 3], "what is under way counts"


def test_latency_is_nobodys_share(tmp_path: Path) -> None:
    rows = by_row(
        run_split(trace_of(tmp_path, *[(0, 40, 3)] * 3), linked(2 * S), prefill_replicas=1, decode_replicas=1)
    )
    assert [round(row["transfer_ns"] / S, 3) for row in rows] == [2, 2, 2]


def test_what_has_not_arrived_when_the_run_stops_took_no_time_yet(tmp_path: Path) -> None:
    result = run_split(
        trace_of(tmp_path, (0, 40, 3)), linked(2 * S), prefill_replicas=1, decode_replicas=1, stop_at_s=2.5
    )
    (row,) = by_row(result)
    assert (row["outcome"], row["decode_replica"], row["transfer_ns"]) == ("unfinished", 1, None)
    assert result.summary["cluster"]["kv_transfer"]["n"] == 0


def test_a_transfer_takes_segments_and_bytes() -> None:
    config = ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm")
    h = config.hardware.values()
    seconds = 5 * 32 * h["copy_segment_ns"] / 1e9 + 1000 * 131_072 / h["peer_bytes_per_s"]
    assert Link.of(config).alone_ns(1000, 5) == pytest.approx(seconds * 1e9, rel=1e-12)
    assert Link.of(config.override({"policy.layout": "block_major"})).segments_a_run == 1


def test_one_token_needs_no_decode(tmp_path: Path) -> None:
    result = run_split(trace_of(tmp_path, (0, 40, 1), (0, 40, 2)), linked(S), prefill_replicas=1, decode_replicas=1)
    first, second = by_row(result)
    assert (first["finish_ns"], first["decode_replica"], first["transfer_ns"]) == (S, None, None)
    assert second["finish_ns"] == 3 * S + 1
    assert result.summary["counts"]["completed"] == 2


@pytest.mark.parametrize("policy", ["dynamic", "graph-paged", "kv-rm", "kv-rm-delta"])
def test_every_request_is_served_once_with_all_its_tokens(policy: str, tmp_path: Path) -> None:
    """Invariants are checked on every replica after every step; pools are so small that decodes are preempted."""
    trace = trace_of(tmp_path, *random_rows(random.Random(policy), 80))
    result = run_split(
        trace, tiny(policy, pool_blocks=70, step_ns=1e6), prefill_replicas=2, decode_replicas=2, router="least-tokens"
    )
    rows, summary = by_row(result), result.summary
    assert [row["row"] for row in rows] == list(range(trace.info.rows))
    done = [row for row in rows if row["outcome"] == "completed"]
    assert summary["counts"]["completed"] == len(done) == trace.info.rows - summary["counts"]["rejected"]
    assert [row["delivered_tokens"] for row in done] == [row["output_tokens"] for row in done]
    assert summary["delivered_tokens"] == sum(row["delivered_tokens"] for row in done)
    assert summary["itl_s"]["n"] == summary["delivered_tokens"] - len(done)
    for row in done:
        assert row["arrival_ns"] <= row["admitted_ns"] <= row["first_token_ns"] <= row["finish_ns"]
        if row["output_tokens"] > 1:
            assert row["finish_ns"] - row["first_token_ns"] > row["transfer_ns"] > 0
    finishes = [row["finish_ns"] for row in result.requests.to_pylist() if row["finish_ns"] is not None]
    assert [f for f in finishes if f] == sorted(finishes)
    e2e = np.array([row["finish_ns"] - row["arrival_ns"] for row in done])
    assert summary["e2e_s"]["n"] == len(e2e)
    assert summary["e2e_s"]["mean"] == pytest.approx(e2e.mean() / 1e9, rel=1e-12)
    # Gaps of a request add up to the time from its first token to its last.
    gaps = sum(row["finish_ns"] - row["first_token_ns"] for row in done)
    assert summary["itl_s"]["mean"] * summary["itl_s"]["n"] == pytest.approx(gaps / 1e9, rel=1e-9)
    assert {row["kind"] for row in summary["cluster"]["per_replica"]} == {"prefill", "decode"}
    assert any(line.startswith("decode_preempted") for line in result.warnings) == (summary["preemptions"] > 0)


def test_an_instant_link_is_a_replica_that_prefills_alone(tmp_path: Path) -> None:
    """One request at a time, nothing to share: both ways take the same steps but for the nanosecond of the link."""
    trace = trace_of(tmp_path, *[(at * 100 * S, 40 + at, 2 + at % 7) for at in range(20)])
    config = linked(1e-9)
    single = run(trace, config).requests.sort_by("row")
    split = run_split(trace, config, prefill_replicas=1, decode_replicas=1).requests.sort_by("row")
    assert split["first_token_ns"].equals(single["first_token_ns"])
    late = pc.subtract(split["finish_ns"], single["finish_ns"]).to_pylist()
    assert late == [1] * 20


def test_prefixes_are_found_where_prompts_are_computed(tmp_path: Path) -> None:
    """The same prompt of three whole hash blocks again and again: of two prefill replicas one keeps it."""
    rows = [
        {"arrival_ns": at * 10 * S, "prompt_tokens": 50, "output_tokens": 5, "prefix_hashes": [1, 2, 3, 4]}
        for at in range(6)
    ]
    path = tmp_path / "again.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    config = tiny("dynamic", step_ns=1e6, overrides={"pager.prefix_sharing": True})
    result = run_split(
        open_trace(path, hash_block_tokens=16), config, prefill_replicas=2, decode_replicas=1, router="prefix-aware"
    )
    assert [row["hit_tokens"] for row in by_row(result)] == [0, 48, 48, 48, 48, 48]
    assert {row["replica"] for row in by_row(result)} == {0}
    assert result.summary["prefix_hit_tokens"] == 5 * 48
    assert result.summary["cluster"]["kv_transfer"]["bytes_moved"] == 6 * 50 * config.rank_kv_bytes_per_token


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *random_rows(random.Random(1), 60))
    for name in ("a", "b"):
        run_split(trace, tiny("kv-rm"), prefill_replicas=2, decode_replicas=3, out=tmp_path / name)
    for file in ("requests.parquet", "steps.parquet", "pool.parquet", "run.toml"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    kept = run_split(trace, tiny("kv-rm"), prefill_replicas=2, decode_replicas=3)
    assert set(kept.steps["replica"].to_pylist()) == {0, 1, 2, 3, 4}
    assert ReplicaConfig.from_file(tmp_path / "a" / "run.toml") == tiny("kv-rm")


@pytest.mark.parametrize(
    ("stop_s", "outcome", "delivered"),
    [(0.5, "unfinished", 0), (1.2, "unfinished", 1), (3.0, "unfinished", 2), (4.4, "completed", 4)],
)
def test_a_stop_finds_a_request_wherever_it_is(stop_s: float, outcome: str, delivered: int, tmp_path: Path) -> None:
    """On the prefill side until 1 s, on the link until 1.3 s, decoding until 4.3 s."""
    trace = trace_of(tmp_path, (0, 40, 4))
    result = run_split(trace, linked(0.3 * S), prefill_replicas=1, decode_replicas=1, stop_at_s=stop_s)
    (row,) = by_row(result)
    assert (row["outcome"], row["delivered_tokens"]) == (outcome, delivered)
    assert result.summary["counts"]["injected"] == 1


def test_requests_over_the_limit_are_refused_cut_or_an_error(tmp_path: Path) -> None:
    """tiny-llama's limit is 1024 tokens."""
    trace = trace_of(tmp_path, (0, 1000, 50), (0, 1020, 4), (0, 1024, 1))
    two = {"prefill_replicas": 1, "decode_replicas": 1}
    refused = by_row(run_split(trace, tiny("dynamic"), **two))
    assert [row["outcome"] for row in refused] == ["rejected", "completed", "rejected"]
    cut = by_row(run_split(trace, tiny("dynamic", over_limit="truncate"), **two))
    assert [row["outcome"] for row in cut] == ["truncated", "completed", "rejected"]
    assert (cut[0]["delivered_tokens"], cut[0]["output_tokens"], cut[0]["reason"]) == (24, 50, "context_limit")
    with pytest.raises(InputError, match="over the limit of 1024"):
        run_split(trace, tiny("dynamic", over_limit="error"), **two)


def test_memory_and_pools_are_sums_over_both_sides(tmp_path: Path) -> None:
    config = tiny("graph-paged", pool_blocks=None)
    result = run_split(trace_of(tmp_path, (0, 40, 4), (S, 40, 9)), config, prefill_replicas=2, decode_replicas=3)
    pools = 2 * plan_memory(config).pool_blocks + 3 * plan_memory(decode_config(config)).pool_blocks
    assert result.summary["pool_blocks"] == pools
    parts = [row["allocated_kv_bytes"]["mean"] for row in result.summary["cluster"]["per_replica"]]
    assert result.summary["allocated_kv_bytes"]["mean"] == pytest.approx(sum(parts))
    assert result.summary["allocated_kv_bytes"]["peak"] is None


@pytest.mark.parametrize(
    ("policy", "counts", "message"),
    [
        ("static", (1, 1), "paged policies only"),
        ("dynamic", (0, 1), "prefill_replicas = 0"),
        ("dynamic", (1, 2000), "decode_replicas = 2000"),
    ],
)
def test_what_cannot_be_split_is_refused(policy: str, counts: tuple[int, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run_split(trace_of(tmp_path, (0, 5, 2)), tiny(policy), prefill_replicas=counts[0], decode_replicas=counts[1])

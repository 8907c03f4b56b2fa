"""Prefix sharing, who goes first, and who has to go: hits counted once and billed, caches that fit or do not, victims
(cases B, D).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import run
from kvrm_sim.result import RunResult
from kvrm_traces import Trace, inspect_trace, open_trace
from tests.sim.core_runs import CoreRun, parameters_for, run_core
from tests.sim.reference_records import Arrival, ReferenceConfig
from tests.sim.small_replays import S, constant, core, free_blocks, paged, tiny, total


def sharing(**changes: Any) -> ReferenceConfig:
    """Paged, blocks and hash blocks of 16 tokens, prefixes shared."""
    return paged(**({"prefix_sharing": True, "hash_block_tokens": 16} | changes))


def replayed(config: ReferenceConfig, *arrivals: Arrival, costs: dict[str, float] | None = None) -> CoreRun:
    return run_core(parameters_for(config, costs or constant(S)), arrivals, keep_steps=True)


def request(
    row: int, at_s: int, prompt: int, output: int, first_id: int = 0, *, shared: int = 0, **more: Any
) -> Arrival:
    """A prompt whose first ``shared`` hash blocks have the ids 0, 1, …; the others count from ``first_id``."""
    blocks = -(-prompt // 16)
    ids = (*range(min(shared, blocks)), *range(first_id, first_id + blocks - shared))
    return Arrival(row, at_s * S, prompt, output, hashes=ids, **more)


#: A prefix of 4 blocks is computed; a request fills the pool; one with the prefix is tried at three steps in vain.
FAILED_TRIES = (
    request(0, 0, 64, 1, shared=4),
    request(1, 1, 240, 4, first_id=100),
    request(2, 1, 96, 40, first_id=200, shared=4, priority=5),
)


@pytest.mark.core
def test_a_hit_is_counted_when_the_admission_succeeds_however_often_it_was_tried() -> None:
    """B18: three tries that fail count nothing, the fourth counts once; a hit is never more than the prompt."""
    run_ = replayed(sharing(pool_blocks=20), *FAILED_TRIES)
    waited = [step["start_ns"] // S for step in run_.steps if step["waiting"] == 1]
    assert waited == [1, 2, 3, 4], "at its arrival, and while the pool is full: 16 blocks held, 4 cached"
    assert run_.rows[2].admitted_ns == 5 * S
    assert [row.hit_tokens for row in run_.rows] == [0, 0, 64]
    assert total(run_, "hit_tokens") == sum(step["hit_tokens"] for step in run_.steps) == 64
    admission = next(step for step in run_.steps if step["hit_tokens"])
    assert (admission["prefill_tokens"], admission["prefill_read_tokens"]) == (96 - 64, 96)


@pytest.mark.core
def test_what_is_found_again_after_a_preemption_is_no_second_hit() -> None:
    """B18: it lowers what was recomputed instead: those tokens were not lost."""
    # The fourth needs the last blocks as it grows, and the third has the least urgent priority.
    urgent = request(3, 5, 192, 60, first_id=300)
    config = sharing(pool_blocks=20, victim="lowest_priority")
    run_ = replayed(config, *FAILED_TRIES, urgent)
    row = run_.rows[2]
    assert row.preemptions == 1
    assert (row.hit_tokens, total(run_, "hit_tokens")) == (64, 64), "as before the preemption"
    preempted = next(step for step in run_.steps if step["preempted"])
    assert preempted["blocks_freed"] >= 6
    # Lost: 96 prompt tokens and those delivered but the last. Found again: what the urgent one has left of the prompt.
    lost = 96 + (preempted["start_ns"] - (row.first_token_ns or 0)) // S
    assert 0 < row.recomputed_tokens < lost
    assert (lost - row.recomputed_tokens) % 16 == 0, "whole blocks were found again"
    assert total(run_, "recomputed_tokens") == row.recomputed_tokens
    assert free_blocks(run_) + total(run_, "evictable") == 20


@pytest.mark.core
def test_time_to_first_token_moves_with_every_hit() -> None:
    """D10: 1280 tokens of which 1024 are cached: 256 are billed; each cached block takes its prefill off TTFT."""
    costs = {"host_step_ns": 1000.0, "dense_token_ns": 100.0}
    ttft = {}
    for cached in (0, 256, 512, 1024, 1280):
        config = sharing(limit_tokens=4096, pool_blocks=300)
        first = request(0, 0, max(cached, 16), 1, first_id=900, shared=cached // 16)
        second = request(1, 1, 1280, 2, first_id=5000, shared=cached // 16)
        run_ = replayed(config, first, second, costs=costs)
        hit = run_.rows[1].hit_tokens
        assert hit == min(cached, 1280 - 16), "of a prompt that is cached whole the last block is computed again"
        ttft[hit] = (run_.rows[1].first_token_ns or 0) - S
        step = next(step for step in run_.steps if step["start_ns"] == S)
        assert step["prefill_tokens"] == 1280 - hit
        assert step["dense_busy_ns"] == 100 * (1280 - hit)
    assert {hit: ttft[0] - time for hit, time in ttft.items()} == {hit: 100 * hit for hit in ttft}


@pytest.mark.core
def test_a_copied_tail_is_billed_as_a_copy_and_one_token() -> None:
    """D10: with ``partial_tail = copy`` all but one token of a prompt cached whole is a hit, and a block moves."""
    costs = {"host_step_ns": 1000.0, "dense_token_ns": 100.0, "copy_block_ns": 300.0, "tail_kernel_ns": 50.0}
    twice = [request(row, row, 160, 2, shared=10) for row in range(2)]
    found = {}
    for tail in ("recompute", "copy"):
        run_ = replayed(sharing(partial_tail=tail), *twice, costs=costs)
        step = next(step for step in run_.steps if step["start_ns"] == S)
        found[tail] = (run_.rows[1].hit_tokens, step["copied_blocks"], step["prefill_tokens"], step["duration_ns"])
    assert found == {"recompute": (144, 0, 16, 1000 + 1600), "copy": (159, 1, 1, 1000 + 100 + 300 + 50)}


def written(folder: Path, rows: list[dict[str, Any]], **reading: Any) -> Trace:
    path = folder / f"rows-{len(list(folder.iterdir()))}.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return open_trace(path, **reading)


def in_turn(folder: Path, prompts: int, rounds: int, *, repeated: bool = True) -> Trace:
    """Rounds over so many prompts of 100 blocks, one request after another; or never the same prompt twice."""
    rows = []
    for number in range(prompts * rounds):
        prompt = number % prompts if repeated else number
        ids = [f"{prompt}-{block}" for block in range(100)]
        rows.append(
            {"arrival_s": number, "prompt_tokens": 1605, "output_tokens": 2, "prefix_hashes": [*ids, f"end {number}"]}
        )
    return written(folder, rows, hash_block_tokens=16)


def cached_run(trace: Trace, pool_blocks: int) -> RunResult:
    config = ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm", pool_blocks=pool_blocks)
    return run(trace, config.override({"policy.pager.prefix_sharing": True}))


def cache_caveat(result: RunResult) -> str:
    return next(line for line in result.warnings if line.startswith("prefix_cache: "))


def test_a_larger_cache_helps_only_a_working_set_that_does_not_fit(tmp_path: Path) -> None:
    """D17: a working set of 0.7 of the pool: no evictions, and doubling it gains nothing; of 1.5: it gains."""
    fits, too_large = in_turn(tmp_path, 14, 5), in_turn(tmp_path, 30, 5)
    small, doubled = cached_run(fits, 2000), cached_run(fits, 4000)
    assert small.summary["evicted_blocks"] == 0
    assert small.summary["prefix_hit_tokens"] == doubled.summary["prefix_hit_tokens"] == 14 * 4 * 1600
    assert small.summary["ttft_s"] == doubled.summary["ttft_s"]
    assert "a larger pool could keep nothing more" in cache_caveat(small)
    small, doubled = cached_run(too_large, 2000), cached_run(too_large, 4000)
    assert small.summary["evicted_blocks"] > 0
    assert small.summary["prefix_hit_tokens"] == 0, "in turn, each prompt is evicted just before it comes again"
    assert doubled.summary["prefix_hit_tokens"] == 30 * 4 * 1600
    assert doubled.summary["ttft_s"]["mean"] < 0.5 * small.summary["ttft_s"]["mean"]
    assert "a larger pool might keep hits that are lost here" in cache_caveat(small)


def test_prompts_that_share_nothing_gain_nothing_from_any_cache(tmp_path: Path) -> None:
    """D17: the other reason why a cache does not help, and it is said."""
    trace = in_turn(tmp_path, 30, 5, repeated=False)
    found = [cached_run(trace, blocks) for blocks in (2000, 4000)]
    assert [result.summary["prefix_hit_tokens"] for result in found] == [0, 0]
    assert found[0].summary["ttft_s"] == found[1].summary["ttft_s"]
    assert all("no prompt token was found cached" in cache_caveat(result) for result in found)


@pytest.mark.core
def test_the_least_computed_as_victim_loses_the_least() -> None:
    """B08: 8000 computed tokens and 100: the last admitted loses 8000, the least computed 100."""
    rows = ((0, 100, 20), (0, 8000, 3))
    config = paged(pool_blocks=507)
    lost = {
        victim: total(core(replace(config, victim=victim), *rows), "recomputed_tokens")
        for victim in ("last", "least_computed", "largest")
    }
    assert lost == {"last": 8000, "least_computed": 100, "largest": 8000}


def test_an_urgent_request_of_a_file_goes_first(tmp_path: Path) -> None:
    """A column of levels, mapped by name, decides who is admitted next; without the order it changes nothing."""
    levels = (3, 1, None, 2)
    rows = [{"arrival_s": 0, "prompt_tokens": 16, "output_tokens": 1, "level": level} for level in levels]
    trace = written(tmp_path, rows, columns={"priority": "level"})
    first: dict[str, list[int]] = {}
    for order in ("fcfs", "priority"):
        overrides = {"schedule.order": order, "schedule.slots": 1}
        table = run(trace, tiny("dynamic", step_ns=S, overrides=overrides)).requests.to_pylist()
        first[order] = [row["row"] for row in sorted(table, key=lambda row: row["admitted_ns"])]
    assert first == {"fcfs": [0, 1, 2, 3], "priority": [2, 1, 3, 0]}


def one_after_another(trace: Trace, pool_blocks: int) -> RunResult:
    """Hash blocks as pager blocks, one request at a time, on a device whose memory holds any pool."""
    base = ReplicaConfig.from_names("graph-paged", "llama-3.1-8b", "a100-80gb-sxm")
    memory = base.hardware.memory_bytes.model_copy(update={"value": 1e14})
    hardware = base.hardware.model_copy(update={"memory_bytes": memory})
    config = base.model_copy(update={"hardware": hardware, "pool_blocks": pool_blocks}).override(
        {
            "policy.pager.prefix_sharing": True,
            "policy.pager.block_size_tokens": trace.info.hash_block_tokens,
            "policy.schedule.slots": 1,
        }
    )
    return run(trace, config)


@pytest.mark.real
def test_hits_of_a_real_trace_follow_its_lru_curve_and_stay_under_its_ceiling(shared_traces: Path) -> None:
    """Of pools that hold so many percent of the different blocks, beside what inspecting the trace says of a cache."""
    trace = open_trace(shared_traces / "mooncake/conversation_trace.jsonl")
    reuse = inspect_trace(trace).prefix_reuse
    assert reuse is not None
    assert reuse.infinite_blocks == pytest.approx(0.3664, abs=5e-5)
    shares = {}
    for percent in (1, 5, 10, 25, 50, 100):
        # At 100 there is room for every block and for the one that a request decodes into.
        blocks = reuse.unique_blocks * percent // 100 + (8 if percent == 100 else 0)
        summary = one_after_another(trace, blocks).summary
        shares[percent] = summary["prefix_hit_tokens"] / reuse.block_tokens / reuse.touched_blocks
        assert shares[percent] <= reuse.infinite_blocks
    assert shares[100] == pytest.approx(reuse.infinite_blocks, abs=0.001), (
        "less the last block of a prompt cached whole"
    )
    for percent, share in reuse.lru_blocks.items():
        # The curve touches a prompt's blocks from the first on; the pool evicts its end first, and keeps a little more.
        assert shares[percent] == pytest.approx(share, abs=0.01)

"""Validation of parts that no preset has: shared prefixes, far history, what moves blocks, steps decided ahead."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvrm_gpu import validate as module
from kvrm_gpu.validate import verdict
from kvrm_sim.memory import plan_memory
from kvrm_traces import open_trace
from tests.gpu.small_scale import MODEL, SMALL, calibration
from tests.gpu.small_validation import ROWS, hashed_trace, small_loop


def policy_file(folder: Path, base: str, text: str) -> str:
    path = folder / f"{base}-own.toml"
    path.write_text(f'base = "{base}"\n{text}\n', encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("tail", ["recompute", "copy"])
def test_shared_prefixes_of_a_trace_are_executed(tail: str, tmp_path: Path) -> None:
    """A hash block of the trace is one block of the pager at this scale: 512 tokens divided by 32."""
    sharing = f'[pager]\nprefix_sharing = true\npartial_tail = "{tail}"'
    policies = ("dynamic", policy_file(tmp_path, "kv-rm", sharing))
    report = small_loop(trace=hashed_trace(tmp_path), repeats=1, policies=policies)
    assert verdict(report) == []
    assert report["token_mismatches"] == 0
    hits = [found["hit_tokens"] for found in report["policies"].values()]
    assert hits[0] == 0
    assert hits[1] > 0
    assert not any("nothing to share" in note for note in report["notes"])


def test_a_trace_without_hashes_shares_nothing_and_the_report_says_so(tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "dynamic", "[pager]\nprefix_sharing = true")
    report = small_loop(trace=open_trace("azure-conv-like", seed=0, rows=ROWS), repeats=1, policies=(policy,))
    assert report["policies"][policy]["hit_tokens"] == 0
    assert any("azure-conv-like has no prefix hashes" in note for note in report["notes"])


def test_far_history_is_compared_with_a_masked_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At this scale two blocks are left of a long row. Seen to fail with a plain forward for all."""
    far = policy_file(tmp_path, "kv-rm-window", "[far_history]\nwindow_tokens = 512\nsummary_blocks = 8")
    trace = open_trace("long-context", seed=0, rows=ROWS)
    report = small_loop(trace=trace, repeats=1, policies=(far,))
    assert verdict(report) == []
    assert report["token_mismatches"] == 0
    monkeypatch.setattr(module, "_far_view", lambda setting: None)
    assert small_loop(trace=trace, repeats=1, policies=(far,))["token_mismatches"] > 0


EVERYTHING = """
[host]
memory_gib = 64.0
offload = true
[schedule]
preempt = "swap"
[pager]
prefix_sharing = true
partial_tail = "copy"
compaction = "threshold"
compaction_ratio = 0.0
"""


def test_what_moves_blocks_is_executed(tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "kv-rm-delta", EVERYTHING)
    tight = replace(SMALL, pool_blocks=11)
    trace = hashed_trace(tmp_path, output_tokens=640)
    report = small_loop(trace=trace, repeats=1, policies=(policy,), scale=tight)
    assert verdict(report) == []
    assert report["token_mismatches"] == 0
    assert set(report["policies"][policy]["moves"]) >= {"out", "in", "offload", "compact"}
    json.dumps(report)


def test_steps_decided_ahead_are_executed_and_a_note_says_how(tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "kv-rm", "[schedule]\nrun_ahead = 2")
    report = small_loop(repeats=1, policies=(policy, "dynamic"))
    assert verdict(report) == []
    assert report["token_mismatches"] == 0
    assert [found["ended_rows"] > 0 for found in report["policies"].values()] == [True, False]
    assert sum("decides ahead" in note for note in report["notes"]) == 1


def test_a_host_pool_is_of_the_scales_size(tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "kv-rm-delta", EVERYTHING)
    plan = plan_memory(SMALL.config(policy, MODEL, calibration().profile))
    assert plan.host_blocks == 2 * plan.pool_blocks == 40
    small = policy_file(tmp_path, "dynamic", EVERYTHING.replace("64.0", f"{7.5 * plan.block_bytes / 2**30}"))
    assert plan_memory(SMALL.config(small, MODEL, calibration().profile)).host_blocks == 7

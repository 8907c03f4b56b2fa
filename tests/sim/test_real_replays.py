"""The public traces under four decoders, with every invariant checked after every step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc
import pytest

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import run
from kvrm_sim.result import RunResult
from kvrm_traces import Trace, open_trace

pytestmark = pytest.mark.real

POLICIES = ("graph-paged", "kv-rm", "kv-rm-delta", "static")


class Source(NamedTuple):
    """A trace's file, the model that serves it, and how much faster it comes, so that the pool fills."""

    path: str
    model: str
    speedup: float
    rows: int


SOURCES = {
    "azure2023 conv": Source("azure2023/AzureLLMInferenceTrace_conv.csv", "llama-3-8b", 2, 250),
    "azure2023 code": Source("azure2023/AzureLLMInferenceTrace_code.csv", "llama-3-8b", 4, 250),
    "azure2024 window": Source("azure2024_window/azure_llm_code_v3_1024.csv", "llama-3-8b", 4, 250),
    "mooncake conversation": Source("mooncake/conversation_trace.jsonl", "llama-3.1-8b", 1, 60),
    "burstgpt head": Source("burstgpt_sample/BurstGPT_1_head30_rows_crosschecked.csv", "llama-3-8b", 100, 30),
}


def replayed(trace: Trace, model: str, policy: str, *, pool_blocks: int | None = None) -> RunResult:
    config = ReplicaConfig.from_names(policy, model, "a100-80gb-sxm", check=True, pool_blocks=pool_blocks)
    return run(trace, config)


def assert_accounted_for(result: RunResult, trace: Trace) -> None:
    """Every request has its row, its tokens and its times in order, and nothing is held in the end."""
    counts = result.summary["counts"]
    table = result.requests
    assert counts["injected"] == trace.info.rows == table.num_rows
    assert counts["injected"] == sum(counts[name] for name in ("completed", "rejected", "truncated", "unfinished"))
    assert counts["unfinished"] == counts["truncated"] == 0
    done = table.filter(pc.equal(table["outcome"].cast("string"), "completed"))
    assert done.num_rows == counts["completed"] > 0
    assert done["delivered_tokens"].equals(done["output_tokens"])
    ordered = ("arrival_ns", "admitted_ns", "first_token_ns", "finish_ns")
    for before, after in pairwise(ordered):
        assert pc.all(pc.less_equal(done[before], done[after])).as_py(), (before, after)
    written = pc.sum(done["delivered_tokens"]).as_py()
    assert result.summary["delivered_tokens"] == written
    assert result.summary["itl_s"]["n"] == written - counts["completed"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SOURCES)
def test_the_head_of_a_public_trace(name: str, policy: str, shared_traces: Path) -> None:
    """On a pool so small that requests wait, grow and are preempted: checks cost its size at each step."""
    source = SOURCES[name]
    trace = open_trace(shared_traces / source.path).limit(source.rows).speedup(source.speedup)
    pool_blocks = 9_000 if source.model == "llama-3.1-8b" else 1_100
    result = replayed(trace, source.model, policy, pool_blocks=pool_blocks)
    assert_accounted_for(result, trace)
    if name == "azure2023 conv":
        assert (result.summary["preemptions"] > 0) == (policy != "static"), "reservations are never taken back"


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_whole_public_trace(name: str, policy: str, shared_traces: Path) -> None:
    source = SOURCES[name]
    # Mooncake's own rate is far beyond one device: a share of it, as a fleet would see it.
    trace = open_trace(shared_traces / source.path)
    if source.model == "llama-3.1-8b":
        trace = trace.replicas(12)
    result = replayed(trace, source.model, policy)
    assert_accounted_for(result, trace)

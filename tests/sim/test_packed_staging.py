"""Packed staging from the outside: what is set aside, what is refused, and what a run of it says."""

from __future__ import annotations

from typing import Any

import pytest

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import run
from kvrm_sim.errors import ConfigError
from kvrm_sim.memory import plan_memory
from kvrm_traces import open_trace

PACKED = 65_536


def kv_rm(**changes: Any) -> ReplicaConfig:
    config = ReplicaConfig.from_names("kv-rm", "llama-3-8b", "a100-80gb-sxm")
    return config.override({f"policy.{key.replace('__', '.')}": value for key, value in changes.items()})


def test_all_rows_share_what_is_set_aside() -> None:
    """One layer of 8 KV heads of 128 in bf16: 4,096 bytes a token; strided: 256 rows of 8,192 tokens."""
    strided, packed = plan_memory(kv_rm()), plan_memory(kv_rm(transport__packed_tokens=PACKED + 5))
    assert strided.factors.staging_bytes == 256 * 8192 * 4096
    assert packed.factors.staging_bytes == PACKED * 4096, "whole blocks"
    assert packed.pool_blocks > strided.pool_blocks
    whole = plan_memory(kv_rm(transport__packed_tokens=PACKED, transport__scope="model", transport__submission="batch"))
    assert whole.factors.staging_bytes == 32 * PACKED * 4096


def test_rows_of_automatic_slots_are_not_limited_by_it() -> None:
    model_scope = {"transport__scope": "model", "transport__submission": "batch", "schedule__slots": "auto"}
    assert (
        plan_memory(kv_rm(**model_scope)).slots
        < plan_memory(kv_rm(**model_scope, transport__packed_tokens=PACKED)).slots
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"transport__packed_tokens": 15}, "less than one block"),
        ({"transport__packed_tokens": 64, "read__extent": "bucket"}, "reads other rows"),
        (
            {"transport__packed_tokens": 64, "transport__staging": "delta", "transport__scope": "model"},
            "rows move up when one ahead of them grows",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        kv_rm(**changes)


def test_without_staging_it_has_no_effect() -> None:
    with pytest.raises(ConfigError, match=r"transport\.packed_tokens"):
        ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm").override(
            {"policy.transport.packed_tokens": 64}
        )


def test_a_run_counts_the_steps_whose_rows_do_not_fit() -> None:
    trace = open_trace("azure-conv-like", rows=400)
    roomy = run(trace, kv_rm(transport__packed_tokens=4_000_000)).summary
    tight = run(trace, kv_rm(transport__packed_tokens=20_000)).summary
    strided = run(trace, kv_rm()).summary
    assert roomy["launch"]["over_capacity_steps"] == 0
    over = tight["launch"]["over_capacity_steps"]
    assert 0 < over < tight["sim"]["steps"]
    assert tight["transfer"]["bytes_moved"] < strided["transfer"]["bytes_moved"]
    assert any(
        warning.startswith("over_capacity") and "20,000 tokens of packed staging" in warning
        for warning in tight["warnings"]
    )
    assert tight["counts"] == strided["counts"]

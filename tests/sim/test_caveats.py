"""Caveats of sharing and of priorities: what a run says of a cache, and what it does not say."""

from __future__ import annotations

from typing import Any

import pytest

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.memory import plan_memory
from tests.sim.run_arrays import S, make_config, make_trace, summary_of

HASHED = make_trace(columns=("arrival_ns", "prefix_hashes"), hash_block_tokens=16)
BLOCKS = plan_memory(make_config()).pool_blocks


def sharing_config(**schedule: str) -> ReplicaConfig:
    return make_config().override(
        {"policy.pager.prefix_sharing": True, **{f"policy.schedule.{key}": value for key, value in schedule.items()}}
    )


def codes(run: dict[str, Any]) -> set[str]:
    return {line.split(":")[0] for line in run["warnings"]}


def said(run: dict[str, Any], code: str) -> list[str]:
    """What a caveat says, if anything."""
    return [line.partition(": ")[2] for line in run["warnings"] if line.startswith(f"{code}:")]


def test_hashes_that_nobody_shares_by_and_sharing_without_hashes_are_said() -> None:
    plain, hashed = make_trace(), HASHED
    lost = said(summary_of(trace=hashed), "prefix_sharing")
    assert lost == ["the trace has prefix hashes, and the policy does not share blocks; every hit is lost"]
    nothing = said(summary_of(trace=plain, config=sharing_config()), "prefix_sharing")
    assert nothing == ["the policy shares prompt blocks, and the trace has no prefix hashes; nothing is shared"]
    assert said(summary_of(trace=plain), "prefix_sharing") == []
    assert said(summary_of(trace=hashed, config=sharing_config()), "prefix_sharing") == []


@pytest.mark.parametrize(
    ("hit_tokens", "evicted_blocks", "expected"),
    [
        (160, 0, "no cached block was evicted; a larger pool could keep nothing more"),
        (160, 7, "7 cached blocks were evicted; a larger pool might keep hits that are lost here"),
        (
            0,
            0,
            "no prompt token was found cached, and no cached block was evicted; a larger pool could keep nothing more",
        ),
    ],
)
def test_whether_a_larger_cache_could_help_is_said(hit_tokens: int, evicted_blocks: int, expected: str) -> None:
    """D17: the working set fitted, or it did not, or prompts share nothing: the tool says which case it is."""
    totals = {"hit_tokens": hit_tokens, "evicted_blocks": evicted_blocks}
    assert said(summary_of(trace=HASHED, config=sharing_config(), **totals), "prefix_cache") == [expected]
    assert said(summary_of(trace=make_trace(), config=sharing_config(), **totals), "prefix_cache") == []
    assert said(summary_of(trace=HASHED), "prefix_cache") == []


def test_a_pool_that_is_full_of_cached_blocks_is_in_use() -> None:
    """A06, D17: blocks kept for a hit count, and after an eviction the pool was full, however few were held."""
    held = {"peak_allocated_blocks": BLOCKS // 4, "trace": HASHED, "config": sharing_config()}
    assert "pool_underused" in codes(summary_of(**held))
    assert "pool_underused" in codes(summary_of(**held, peak_cached_blocks=BLOCKS // 4 - 2))
    assert "held or cached" in said(summary_of(**held, peak_cached_blocks=1), "pool_underused")[0]
    assert "pool_underused" not in codes(summary_of(**held, peak_cached_blocks=BLOCKS // 4 + 2))
    assert "pool_underused" not in codes(summary_of(**held, peak_cached_blocks=1, evicted_blocks=1))


def test_an_order_by_priority_without_priorities_is_said() -> None:
    by = {"order": "priority", "victim": "lowest_priority"}
    both = said(summary_of(config=sharing_config(**by)), "priority")
    assert both == [
        f"schedule.{key} goes by priority, and the trace has none; all requests are equal"
        for key in ("order", "victim")
    ]
    given = make_trace(columns=("arrival_ns", "priority"))
    assert said(summary_of(config=sharing_config(**by), trace=given), "priority") == []
    assert said(summary_of(config=sharing_config(order="shortest_prompt")), "priority") == []


def test_what_sharing_kept_is_in_bytes_and_absent_without_hashes() -> None:
    plan = plan_memory(make_config())
    run = summary_of(
        trace=HASHED, config=sharing_config(), hit_tokens=480, evicted_blocks=3, copied_blocks=2,
        acc_cached=11.0 * S * 10, peak_cached_blocks=40,
    )  # fmt: skip
    assert (run["prefix_hit_tokens"], run["evicted_blocks"], run["copied_blocks"]) == (480, 3, 2)
    assert run["cached_kv_bytes"] == {"mean": plan.block_bytes, "peak": 40 * plan.block_bytes}
    absent = summary_of(hit_tokens=480)
    names = ("prefix_hit_tokens", "cached_kv_bytes", "evicted_blocks", "copied_blocks")
    assert [absent[name] for name in names] == [None] * 4

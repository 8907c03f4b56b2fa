"""Random cases have the parts that are asked for, in every way; the reference keeps its invariants on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.sim.reference import ReferenceResult, Step, simulate
from tests.sim.strategies import Case, constant, moves_if_cheaper, random_case

MODES = ("none", "chunked", "separate")
TRANSPORT = ("moved_blocks", "needed_tokens", "groups", "segments", "rounds")


def blocks_by_row(step: Step) -> dict[int, tuple[int, ...]]:
    return {table.row: table.blocks for table in (step.tables or {}).values()}


def compaction_seen(case: Case, result: ReferenceResult) -> set[str]:
    """What a case shows of compaction."""
    config = case.config
    kind = config.placement if config.paged else f"reservations by {config.compaction}"
    happened = {(event.time_ns, event.kind) for event in result.events}
    seen = set()
    for before, after in pairwise(result.steps):
        blocks, groups = after.plan["compacted_blocks"], after.plan["compaction_groups"]
        if blocks == 0:
            continue
        seen |= {f"{kind}: moved", f"{config.prefill}: moved"}
        seen |= {f"{kind}: several groups"} if groups > 1 else set()
        seen |= {"as many as may"} if (blocks if config.paged else groups) == config.compaction_max_moves else set()
        then = blocks_by_row(after)
        moved = [
            pair
            for row, old in blocks_by_row(before).items()
            for pair in zip(old, then.get(row, old), strict=False)
            if pair[0] != pair[1]
        ]
        seen |= {"shared block moved"} if len(set(moved)) < len(moved) else set()
        if config.paged and len(set(moved)) < blocks and (after.start_ns, "preempt") not in happened:
            seen.add("evictable block moved")
        seen |= {"with staged rows"} if config.staging == "delta" else set()
    return seen


def test_random_cases_with_compaction_are_of_every_kind() -> None:
    """140 seeds keep every invariant."""
    seen: set[str] = set()
    for seed in range(140):
        case = random_case(seed, compaction=True)
        assert case.config.compaction != "none"
        assert case == random_case(seed, compaction=True)
        seen |= compaction_seen(case, simulate(case.config, case.arrivals, case.step_cost, tables=True))
    kinds = [
        *("lifo", "fifo", "lowest", "extent", "contiguous"),
        *("reservations by threshold", "reservations by demand"),
    ]
    expected = {f"{kind}: {what}" for kind in kinds for what in ("moved", "several groups")}
    expected |= {f"{prefill}: moved" for prefill in MODES}
    expected |= {"as many as may", "shared block moved", "evictable block moved", "with staged rows"}
    assert seen == expected


def test_rows_with_far_history_are_compacted_too() -> None:
    seen: set[str] = set()
    for seed in range(40):
        case = random_case(seed, compaction=True, far_history=True)
        for step in simulate(case.config, case.arrivals, case.step_cost, tables=True).steps:
            if step.plan["compacted_blocks"] > 0:
                seen |= {case.config.prefill for table in (step.tables or {}).values() if table.dropped > 0}
    assert seen == set(MODES)


def test_where_paged_blocks_lie_decides_nothing() -> None:
    """With steps that cost the same, who runs when, on how many blocks, is as without compaction; only ids differ.

    (And with them groups, and at layer scope of staged reads the launch, which has a capacity of groups.)
    """
    moved = 0
    for seed in range(80):
        case = random_case(seed, compaction=True)
        if not case.config.paged:
            continue
        result = simulate(case.config, case.arrivals, constant(500))
        stays = simulate(replace(case.config, compaction="none"), case.arrivals, constant(500))
        assert (result.requests, result.itl_ns, result.events) == (stays.requests, stays.itl_ns, stays.events)
        for step, other in zip(result.steps, stays.steps, strict=True):
            assert step.planned == other.planned
            assert (step.allocated_blocks, step.cached_blocks) == (other.allocated_blocks, other.cached_blocks)
            for name in ("blocks_taken", "blocks_freed", "moved_blocks"):
                assert step.plan[name] == other.plan[name]
            moved += step.plan["compacted_blocks"]
    assert moved > 1000


def speculation_seen(case: Case, result: ReferenceResult) -> set[str]:
    """What a case shows of speculation."""
    config = case.config
    seen = {"accepted"} if result.accepted_tokens else set()
    delivered = sum(r.delivered for r in result.requests)
    decoded = sum(step.plan["sampled_rows"] - step.plan["drafted_tokens"] for step in result.steps)
    assert delivered == decoded + result.accepted_tokens
    preempted = {event.time_ns for event in result.events if event.kind == "preempt"}
    for step in result.steps:
        plan = step.plan
        if plan["drafted_tokens"] == 0:
            seen |= {"a decode step without drafts"} if plan["decode_rows"] and not plan["prefill_rows"] else set()
            continue
        seen |= {config.reserve, config.placement, ("eager", "graph", "piecewise")[plan["launch_kind"]]}
        seen |= {"mixed" if plan["prefill_rows"] else "decode", f"read {config.read_what}", f"staging {config.staging}"}
        seen |= {"off the ladder"} if step.off_ladder else set()
        seen |= {"preempted"} if step.start_ns in preempted else set()
        seen |= {"cached blocks"} if step.cached_blocks else set()
        seen |= (
            {"fewer than asked for"} if plan["drafted_tokens"] < plan["decode_rows"] * config.draft_tokens else set()
        )
    wrong = sum(step.plan["drafted_tokens"] for step in result.steps) - result.accepted_tokens
    seen |= {"not accepted"} if wrong else set()
    return {f"{config.prefill}: {word}" for word in seen}


def test_random_cases_with_speculation_are_of_every_kind() -> None:
    """240 seeds keep every invariant. Without prompts to compute there is no mixed step; `separate` has none either."""
    seen: set[str] = set()
    for seed in range(240):
        case = random_case(seed, speculation=True)
        assert case.config.draft_tokens > 0
        assert case == random_case(seed, speculation=True)
        seen |= speculation_seen(case, simulate(case.config, case.arrivals, case.step_cost))
    words = {
        "max_len", "pow2", "declared", "oracle", "bucket", "paged",
        "lifo", "fifo", "lowest", "extent", "contiguous", "buddy", "accepted", "not accepted",
        "eager", "graph", "piecewise", "mixed", "decode", "read reserved", "read live", "read table", "read staged",
        "staging full", "staging delta", "off the ladder", "preempted", "cached blocks", "fewer than asked for",
        "a decode step without drafts",
    }  # fmt: skip
    expected = {f"{prefill}: {word}" for prefill in MODES for word in words}
    mixed = {f"{prefill}: {word}" for prefill in ("none", "separate") for word in ("mixed", "piecewise")}
    assert seen == expected - mixed


def test_wrong_drafts_change_no_time_where_blocks_do_not_run_out() -> None:
    """With steps that cost the same."""
    drafted = 0
    for seed in range(40):
        case = random_case(seed, speculation=True)
        config = replace(case.config, acceptance=0.0, pool_blocks=1000)
        if config.placement == "extent":
            config = replace(config, placement="lowest")  # a large pool of extents is slow
        result = simulate(config, case.arrivals, constant(500))
        plain = simulate(replace(config, draft_tokens=0), case.arrivals, constant(500))
        assert (result.requests, result.itl_ns, result.events) == (plain.requests, plain.itl_ns, plain.events)
        assert [step.planned for step in result.steps] == [step.planned for step in plain.steps]
        drafted += sum(step.plan["drafted_tokens"] for step in result.steps)
    assert drafted > 1000


@pytest.mark.parametrize("seed", range(40))
def test_all_parts_at_once_keep_every_invariant(seed: int) -> None:
    case = random_case(seed, compaction=True, speculation=True, max_padding=True)
    config = case.config
    assert config.compaction != "none"
    assert config.draft_tokens > 0
    assert config.max_padding is not None
    simulate(config, case.arrivals, case.step_cost)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("offload", [False, True])
def test_all_parts_that_go_with_swapping_keep_every_invariant(seed: int, offload: bool) -> None:
    case = random_case(seed, host=True, offload=offload, compaction=True, speculation=True, max_padding=True)
    config = case.config
    assert (config.preempt != "recompute", config.offload, config.compaction != "none") == (True, offload, True)
    assert config.draft_tokens > 0
    cheaper = moves_if_cheaper(case)
    simulate(config, case.arrivals, case.step_cost, swap_is_cheaper=cheaper, load_is_cheaper=cheaper)


def test_padding_keeps_steps_off_the_ladder_and_changes_nothing_else() -> None:
    """With steps that cost the same."""
    kept_off = served = 0
    for seed in range(80):
        case = random_case(seed, max_padding=True)
        bound = case.config.max_padding
        assert bound is not None
        result = simulate(case.config, case.arrivals, constant(500))
        unbound = simulate(replace(case.config, max_padding=None), case.arrivals, constant(500))
        assert result.requests == unbound.requests
        for step, other in zip(result.steps, unbound.steps, strict=True):
            rows, batch = step.plan["decode_rows"], other.plan["padded_rows"]
            if other.plan["launch_kind"] == 1 and batch > bound * rows:
                assert (step.plan["launch_kind"], step.off_ladder, step.plan["padded_rows"]) == (0, True, rows)
                kept_off += 1
            else:
                assert step.plan["launch_kind"] == other.plan["launch_kind"]
                served += step.plan["launch_kind"] == 1
    assert min(kept_off, served) > 200


def packed_seen(case: Case, strided: list[Step], packed: list[Step]) -> set[str]:
    """What a case shows of packed staging; steps are as with strided staging, but for transport and launch."""
    config, seen = case.config, set()
    for step, other in zip(packed, strided, strict=True):
        plan, wanted = step.plan, other.plan
        launch = (plan["launch_kind"], step.off_ladder, step.row_moves, plan["captured"], plan["padded_rows"])
        assert (step.planned, plan["read_tokens"] >= plan["decode_rows"]) == (other.planned, True)
        if wanted["moved_blocks"] > config.packed_blocks:
            assert launch == (0, True, 0, 0, plan["decode_rows"])
            assert [plan[name] for name in TRANSPORT] == [0] * len(TRANSPORT)
            seen |= {"overflows", f"overflows: {config.launch}"}
            seen |= {"would have been served by a graph"} if wanted["launch_kind"] == 1 else set()
        elif wanted["moved_blocks"] > 0:
            assert [plan[name] for name in TRANSPORT[:2]] == [wanted[name] for name in TRANSPORT[:2]]
            merged = wanted["groups"] - plan["groups"]
            assert 0 <= merged < plan["decode_rows"]
            assert merged == 0 or config.merge == "adjacent"
            seen |= {"fits", f"fits: merge {config.merge}", ("fits: eager", "fits: graph")[plan["launch_kind"]]}
            seen |= {"fits exactly"} if plan["moved_blocks"] == config.packed_blocks else set()
            seen |= {"merged across rows"} if merged else set()
            seen |= {"fewer rounds"} if plan["rounds"] < wanted["rounds"] else set()
            seen |= {"a graph for fewer groups"} if plan["launch_kind"] > wanted["launch_kind"] else set()
    seen |= {"both"} if {"overflows", "fits"} <= seen else set()
    seen |= {"merged across rows and overflows"} if {"overflows", "merged across rows"} <= seen else set()
    seen |= {f"{config.scope}, {config.layout}"} if "fits" in seen else set()
    seen |= {"both with far history"} if config.far_history and "both" in seen else set()
    seen |= {"both with sharing"} if config.prefix_sharing and "both" in seen else set()
    return seen


@pytest.mark.parametrize("parts", [(), ("far_history",), ("speculation",)], ids="+".join)
def test_packed_staging_moves_the_same_blocks_or_none(parts: tuple[str, ...]) -> None:
    """With steps that cost the same, and captures of all slots, so that no row moves, requests are as with strided
    staging. A third of the cases and more fit in some steps and not in others.
    """
    seen: Counter[str] = Counter()
    asked = dict.fromkeys(("packed", *parts), True)
    for seed in range(60):
        case = random_case(seed, **asked)
        assert case.config.packed_blocks > 0
        assert case == random_case(seed, **asked)
        config = case.config
        if config.launch == "graph":
            config = replace(config, batch_sizes=(config.slots,))
        packed = simulate(config, case.arrivals, constant(500))
        strided = simulate(replace(config, packed_blocks=0), case.arrivals, constant(500))
        assert (packed.requests, packed.itl_ns, packed.events) == (strided.requests, strided.itl_ns, strided.events)
        seen.update(packed_seen(case, strided.steps, packed.steps))
    expected = {
        "overflows", "overflows: eager", "overflows: graph", "would have been served by a graph", "fits",
        "fits exactly", "fits: merge none", "fits: merge adjacent", "fits: eager", "fits: graph", "merged across rows",
        "both", "merged across rows and overflows", "both with far history" if "far_history" in parts
        else "both with sharing",
        *(f"{scope}, {layout}" for scope in ("layer", "model") for layout in ("layer_major", "block_major")),
    }  # fmt: skip
    assert set(seen) >= expected
    assert seen["both"] > 20
    assert seen["merged across rows"] > 10


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "parts",
    [("far_history", "compaction", "max_padding"), ("far_history", "run_ahead"), ("host", "offload", "run_ahead"),
     ("host", "compaction", "speculation", "max_padding")],
    ids="+".join,
)  # fmt: skip
def test_packed_staging_goes_with_all_parts(seed: int, parts: tuple[str, ...]) -> None:
    case = random_case(seed, packed=True, **dict.fromkeys(parts, True))
    assert case.config.packed_blocks > 0
    cheaper = moves_if_cheaper(case)
    simulate(case.config, case.arrivals, case.step_cost, swap_is_cheaper=cheaper, load_is_cheaper=cheaper)


def test_far_history_and_speculation_are_not_drawn_together() -> None:
    with pytest.raises(AssertionError, match="a row with far history drafts nothing"):
        random_case(0, far_history=True, speculation=True)
    assert not any(random_case(seed, speculation=True).config.far_history for seed in range(100))


@pytest.mark.parametrize("part", ["compaction", "speculation"])
def test_run_ahead_goes_with_neither_compaction_nor_speculation(part: str) -> None:
    with pytest.raises(AssertionError, match="with steps in flight nothing is compacted or drafted"):
        random_case(0, run_ahead=True, **{part: True})
    config = random_case(0, **{part: True}).config
    with pytest.raises(AssertionError, match="in flight"):
        replace(config, run_ahead=1)

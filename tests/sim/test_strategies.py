"""Random cases are valid, repeatable and of every kind; the reference keeps its invariants on them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.reference import ReferenceResult, Step, simulate
from tests.sim.strategies import Case, cases, horizons, moves_if_cheaper, random_case


def test_a_seed_is_a_case_and_a_case_is_a_result() -> None:
    for seed in range(20):
        one, two = random_case(seed), random_case(seed)
        assert one == two
        assert simulate(one.config, one.arrivals, one.step_cost) == simulate(two.config, two.arrivals, two.step_cost)
        assert random_case(seed, rows=3).arrivals == random_case(seed, rows=5).arrivals[:3]
        far = random_case(seed, far_history=True)
        assert far.config.far_history
        assert far == random_case(seed, far_history=True)


def sharing_seen(case: Case, result: ReferenceResult) -> set[str]:
    """What a case shows of prefix sharing."""
    config = case.config
    if not config.prefix_sharing:
        return set()
    assert config.hash_block_tokens is not None
    sign = (config.hash_block_tokens > config.block_size_tokens) - (config.hash_block_tokens < config.block_size_tokens)
    seen = {("hash blocks shorter", "hash blocks equal", "hash blocks longer")[sign + 1]}
    seen |= {"no ids" for arrival in case.arrivals if not arrival.hashes}
    seen |= {"hit" if r.hit_tokens else "no hit" for r in result.requests}
    seen |= {"copied" for step in result.steps if step.plan["copied_blocks"]}
    for step in result.steps:
        held = [block for table in (step.tables or {}).values() for block in table.blocks]
        seen |= {"shared"} if len(set(held)) < len(held) else set()
    # Only an admission or an eviction takes a block out of the evictable ones.
    admissions = {event.time_ns for event in result.events if event.kind == "admit"}
    for before, after in pairwise(result.steps):
        if after.cached_blocks < before.cached_blocks and after.start_ns not in admissions:
            seen.add("evicted")
    return seen


def gaps(step: Step) -> dict[int, int]:
    """Blocks that each row has dropped so far, where it has."""
    return {table.row: table.dropped for table in (step.tables or {}).values() if table.dropped}


def far_history_seen(case: Case, result: ReferenceResult) -> set[str]:
    """What a case shows of far history."""
    config = case.config
    if not config.far_history:
        return set()
    seen = {"summaries" if config.summary_blocks else "no summaries"}
    seen |= {"unservable" for r in result.requests if r.reason == "unservable"}
    for r in result.requests:
        written = case.arrivals[r.row].prompt_tokens + r.delivered - 1
        ended = r.outcome in ("completed", "truncated")
        seen |= {"larger than the pool"} if ended and config.blocks(written) > config.pool_blocks else set()
    preempted = [(event.time_ns, event.row) for event in result.events if event.kind == "preempt"]
    for before, after in pairwise(result.steps):
        dropped, then = gaps(before), gaps(after)
        if before.plan["prefill_rows"] == after.plan["prefill_rows"] == 0:
            seen |= {"dropped by a decoding row" for row in dropped if then.get(row, 0) > dropped[row]}
        seen |= {
            "forgot and was preempted" for time_ns, row in preempted if time_ns == after.start_ns and row in dropped
        }
    for step in result.steps:
        dropped = gaps(step)
        rows = [row for row, _ in step.planned]
        seen |= {"dropped before" for row in rows if row in dropped}
        longest = max((len(t.blocks) + t.dropped - 1 for t in (step.tables or {}).values() if t.row in rows), default=0)
        if step.plan["launch_kind"] == 1 and step.plan["context_bucket"] <= longest * config.block_size_tokens:
            seen.add("captured context shorter than the row")
    return {f"{config.prefill}: {word}" for word in seen}


def test_random_cases_are_of_every_kind() -> None:
    """200 seeds keep every invariant, and meet every word and outcome."""
    seen: set[str] = set()
    for seed in range(200):
        case = random_case(seed)
        result = simulate(case.config, case.arrivals, case.step_cost, tables=True)
        config = case.config
        seen |= {config.reserve, config.placement, config.prefill, config.admission, config.refill, config.launch}
        seen |= {config.mixed, config.read_what, config.layout, config.staging, config.scope, config.over_limit}
        seen |= {f"merge {config.merge}", f"extent {config.read_extent}", f"release {config.release_order}"}
        seen |= {f"order {config.order}", f"victim {config.victim}", f"tail {config.partial_tail}"}
        seen |= {"aging"} if config.aging_ns is not None else set()
        seen |= sharing_seen(case, result)
        seen |= {"far history"} if config.far_history else set()
        seen |= {r.reason for r in result.requests}
        seen |= {"preempted" for r in result.requests if r.preemptions}
        seen |= {"moved" for step in result.steps if step.row_moves}
        seen |= {"off the ladder" for step in result.steps if step.off_ladder}
        seen |= {"rounds" for step in result.steps if step.plan["rounds"] > 1}
    assert seen == {
        "max_len", "pow2", "declared", "oracle", "bucket", "paged", "lifo", "fifo", "lowest", "extent", "contiguous",
        "buddy", "order fcfs", "order shortest_prompt", "order shortest_total", "order priority", "aging",
        "victim last", "victim least_computed", "victim largest", "victim lowest_priority",
        "release reverse", "release sorted", "tail recompute", "tail copy",
        "hash blocks longer", "hash blocks equal", "hash blocks shorter", "no ids", "no hit", "hit", "copied", "shared",
        "evicted",
        "none", "chunked", "separate", "full_prompt", "first_chunk", "continuous", "batch", "eager", "graph",
        "piecewise", "reserved", "live", "table", "staged", "layer_major", "block_major", "full", "delta", "layer",
        "model", "reject", "truncate", "error", "merge none", "merge adjacent", "extent live", "extent bucket",
        "trace_end", "over_limit", "unservable", "context_limit", "declared_limit",
        "preempted", "moved", "off the ladder", "rounds", "far history",
    }  # fmt: skip


def test_random_cases_with_far_history_are_of_every_kind() -> None:
    """With `none` a request is unservable only where S + N blocks are more than the pool."""
    seen: set[str] = set()
    for seed in range(200):
        case = random_case(seed, far_history=True)
        seen |= far_history_seen(case, simulate(case.config, case.arrivals, case.step_cost, tables=True))
    kinds = {
        "no summaries", "summaries", "dropped before", "dropped by a decoding row", "forgot and was preempted",
        "captured context shorter than the row", "larger than the pool", "unservable",
    }  # fmt: skip
    expected = {f"{prefill}: {kind}" for prefill in ("none", "chunked", "separate") for kind in kinds}
    assert seen - {"none: unservable"} == expected - {"none: unservable", "separate: larger than the pool"}


def run_ahead_seen(case: Case, result: ReferenceResult) -> set[str]:
    """What a case shows of run-ahead."""
    config = case.config
    seen = {event.kind for event in result.events if event.kind in ("preempt_ended", "release_ended")}
    for before, after in pairwise(result.steps):
        if before.end_ns == after.start_ns and not after.plan["follows"]:
            seen.add("emptied between two steps")
        if after.held_up:
            seen |= {
                "waits",
                "waits while others are planned" if after.plan["follows"] else "waits in an empty pipeline",
            }
        if after.pending_blocks > 0 and before.pending_blocks > 0:
            seen.add("fenced over two decisions")
        if after.plan["ended_rows"] == after.plan["decode_rows"] > 0:
            seen.add("nobody but ended rows")
    admitted = {event.row: event.time_ns for event in reversed(result.events) if event.kind == "admit"}
    for arrival in case.arrivals:
        began = [step for step in result.steps if arrival.arrival_ns <= step.start_ns]
        if began and began[0].plan["follows"] and admitted.get(arrival.row, 0) > began[0].start_ns:
            seen.add("seen late, or waited")
    seen |= {"with far history"} if config.far_history else set()
    seen |= {"with sharing"} if config.prefix_sharing else set()
    return {f"{config.run_ahead}: {word}" for word in seen} | {
        f"{config.run_ahead}, {config.reserve}, {config.prefill}"
    }


def test_random_cases_with_run_ahead_are_of_every_kind() -> None:
    """Also that a row waits in the first step after an empty pipeline: what is given back there is fenced as ever."""
    seen: set[str] = set()
    for seed in range(300):
        case = random_case(seed, run_ahead=True)
        assert case == random_case(seed, run_ahead=True)
        seen |= run_ahead_seen(case, simulate(case.config, case.arrivals, case.step_cost))
    kinds = {
        "release_ended", "preempt_ended", "emptied between two steps", "waits", "waits while others are planned",
        "waits in an empty pipeline", "fenced over two decisions", "nobody but ended rows", "seen late, or waited",
        "with far history", "with sharing",
    }  # fmt: skip
    reserves = ("paged", "max_len", "pow2", "declared", "oracle", "bucket")
    policies = {f"{d}, {r}, {prefill}" for d in (1, 2) for r in reserves for prefill in ("none", "chunked", "separate")}
    assert seen == {f"{d}: {kind}" for d in (1, 2) for kind in kinds} | policies


def swapping_seen(case: Case, result: ReferenceResult) -> set[str]:
    """What a case shows of swapping."""
    config = case.config
    kinds = [(event.kind, event.row) for event in result.events]
    swapped = {event.row for event in result.events if event.kind == "swap_out"}
    seen = {kind for kind, _ in kinds if kind in ("swap_out", "swap_in")}
    seen |= {"swapped twice" for row in swapped if kinds.count(("swap_out", row)) > 1}
    preempted = sum(r.preemptions for r in result.requests)
    seen |= {"computed again beside"} if preempted > result.swaps > 0 else set()
    for step in result.steps:
        plan = step.plan
        seen |= {"out and in in one step"} if plan["host_out_blocks"] and plan["host_in_blocks"] else set()
        seen |= {"scattered"} if 1 < plan["host_out_groups"] < plan["host_out_blocks"] else set()
        seen |= {"none merged"} if config.host_merge == "none" and plan["host_out_blocks"] > 1 else set()
        seen |= {"waits for who leaves"} if step.held_up and not config.run_ahead else set()
        seen |= {"pending"} if step.pending_blocks and not config.run_ahead else set()
        seen |= {"with delta staging"} if config.staging == "delta" and plan["host_in_blocks"] else set()
        seen |= {"comes in beside a prompt"} if plan["host_in_blocks"] and plan["prefill_rows"] else set()
    starts = [step.start_ns for step in result.steps]
    for t in result.transfers:
        assert t.completed_ns is not None
        assert t.noticed_ns is not None
        seen |= {"noticed late"} if t.noticed_ns > t.completed_ns else set()
        seen |= {"idle until it was complete"} if t.noticed_ns == t.completed_ns else set()
        others = [o for o in result.transfers if o is not t and o.submitted_ns < t.completed_ns]
        others = [o for o in others if o.completed_ns is not None and o.completed_ns > t.submitted_ns]
        seen |= {"shares" if o.direction == t.direction else "both directions at once" for o in others}
        taken = t.completed_ns - t.submitted_ns
        seen |= (
            {"slowed down"}
            if others and all(o.direction != t.direction for o in others) and taken > t.alone_ns
            else set()
        )
        seen |= {"on the link for steps"} if sum(t.submitted_ns < at < t.completed_ns for at in starts) > 1 else set()
    seen |= {"with sharing"} if config.prefix_sharing and swapped else set()
    mode = f"{config.prefill}, {'overlapped' if config.host_overlap else 'series'}"
    return seen | ({f"{config.preempt}, {mode}"} if swapped else set())


def offload_seen(case: Case, result: ReferenceResult) -> set[str]:
    """What a case shows of offload."""
    config = case.config
    loads = [event for event in result.events if event.kind == "load"]
    seen = (
        {f"{config.prefill}, {config.admission}, {'overlapped' if config.host_overlap else 'series'}"}
        if loads
        else set()
    )
    seen |= {"kept"} if result.offloaded_blocks else set()
    seen |= {"nothing evicted"} if not result.offloaded_blocks else set()
    seen |= {"the host is full"} if result.cached_host_blocks == config.host_blocks else set()
    seen |= {"loaded after a preemption" for event in loads if result.requests[event.row].preemptions}
    seen |= {"loads twice" for event in loads if sum(other.row == event.row for other in loads) > 1}
    for step in result.steps:
        plan = step.plan
        seen |= {"out and in in one step"} if plan["offload_blocks"] and plan["host_in_blocks"] else set()
        seen |= {"scattered"} if 1 < plan["host_in_groups"] < plan["host_in_blocks"] else set()
        seen |= {"several in one decision"} if sum(event.time_ns == step.start_ns for event in loads) > 1 else set()
    for t in result.transfers:
        seen |= {"noticed late"} if (t.noticed_ns or 0) > (t.completed_ns or 0) else set()
        others = [o for o in result.transfers if o is not t and o.direction == t.direction == "in"]
        seen |= {"loads share" for o in others if t.submitted_ns <= o.submitted_ns < (t.completed_ns or 0)}
    seen |= {"swapping beside"} if result.swaps and loads else set()
    return seen


@pytest.mark.parametrize("run_ahead", [False, True])
def test_random_cases_with_offload_are_of_every_kind(run_ahead: bool) -> None:
    """With swapping and without, alone and ahead. With `none` nothing is loaded."""
    seen: set[str] = set()
    for seed in range(500):
        case = random_case(seed, host=seed % 2 == 0, offload=True, run_ahead=run_ahead)
        cheaper = moves_if_cheaper(case)
        result = simulate(case.config, case.arrivals, case.step_cost, swap_is_cheaper=cheaper, load_is_cheaper=cheaper)
        seen |= offload_seen(case, result)
    assert seen == {
        "kept", "nothing evicted", "the host is full", "loaded after a preemption", "loads twice",
        "out and in in one step", "scattered", "several in one decision", "noticed late", "loads share",
        "swapping beside",
        *(f"{how}, {when}" for how in ("chunked, full_prompt", "chunked, first_chunk", "separate, full_prompt")
          for when in ("series", "overlapped")),
    }  # fmt: skip


def test_random_cases_with_a_host_are_of_every_kind() -> None:
    """Alone and ahead. Nothing moves but by swapping."""
    both: dict[bool, set[str]] = {}
    for run_ahead in (False, True):
        seen = both.setdefault(run_ahead, set())
        for seed in range(400):
            case = random_case(seed, host=True, run_ahead=run_ahead)
            cheaper = moves_if_cheaper(case)
            result = simulate(case.config, case.arrivals, case.step_cost, swap_is_cheaper=cheaper)
            seen |= swapping_seen(case, result)
    kinds = {
        "swap_out", "swap_in", "swapped twice", "computed again beside", "out and in in one step", "scattered",
        "none merged", "with delta staging", "comes in beside a prompt", "noticed late", "idle until it was complete",
        "shares", "both directions at once", "slowed down", "on the link for steps", "with sharing",
    }  # fmt: skip
    kinds |= {
        f"{preempt}, {prefill}, {how}" for preempt in ("swap", "auto") for prefill in ("none", "chunked", "separate")
        for how in ("series", "overlapped")
    }  # fmt: skip
    assert both == {False: kinds | {"pending", "waits for who leaves"}, True: kinds}


@given(cases(max_rows=12), cases(max_rows=12, run_ahead=True, host=True, offload=True), st.booleans(), st.data())
@settings(max_examples=60)
def test_a_stop_cuts_a_replay_short_and_changes_nothing_before(
    case: Case, ahead: Case, is_ahead: bool, data: st.DataObject
) -> None:
    case = ahead if is_ahead else case
    until_ns = data.draw(horizons(case))
    whole = simulate(case.config, case.arrivals, case.step_cost)
    cut = simulate(case.config, case.arrivals, case.step_cost, until_ns=until_ns)
    end_ns = float("inf") if until_ns is None else until_ns
    assert cut.steps == [step for step in whole.steps if step.start_ns < end_ns]
    ended = [event for event in whole.events if event.time_ns < end_ns]
    assert [event for event in cut.events if event.time_ns < end_ns] == ended
    assert len(cut.requests) == sum(arrival.arrival_ns <= end_ns for arrival in case.arrivals)

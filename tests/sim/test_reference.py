"""The reference against hand-computed cases: small inputs whose right answer is known without any simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceInputError, ReferenceResult, simulate
from tests.sim.reference_records import Table
from tests.sim.strategies import constant

SECOND = 1_000_000_000


def paged(**changes: object) -> ReferenceConfig:
    """Paged, one-token blocks, chunked prefill, eager, table reads; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=100_000, pool_blocks=1000, block_size_tokens=1, placement="lifo", slots=64,
        prefill="chunked", token_budget=100_000, read_what="table", read_extent="live",
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def contiguous(**changes: object) -> ReferenceConfig:
    """One run for each request, best fit, live reads; with changes."""
    return paged(**({"reserve": "oracle", "placement": "contiguous", "read_what": "live"} | changes))


def at_once(*lengths: tuple[int, int]) -> list[Arrival]:
    """(prompt, output) of requests that all arrive at 0."""
    return [Arrival(row, 0, prompt, output) for row, (prompt, output) in enumerate(lengths)]


def ttft_ns(result: ReferenceResult) -> list[int | None]:
    return [None if r.first_token_ns is None else r.first_token_ns - r.arrival_ns for r in result.requests]


def outcomes(result: ReferenceResult) -> list[str]:
    return [r.outcome for r in result.requests]


def times(result: ReferenceResult, kind: str, row: int) -> list[int]:
    return [event.time_ns for event in result.events if event.kind == kind and event.row == row]


def test_unservable_is_rejected_and_the_rest_finish() -> None:
    """B02: pool of 50 x 16; a request of 900 entries (57 blocks) at the head does not stop nine small ones."""
    config = paged(pool_blocks=50, block_size_tokens=16)
    result = simulate(config, at_once((800, 101), *[(20, 5)] * 9), constant(SECOND))
    assert outcomes(result) == ["rejected"] + ["completed"] * 9
    assert result.requests[0].reason == "unservable"
    assert result.free_blocks == 50


def test_preempted_request_is_not_readmitted_in_vain() -> None:
    """B05: pool of 20 x 16, two requests of 160 + 160: both finish, one preemption, peak 20, all free at the end."""
    config = paged(pool_blocks=20, block_size_tokens=16)
    result = simulate(config, at_once((160, 160), (160, 160)), constant(SECOND))
    assert outcomes(result) == ["completed", "completed"]
    assert [r.preemptions for r in result.requests] == [0, 1]
    assert result.requests[1].recomputed_tokens == 160
    assert max(step.allocated_blocks for step in result.steps) == 20
    assert result.free_blocks == 20
    # Row 0 alone from its second token on; then row 1 re-prefills 161 tokens, which gives its second token.
    assert result.requests[0].finish_ns == 160 * SECOND
    assert result.requests[1].finish_ns == (160 + 159) * SECOND


def test_full_prompt_admission_waits_where_first_chunk_admission_thrashes() -> None:
    """B06: pool of 1000; four hold 225 each and more; the fifth needs 225."""
    requests = [*at_once(*[(225, 20)] * 4), Arrival(4, 16 * SECOND, 225, 20)]
    config = paged(pool_blocks=1000, token_budget=64, slots=8)
    waits = simulate(config, requests, constant(SECOND))
    assert [r.preemptions for r in waits.requests] == [0, 0, 0, 0, 0]
    assert waits.requests[4].admitted_ns == waits.requests[0].finish_ns
    thrashes = simulate(replace(config, admission="first_chunk"), requests, constant(SECOND))
    assert thrashes.requests[4].admitted_ns == 16 * SECOND
    assert thrashes.requests[4].preemptions > 1
    assert thrashes.requests[4].recomputed_tokens > 100
    assert outcomes(thrashes) == ["completed"] * 5


def test_the_last_admitted_is_the_victim_whatever_it_loses() -> None:
    """B08: the last admitted has 8000 computed tokens, another 100: the 8000 are lost."""
    result = simulate(paged(pool_blocks=8100), at_once((100, 20), (8000, 20)), constant(SECOND))
    assert [r.preemptions for r in result.requests] == [0, 1]
    assert [r.recomputed_tokens for r in result.requests] == [0, 8000]


def test_a_declared_maximum_blocks_others() -> None:
    """B15: pool of 768 x 16; R1 declares 12000 and makes 50: reserves 757 blocks, fills 10; R2 waits on 11 free."""
    config = contiguous(reserve="declared", pool_blocks=768, block_size_tokens=16)
    requests = [Arrival(0, 0, 100, 50, 12_000), Arrival(1, 0, 512, 512, 512)]
    result = simulate(config, requests, constant(SECOND))
    alone = [step for step in result.steps if step.start_ns < 50 * SECOND]
    assert {(step.reserved_blocks, step.allocated_blocks) for step in alone} == {(757, 757)}
    assert alone[-1].used_tokens == 148
    assert config.blocks(alone[-1].used_tokens + 1) == 10
    assert result.requests[1].admitted_ns == result.requests[0].finish_ns == 50 * SECOND
    assert result.steps[50].reserved_blocks == 64


def test_internal_waste_of_a_17_token_prompt() -> None:
    """B19: block 16, 17-token prompts: 17 of 32 token slots hold data."""
    result = simulate(paged(block_size_tokens=16), at_once((17, 3), (17, 3)), constant(SECOND))
    decode = result.steps[1]
    assert (decode.used_tokens, decode.allocated_blocks * 16) == (2 * 17, 2 * 32)


def test_contiguous_waits_for_a_run_where_paged_starts_at_once() -> None:
    """B20: 100 cells all held; three runs of 20, apart, come free at 1 s; 30 are asked for."""
    holders = at_once((20, 1), (2, 9), (20, 1), (12, 9), (20, 1), (2, 9))  # 20, 10, 20, 20, 20, 10 entries
    requests = [*holders, Arrival(6, SECOND, 30, 1)]
    admitted = {
        config.placement: simulate(config, requests, constant(SECOND)).requests[6].admitted_ns
        for config in (contiguous(pool_blocks=100), paged(pool_blocks=100))
    }
    assert admitted == {"contiguous": 9 * SECOND, "lifo": SECOND}


def test_watermark_binds_admissions_but_not_the_first() -> None:
    config = paged(pool_blocks=10, watermark_blocks=5)
    result = simulate(config, at_once((8, 2), (1, 1)), constant(SECOND))
    assert [r.admitted_ns for r in result.requests] == [0, 2 * SECOND]


def test_a_static_batch_is_filled_in_several_prefills_and_then_run_to_its_end() -> None:
    config = contiguous(prefill="separate", token_budget=10, refill="batch", slots=2)
    result = simulate(config, at_once((10, 2), (10, 4), (10, 1)), constant(SECOND))
    # Two prefill steps, then decode steps until the longer one is done; only then the third.
    assert [step.planned for step in result.steps[:3]] == [((0, 10),), ((1, 10),), ((0, 1), (1, 1))]
    assert [r.finish_ns for r in result.requests] == [3 * SECOND, 5 * SECOND, 6 * SECOND]


def test_a_request_ended_by_the_limit_counts_what_was_delivered() -> None:
    """A15: limit 1024, 1000 in, 100 out: 24 tokens, ended by the limit."""
    config = paged(limit_tokens=1024, pool_blocks=1024, over_limit="truncate")
    (row,) = simulate(config, at_once((1000, 100)), constant(SECOND)).requests
    assert (row.outcome, row.reason, row.delivered) == ("truncated", "context_limit", 24)
    rejecting = replace(config, over_limit="reject")
    (row,) = simulate(rejecting, at_once((1000, 100)), constant(SECOND)).requests
    assert (row.outcome, row.reason, row.delivered) == ("rejected", "over_limit", 0)
    with pytest.raises(ReferenceInputError, match="row 1"):
        simulate(replace(config, over_limit="error"), at_once((5, 5), (1000, 100)), constant(SECOND))


def test_declared_maximum_ends_a_request_and_one_is_needed() -> None:
    config = contiguous(reserve="declared", limit_tokens=100)
    (row,) = simulate(config, [Arrival(0, 0, 10, 50, 20)], constant(SECOND)).requests
    assert (row.outcome, row.reason, row.delivered) == ("truncated", "declared_limit", 20)
    (row,) = simulate(config, [Arrival(0, 0, 90, 50, 20)], constant(SECOND)).requests
    assert (row.outcome, row.reason, row.delivered) == ("truncated", "context_limit", 10)
    with pytest.raises(ReferenceInputError, match="row 0"):
        simulate(config, at_once((10, 50)), constant(SECOND))


def test_unfinished_requests_are_reported() -> None:
    """E02: 10 injected, 6 done at the stop: 10 rows, 4 unfinished."""
    result = simulate(paged(slots=1), at_once(*[(5, 1)] * 10), constant(SECOND), until_ns=6 * SECOND)
    assert outcomes(result) == ["completed"] * 6 + ["unfinished"] * 4
    # Nothing is decided at the stop itself.
    assert result.requests[6].admitted_ns is None
    assert result.requests[6].reason == "stopped"


def test_times_of_a_preempted_request_are_of_its_first_life() -> None:
    """E03: first token at 1, preempted at 2, resumed at 5, end at 10: TTFT 1, E2E 10, the wait is a gap."""
    result = simulate(paged(pool_blocks=8), at_once((4, 5), (2, 7)), constant(SECOND))
    row = result.requests[1]
    assert times(result, "preempt", 1) == [2 * SECOND]
    assert times(result, "admit", 1) == [0, 5 * SECOND]
    assert (row.first_token_ns, row.finish_ns) == (1 * SECOND, 10 * SECOND)
    assert sorted(result.itl_ns)[-1] == 4 * SECOND  # tokens at 2 and at 6
    assert row.recomputed_tokens == 3


def test_ttft_counts_the_wait() -> None:
    """E13: service of 4 s, one slot, 10 at once: TTFT 4, 8, …, 40."""
    result = simulate(paged(slots=1), at_once(*[(5, 1)] * 10), constant(4 * SECOND))
    assert ttft_ns(result) == [4 * SECOND * (row + 1) for row in range(10)]


def test_order_of_one_instant() -> None:
    """F03: at 1 s a step ends, its request frees the pool, another arrives: it starts at once."""
    requests = [Arrival(0, 0, 10, 1), Arrival(1, SECOND, 10, 1)]
    result = simulate(paged(pool_blocks=10), requests, constant(SECOND))
    assert [(event.time_ns, event.kind) for event in result.events if event.time_ns == SECOND] == [
        (SECOND, "first_token"), (SECOND, "finish"), (SECOND, "arrive"), (SECOND, "admit"),
    ]  # fmt: skip
    assert result.requests[1].finish_ns == 2 * SECOND


def test_the_first_token_is_no_gap() -> None:
    """G01: tokens at 1.0, 1.1, 1.2: ITL [0.1, 0.1]."""

    def step_ns(plan: dict[str, int]) -> int:
        return SECOND if plan["prefill_rows"] else SECOND // 10

    result = simulate(paged(), at_once((5, 3)), step_ns)
    assert ttft_ns(result) == [SECOND]
    assert result.itl_ns == [SECOND // 10, SECOND // 10]


def test_ttft_is_the_end_of_the_last_chunk() -> None:
    """G07: chunks of 0.9 s and 1.3 s: TTFT 2.2 s."""

    def step_ns(plan: dict[str, int]) -> int:
        return {64: 900_000_000, 36: 1_300_000_000}[plan["prefill_tokens"]]

    result = simulate(paged(token_budget=64), at_once((100, 1)), step_ns)
    assert [step.planned for step in result.steps] == [((0, 64),), ((0, 36),)]
    assert [step.plan["sampled_rows"] for step in result.steps] == [0, 1]
    assert ttft_ns(result) == [2_200_000_000]


def test_integers_of_a_mixed_step() -> None:
    """A decoding row with 8 entries beside the second chunk, 6 of 10 tokens, of a prompt."""
    config = paged(token_budget=12, slots=4, launch="graph", batch_sizes=(4,), context_buckets_tokens=(64,))
    config = replace(config, mixed="piecewise", token_sizes=(8, 16))
    result = simulate(config, at_once((8, 9), (10, 1)), constant(1))
    assert [step.planned for step in result.steps[:3]] == [((0, 8), (1, 4)), ((0, 1), (1, 6)), ((0, 1),)]
    mixed, decode = result.steps[1].plan, result.steps[2].plan
    assert mixed == {
        "decode_rows": 1, "prefill_rows": 1, "prefill_tokens": 6, "prefill_read_tokens": 10,
        "prefill_pairs": 6 * 4 + 21, "sampled_rows": 2, "launch_kind": 2, "padded_rows": 2, "dense_tokens": 8,
        "context_bucket": 0, "read_tokens": 9, "groups": 0, "moved_blocks": 0, "needed_tokens": 0, "segments": 0,
        "rounds": 0, "copied_blocks": 0, "captured": 0, "ended_rows": 0, "follows": 0, "blocks_taken": 1,
        "blocks_freed": 0, "compacted_blocks": 0, "compaction_groups": 0, "host_out_blocks": 0, "host_out_groups": 0,
        "host_in_blocks": 0, "host_in_groups": 0, "offload_blocks": 0, "offload_groups": 0, "drafted_tokens": 0,
    }  # fmt: skip
    assert (decode["launch_kind"], decode["padded_rows"], decode["dense_tokens"]) == (1, 4, 4)
    assert (decode["context_bucket"], decode["read_tokens"], decode["blocks_freed"]) == (64, 10, 10)


def test_rows_move_only_into_a_smaller_captured_batch() -> None:
    """Rows 0 and 1 end after two tokens; with batch 2 captured, row 2 moves from slot 2 to slot 0."""
    config = paged(launch="graph", slots=4, context_buckets_tokens=(1000,))
    requests = at_once((4, 2), (4, 2), (4, 6))
    small = simulate(replace(config, batch_sizes=(2, 4)), requests, constant(1), tables=True)
    assert [step.row_moves for step in small.steps] == [0, 0, 1, 0, 0, 0]
    assert [list(step.tables or {}) for step in small.steps[1:3]] == [[0, 1, 2], [0]]
    # Rows 0 and 1 gave back 13 4 3 2 1 and 14 8 7 6 5, so 5 is on top; the staging row stays.
    assert small.steps[2].tables == {0: Table(2, 2, (9, 10, 11, 12, 15, 5))}
    large = simulate(replace(config, batch_sizes=(4,)), requests, constant(1), tables=True)
    assert [step.row_moves for step in large.steps] == [0] * 6


def test_off_the_ladder_is_eager_and_counted() -> None:
    config = paged(launch="graph", slots=4, batch_sizes=(1,), context_buckets_tokens=(6,))
    result = simulate(config, at_once((4, 2), (4, 6)), constant(1))
    # Prefill (eager by choice), two rows > 1, one row at contexts 6, 7, 8, 9.
    assert [step.off_ladder for step in result.steps] == [False, True, False, True, True, True]
    assert [step.plan["launch_kind"] for step in result.steps] == [0, 0, 1, 0, 0, 0]


def test_staging_in_full_and_by_difference() -> None:
    """Two rows with interleaved blocks: full moves every run each step, delta moves a row once."""
    config = paged(read_what="staged", block_size_tokens=2, layers=3, token_budget=64)
    requests = at_once((4, 4), (4, 4))
    full = simulate(config, requests, constant(1))
    # Histories of 4, 5, 6 entries: blocks 1 2 | 5 and 3 4 | 6.
    assert [step.plan["groups"] for step in full.steps] == [0, 2, 4, 4]
    assert [step.plan["moved_blocks"] for step in full.steps] == [0, 4, 6, 6]
    assert [step.plan["needed_tokens"] for step in full.steps] == [0, 8, 10, 12]
    assert [step.plan["segments"] for step in full.steps] == [0, 6, 12, 12]
    unmerged = simulate(replace(config, merge="none", layout="block_major"), requests, constant(1))
    assert [step.plan["groups"] for step in unmerged.steps] == [0, 4, 6, 6]
    assert [step.plan["segments"] for step in unmerged.steps] == [0, 12, 18, 18]
    delta = simulate(replace(config, scope="model", staging="delta", group_capacities=(1,)), requests, constant(1))
    assert [step.plan["groups"] for step in delta.steps] == [0, 2, 0, 0]
    assert [step.plan["rounds"] for step in delta.steps] == [0, 2, 0, 0]

"""The reference's run-ahead against small cases by hand: what a decision knows, ended rows, fences, rows that wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.strategies import constant

SECOND = 1_000_000_000


def ahead(depth: int, **changes: object) -> ReferenceConfig:
    """Paged, one-token blocks, a stack, whole prompts in one step, ``depth`` steps ahead; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=100, pool_blocks=100, block_size_tokens=1, placement="lifo", slots=8,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live", run_ahead=depth,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def reserved(depth: int, **changes: object) -> ReferenceConfig:
    """The same with reservations of exactly what is written: no row has room to run on."""
    return ahead(depth, **({"reserve": "oracle", "placement": "contiguous", "read_what": "live"} | changes))


def run(config: ReferenceConfig, *rows: tuple[float, int, int]) -> ReferenceResult:
    """Requests of (arrival in seconds, prompt, output), steps of one second, tables kept."""
    arrivals = [
        Arrival(row, int(seconds * SECOND), prompt, output) for row, (seconds, prompt, output) in enumerate(rows)
    ]
    return simulate(config, arrivals, constant(SECOND), tables=True)


def planned(result: ReferenceResult) -> list[tuple[int, ...]]:
    """The rows of each step."""
    return [tuple(row for row, _ in step.planned) for step in result.steps]


def plans(result: ReferenceResult, name: str) -> list[int]:
    return [step.plan[name] for step in result.steps]


def admitted_s(result: ReferenceResult) -> list[float | None]:
    return [None if r.admitted_ns is None else r.admitted_ns / SECOND for r in result.requests]


def table(result: ReferenceResult, step: int, row: int) -> tuple[int, ...]:
    """The blocks of a row in a step."""
    return next(found.blocks for found in (result.steps[step].tables or {}).values() if found.row == row)


@pytest.mark.parametrize(("depth", "seconds"), [(0, [0, 1, 1, 2]), (1, [0, 2, 2, 3]), (2, [0, 3, 3, 4])])
def test_an_arrival_is_seen_when_the_horizon_has_reached_it(depth: int, seconds: list[float]) -> None:
    """Steps start at 0, 1, 2, …. With d = 1 decision 2 knows what was at 1, the start of step 1; with d = 2 decision 3
    does. What arrives at 0.5 and what arrives at 1 itself is seen there, what arrives at 1.5 a step later."""
    result = run(ahead(depth), (0, 1, 9), (0.5, 1, 1), (1, 1, 1), (1.5, 1, 1))
    assert admitted_s(result) == seconds


def test_a_rejection_is_at_its_own_time() -> None:
    result = run(ahead(2), (0, 1, 9), (0.5, 100, 1))
    assert [(e.kind, e.time_ns / SECOND) for e in result.events if e.row == 1] == [("arrive", 0.5), ("reject", 0.5)]


def test_an_ended_row_runs_on_and_delivers_nothing() -> None:
    """d = 2, 4 + 2 tokens: the last token at the end of step 1, the row released at the end of step 3.

    Its fifth entry is that of the first token; the entries of steps 2 and 3 are for nobody.
    """
    result = run(ahead(2), (0, 4, 2))
    assert planned(result) == [(0,)] * 4
    assert plans(result, "ended_rows") == [0, 0, 1, 1]
    assert plans(result, "decode_rows") == [0, 1, 1, 1]
    assert plans(result, "sampled_rows") == [1, 1, 1, 1]
    assert plans(result, "blocks_taken") == [4, 1, 1, 1]
    assert plans(result, "follows") == [0, 1, 1, 1]
    assert [step.used_tokens for step in result.steps] == [0, 4, 5, 6]
    (row,) = result.requests
    assert (row.outcome, row.delivered, row.finish_ns) == ("completed", 2, 2 * SECOND)
    assert result.itl_ns == [SECOND]
    assert [e.time_ns // SECOND for e in result.events if e.kind == "release_ended"] == [4]
    assert result.free_blocks == 100


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (ahead(2, limit_tokens=8), 4),
        (ahead(2, limit_tokens=7), 2),  # room for one token, two would be made
        (ahead(1, limit_tokens=7), 3),
        (ahead(1, limit_tokens=6), 2),
        (reserved(1), 2),
        (reserved(2, reserve="max_len", limit_tokens=7, slots=1), 4),  # 7 entries are reserved, 5 written
        (reserved(2, reserve="max_len", limit_tokens=6, slots=1), 2),
    ],
)
def test_an_end_that_the_limit_or_the_reservation_brings_is_known(config: ReferenceConfig, steps: int) -> None:
    """4 + 2 tokens: two steps, and as many more as nobody has noticed yet, if there is room for them."""
    result = run(config, (0, 4, 2))
    assert len(result.steps) == steps
    assert result.requests[0].finish_ns == 2 * SECOND


def test_a_decision_that_plans_nothing_knows_everything() -> None:
    """d = 1, 4 + 2 tokens: released at 3. What arrives at 2.5 is not known to decision 3 (its horizon is the start of
    step 2), but that plans nothing, so it is decided again with nothing in flight: step 3 follows no other."""
    result = run(ahead(1), (0, 4, 2), (2.5, 4, 3))
    assert admitted_s(result) == [0, 3]
    assert plans(result, "follows") == [0, 1, 1, 0, 1, 1, 1]
    assert plans(result, "blocks_freed")[3] == 6


def test_after_an_idle_time_the_horizon_begins_anew() -> None:
    """d = 2. Idle from 4 to 10; step 4 starts at 10 and is f: decisions 5 and 6 know what was at 10, decision 7 what
    was at 11."""
    result = run(ahead(2), (0, 4, 2), (10, 1, 9), (10, 1, 1), (10.5, 1, 1))
    assert admitted_s(result) == [0, 10, 10, 13]
    assert plans(result, "follows")[3:6] == [1, 0, 1]


@pytest.mark.parametrize(("depth", "pending"), [(0, [0, 0, 0]), (1, [0, 4, 0]), (2, [0, 4, 4, 0])])
def test_what_is_given_back_is_fenced_for_d_decisions(depth: int, pending: list[int]) -> None:
    """16 entries: 4, 10 and a hole of 2; the third request needs a run of 4. The first ends at 1 s, with step 0, and
    its run is free again in decision 1 + d."""
    result = run(reserved(depth, pool_blocks=16), (0, 4, 1), (0, 2, 9), (0, 3, 2))
    assert admitted_s(result) == [0, 0, 1 + depth]
    assert [step.pending_blocks for step in result.steps][: len(pending)] == pending
    assert plans(result, "blocks_freed")[1] == 4  # counted when it is given back
    assert {step.allocated_blocks for step in result.steps[1 : 1 + depth]} <= {10}
    assert table(result, 1 + depth, 2) == (1, 2, 3, 4)


def test_one_victim_and_then_the_row_waits_for_its_fence() -> None:
    """B09: blocks of 4 entries, 8 of them, four rows with 2 each. In decision 2 row 0 needs its third block.

    Row 3 goes; its two blocks are pending, so nobody else goes: row 0 waits, the others decode. A decision later it has
    its block, and the one that is left is too little for row 3 (7 tokens).
    """
    config = ahead(1, pool_blocks=8, block_size_tokens=4)
    result = run(config, (0, 7, 9), (0, 5, 9), (0, 5, 9), (0, 5, 9))
    assert planned(result)[:4] == [(0, 1, 2, 3), (0, 1, 2, 3), (1, 2), (0, 1, 2)]
    assert [step.held_up for step in result.steps[:4]] == [(), (), (0,), ()]
    assert [e.row for e in result.events if e.kind == "preempt" and e.time_ns <= 3 * SECOND] == [3]
    assert [step.pending_blocks for step in result.steps[:4]] == [0, 0, 2, 0]
    # A row that waits delivers nothing: its third token comes one step later than that of row 1.
    assert plans(result, "sampled_rows")[:4] == [4, 4, 2, 3]
    # With d = 2 it waits for two decisions; in the second of them row 2 lacks a block itself, and none is pending.
    longer = run(replace(config, run_ahead=2), (0, 7, 9), (0, 5, 9), (0, 5, 9), (0, 5, 9))
    assert planned(longer)[2:5] == [(1, 2), (1, 2), (0, 1)]
    assert [step.pending_blocks for step in longer.steps[:5]] == [0, 0, 2, 2, 2]
    assert [e.row for e in longer.events if e.kind == "preempt" and e.time_ns <= 4 * SECOND] == [3, 2]


def test_a_row_that_waits_keeps_its_batch_row_in_a_captured_batch() -> None:
    """B09 with graphs: in step 2 rows 1 and 2 decode, row 0 waits in batch row 0. Three are live, so the batch is 4."""
    config = ahead(1, pool_blocks=8, block_size_tokens=4, launch="graph", batch_sizes=(1, 2, 4))
    result = run(replace(config, context_buckets_tokens=(100,)), (0, 7, 9), (0, 5, 9), (0, 5, 9), (0, 5, 9))
    assert (result.steps[2].plan["decode_rows"], result.steps[2].plan["padded_rows"]) == (2, 4)
    assert result.steps[2].row_moves == 0
    assert sorted(result.steps[2].tables or {}) == [0, 1, 2]


def test_nobody_is_admitted_while_a_row_waits() -> None:
    """16 blocks, chunks of 7 less what decodes: row 0 decodes, row 1 ends with step 0 and runs on, row 2 has 12 tokens.

    Steps 0 and 1 take 1 + 2 + 4 and 1 + 1 + 5, so 2 are free, and row 1 gives 3 back at 2 s, to be free at 3 s. In
    decision 2 row 0 takes one, row 2 lacks 3 and waits for them; the block that is free is not given to request 3.
    """
    config = ahead(1, pool_blocks=16, slots=4, token_budget=7, admission="first_chunk")
    result = run(config, (0, 1, 9), (0, 2, 1), (0, 12, 1), (0.5, 1, 1))
    assert [step.planned for step in result.steps[:4]] == [
        ((0, 1), (1, 2), (2, 4)),
        ((0, 1), (1, 1), (2, 5)),
        ((0, 1),),
        ((0, 1), (2, 3)),
    ]
    assert result.requests[3].admitted_ns not in (2 * SECOND, 3 * SECOND)
    assert [r.preemptions for r in result.requests[:3]] == [0, 0, 0]


def test_a_pending_block_is_not_hit() -> None:
    """Request 0 ends at 1 s, its two keyed blocks are free in decision 2. Who is admitted in decision 1 computes all of
    its prompt, who is admitted in decision 2 hits a block (the last token of a prompt is always computed)."""
    config = ahead(1, limit_tokens=9, block_size_tokens=4, prefix_sharing=True, hash_block_tokens=4, slots=2)
    requests = [Arrival(0, 0, 8, 1, hashes=(0, 1)), Arrival(1, 0, 1, 8), Arrival(2, 0, 8, 1, hashes=(0, 1))]
    result = simulate(config, requests, constant(SECOND))
    assert admitted_s(result) == [0, 0, 1]
    assert result.requests[2].hit_tokens == 0
    assert [step.cached_blocks for step in result.steps[:3]] == [0, 0, 2]
    later = simulate(config, [*requests[:2], replace(requests[2], arrival_ns=SECOND // 2)], constant(SECOND))
    assert admitted_s(later) == [0, 0, 2]
    assert later.requests[2].hit_tokens == 4


def test_ended_rows_are_released_with_the_others_of_their_step_lowest_batch_row_first() -> None:
    """Blocks of 4 entries, 28 of them. Row 1 ended with step 1 and is released at the end of step 2; row 0 ends there
    at the limit and is released at once. Row 0 has the lower batch row: it pushes 25 … 1 on the stack, then row 1
    pushes 26. In decision 4 the fourth request takes 26 and 1 (28 went to row 2)."""
    config = ahead(1, block_size_tokens=4, pool_blocks=28, slots=3)
    result = run(config, (0, 97, 3), (0, 2, 2), (0, 2, 50), (0.5, 8, 1))
    assert planned(result)[:5] == [(0, 1, 2), (0, 1, 2), (0, 1, 2), (2,), (2, 3)]
    assert table(result, 4, 3) == (26, 1)


def test_preempting_an_ended_row_changes_nothing_of_its_request() -> None:
    """7 blocks: in step 1 row 0 takes the last one, and the row of request 1, which has ended, has to go."""
    result = run(ahead(1, pool_blocks=7), (0, 3, 4), (0, 3, 1))
    assert planned(result) == [(0, 1), (0,), (0,), (0,), (0,)]
    assert plans(result, "ended_rows") == [0, 0, 0, 0, 1]
    assert [step.pending_blocks for step in result.steps] == [0, 3, 0, 0, 0]
    assert [r.preemptions for r in result.requests] == [0, 0]
    assert [r.recomputed_tokens for r in result.requests] == [0, 0]
    assert result.requests[1].finish_ns == SECOND
    assert result.preemptions == 1
    assert [e.kind for e in result.events if e.row == 1] == [
        "arrive",
        "admit",
        "first_token",
        "finish",
        "preempt_ended",
    ]


def test_an_ended_row_that_cannot_grow_leaves_an_empty_pipeline() -> None:
    """3 blocks, all taken: the ended row is preempted, nothing is planned, and its blocks are free at once."""
    result = run(ahead(2, pool_blocks=3), (0, 3, 1), (5, 3, 1))
    assert planned(result) == [(0,), (1,)]
    assert admitted_s(result) == [0, 5]
    assert (result.free_blocks, result.preemptions) == (3, 2)


def test_when_all_wait_the_fences_are_lifted_at_once() -> None:
    """11 blocks. In decision 4 row 0 has 7 and row 1 has 4; row 0 needs one more, and has the most, so it goes itself.

    Its blocks are pending, so row 1 waits for them and nothing is planned. With nothing in flight they are free, and
    row 1 is served at the same instant, with a step that follows no other.
    """
    config = ahead(1, pool_blocks=11, victim="largest")
    result = run(config, (0, 4, 8), (0, 1, 9))
    first = next(e for e in result.events if e.kind == "preempt")
    assert (first.time_ns // SECOND, first.row) == (4, 0)
    assert planned(result)[4] == (1,)
    assert plans(result, "follows")[:5] == [0, 1, 1, 1, 0]
    assert plans(result, "blocks_freed")[4] == 7


@pytest.mark.parametrize("depth", [1, 2])
def test_a_decoding_row_that_waits_drops_once(depth: int) -> None:
    """Far history of one block: it drops its block before it looks for the next, which nobody has. It waits without
    one; the two that were given back come back behind their fences, and the row goes on."""
    config = ahead(depth, near_blocks=1, pool_blocks=2, slots=2, prefill="none")
    result = run(config, (0, 1, 4), (0, 1, 4))
    assert [r.outcome for r in result.requests] == ["completed"] * 2
    assert [r.preemptions for r in result.requests] == [0, 0]
    # Step 0 computes both; decision 1 finds nothing but fences, so the pipeline is empty and both go on.
    assert planned(result)[:2] == [(0, 1), (0, 1)]
    assert plans(result, "follows")[:2] == [0, 0]

"""The pager's cases on the core: blocks conserved, who waits, who is preempted, what fragments (cases B)."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from kvrm_sim import state as st
from kvrm_sim.errors import InvariantError, NoProgressError
from tests.sim.core_runs import CoreRun, arrival_records, new_run, parameters_for, run_core
from tests.sim.reference_records import ReferenceConfig
from tests.sim.small_replays import S, constant, contiguous, core, free_blocks, paged, requests, times, total

pytestmark = pytest.mark.core

COMPILED = os.environ.get("KVRM_CORE", "compiled") != "interpreted"
PLACEMENTS = ("lifo", "lowest", "contiguous", "buddy")


def words(run: CoreRun) -> list[str]:
    return [row.outcome for row in run.rows]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_an_admission_that_does_not_fit_changes_nothing(placement: str) -> None:
    """B01: pool 10, 8 held, 3 more asked for: "no", still 8 held and 2 free; it is served when the 8 come back."""
    config = paged(pool_blocks=10, placement=placement)
    # 113 prompt tokens and 15 more written are 8 blocks; 33 tokens are 3.
    run = core(config, (0, 113, 16), (0, 33, 1))
    held = [step["allocated_blocks"] for step in run.steps]
    assert held == [8] * 16 + [3]
    assert sum(step["blocks_taken"] for step in run.steps) == 8 + 3
    assert [row.admitted_ns for row in run.rows] == [0, 16 * S]
    assert free_blocks(run) == 10


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_chunk_that_does_not_fit_gives_everything_back(placement: str) -> None:
    """B01: a row that holds 8 and asks for 3 more with 2 free loses no block to nobody: 8 come back, 2 stay held."""
    config = paged(pool_blocks=12, placement=placement, admission="first_chunk", slots=2, token_budget=17 + 128)
    run = core(config, (0, 17, 3), (0, 128 + 48, 1))
    assert [step["allocated_blocks"] for step in run.steps][:2] == [2 + 8, 2]
    assert run.steps[1]["preempted"] == 1
    assert run.steps[1]["blocks_freed"] == 8
    assert free_blocks(run) == 12
    assert words(run) == ["completed", "completed"]


def test_a_request_that_no_empty_pool_holds_does_not_block_the_queue() -> None:
    """B02: pool of 50 blocks of 16 (800 tokens), 900 tokens need 57: rejected at arrival; the nine behind it finish."""
    run = core(paged(pool_blocks=50), (0, 900, 1), *[(0, 16, 4)] * 9)
    first, *others = run.rows
    assert (first.outcome, first.reason, first.admitted_ns) == ("rejected", "unservable", None)
    assert [row.outcome for row in others] == ["completed"] * 9
    assert [row.admitted_ns for row in others] == [0] * 9
    counts = {name: total(run, name) for name in ("injected", "completed", "rejected", "truncated", "unfinished")}
    assert counts == {"injected": 10, "completed": 9, "rejected": 1, "truncated": 0, "unfinished": 0}


def test_the_largest_request_that_an_empty_pool_holds_is_served() -> None:
    """B02: 800 entries are written for 701 + 100 tokens: 50 blocks exactly; one more token is too many."""
    run = core(paged(pool_blocks=50), (0, 701, 100), (0, 702, 100))
    assert words(run) == ["completed", "rejected"]
    assert max(step["allocated_blocks"] for step in run.steps) == 50


SOAK: dict[str, ReferenceConfig] = {
    **{
        f"paged {placement}": paged(pool_blocks=60, placement=placement, slots=8, token_budget=64)
        for placement in PLACEMENTS
    },
    "paged first chunk": paged(pool_blocks=60, slots=8, token_budget=40, admission="first_chunk"),
    "oracle contiguous": contiguous("oracle", pool_blocks=60, slots=8, token_budget=64),
    "oracle buddy": contiguous("oracle", pool_blocks=60, placement="buddy", slots=8, prefill="separate"),
    "staged delta": paged(
        pool_blocks=60, placement="contiguous", slots=8, token_budget=64, read_what="staged", staging="delta",
        scope="model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOAK)
def test_nothing_is_held_after_thousands_of_requests(name: str) -> None:
    """B03: a leak of one block a request would fill this pool in 60; used is 0 after the drain, and now and then."""
    rng = random.Random(name)
    count = 3000 if COMPILED else 60
    at, rows = 0, []
    for _ in range(count):
        at += rng.choice((0, 1, 4, 200)) * S
        rows.append((at, rng.randint(1, 300), rng.randint(1, 150)))
    run = run_core(parameters_for(SOAK[name], constant(S), check=0, pool_sample_ns=1 << 60), requests(*rows))
    assert free_blocks(run) == 60
    assert total(run, "num_running") == total(run, "total_runs") == total(run, "reserved_blocks") == 0
    assert [row.outcome for row in run.rows] == ["completed"] * count
    if name.startswith("paged"):
        assert total(run, "preemptions") > 0, "the soak is meant to preempt"


@pytest.mark.parametrize(("flag", "count"), [(1, 0), (0, 1), (0, -1)], ids=["double free", "count too high", "leak"])
def test_a_pool_that_does_not_add_up_is_found_with_either_sign(flag: int, count: int) -> None:
    """B04: more free than exists (a double free) and fewer (a leak) are both a named error at the next decision."""
    run = new_run(parameters_for(paged(pool_blocks=10), constant(S)))
    run.replica.supply(arrival_records(requests((0, 40, 9))), known_until_ns=st.NEVER)
    assert run.replica.advance(st.NEVER, max_steps=10, flags=st.STOP_AT_DECISIONS) == st.DECIDED
    held = int(run.replica.table[0, 0])
    if flag:
        run.replica.blocks[held].free = 1
    run.replica.scalars[0].free_blocks += count
    with pytest.raises(InvariantError, match="free"):
        run.replica.advance(st.NEVER, max_steps=10)


def test_two_requests_that_do_not_fit_together_cost_one_preemption() -> None:
    """B05: pool of 20 blocks of 16, two requests of 160 in and 160 out: both finish, one preemption, peak 20."""
    run = core(paged(pool_blocks=20), (0, 160, 160), (0, 160, 160))
    assert words(run) == ["completed", "completed"]
    assert [row.preemptions for row in run.rows] == [0, 1], "the last admitted is the victim"
    assert run.rows[1].recomputed_tokens == 160, "its prompt; the first generated token was not written yet"
    assert total(run, "peak_allocated_blocks") == 20
    assert free_blocks(run) == 20
    assert run.rows[0].finish_ns == 160 * S
    # It waits for the first to end, then prefills 161 tokens and goes on where it was.
    assert run.rows[1].finish_ns == (160 + 159) * S


def test_no_progress_is_a_named_error_not_a_hang() -> None:
    """B05: requests that wait for a block that nobody holds are an error that says who waits for what."""
    run = new_run(parameters_for(paged(pool_blocks=10), constant(S), check=0))
    run.replica.scalars[0].free_blocks = 0  # a pool that lost all its blocks
    run.replica.supply(arrival_records(requests((0, 40, 9))), known_until_ns=st.NEVER)
    with pytest.raises(NoProgressError, match=r"0 running and 1 waiting requests, 0 blocks free; row 0 waits first"):
        run.replica.advance(st.NEVER, max_steps=1 << 40)


@cache
def long_prompt_behind_four(admission: str) -> CoreRun:
    config = paged(pool_blocks=1000, slots=5, token_budget=405, admission=admission)
    four = [(0, 3400, 200)] * 4  # 213 blocks each when prefilled, 225 at their end
    return core(config, *four, (40 * S, 3600, 1))


def test_a_long_prompt_waits_when_it_is_admitted_whole() -> None:
    """B06: pool 1000, four grow to 225, the fifth needs 225: with full-prompt admission it waits, and 0 preemptions."""
    run = long_prompt_behind_four("full_prompt")
    assert total(run, "preemptions") == 0
    assert run.rows[4].admitted_ns == run.rows[0].finish_ns
    assert words(run) == ["completed"] * 5


def test_a_long_prompt_thrashes_when_its_first_chunk_is_enough() -> None:
    """B06: with first-chunk admission it fills the pool, is evicted, and tries again: the thrash shows."""
    run = long_prompt_behind_four("first_chunk")
    waits = long_prompt_behind_four("full_prompt")
    assert run.rows[4].preemptions >= 10
    assert run.rows[4].recomputed_tokens > 5 * 3600, "many times its prompt is computed for nothing"
    assert [row.preemptions for row in run.rows[:4]] == [0] * 4
    assert words(run) == ["completed"] * 5
    assert total(run, "prefill_tokens") == total(waits, "prefill_tokens") + run.rows[4].recomputed_tokens
    assert free_blocks(run) == 1000


def test_the_last_admitted_is_the_victim_and_loses_what_it_has_computed() -> None:
    """B08: with LIFO the request of 8000 computed tokens goes, not the one of 100; the loss is an output."""
    # 7 + 500 blocks of 16; the long one needs its 501st first.
    run = core(paged(pool_blocks=507), (0, 100, 2), (0, 8000, 3))
    assert [row.recomputed_tokens for row in run.rows] == [0, 8000]
    assert [row.preemptions for row in run.rows] == [0, 1]
    assert total(run, "recomputed_tokens") == 8000
    # 100 and 8000, then 8001 once more: its first token had been delivered.
    assert total(run, "prefill_tokens") == 100 + 8000 + 8001
    assert run.rows[1].delivered == 3


def test_one_huge_declared_maximum_blocks_the_others() -> None:
    """B15: pool 768 × 16: 100 in, at most 12000, really 50 reserve 757 blocks and use 10; 512 + 512 wait on 11 free."""
    config = contiguous("declared", pool_blocks=768, prefill="chunked")
    run = core(config, (0, 100, 50, 12_000), (0, 512, 512, 512))
    first = run.steps[:50]
    assert {step["reserved_blocks"] for step in first} == {757}
    assert {step["waiting"] for step in first} == {1}
    assert 768 - 757 == 11 < 64
    most_used = max(step["used_tokens"] for step in first)
    assert most_used == 148
    assert -(-(most_used + 1) // 16) == 10, "blocks that hold the 149 entries it writes"
    assert run.rows[1].admitted_ns == run.rows[0].finish_ns == 50 * S
    assert {step["reserved_blocks"] for step in run.steps[50:]} == {64}


def test_internal_waste_of_partly_filled_blocks() -> None:
    """B19: 17-token prompts in blocks of 16 fill 17 of 32 slots: 53.1%, while the block gauge shows all held."""
    run = core(paged(pool_blocks=6, slots=3), (0, 17, 2), (0, 17, 2), (0, 17, 2))
    decode = run.steps[1]
    assert decode["allocated_blocks"] == decode["reserved_blocks"] == 6
    assert decode["used_tokens"] == 51
    assert decode["used_tokens"] / (decode["allocated_blocks"] * 16) == pytest.approx(0.531, abs=0.0005)


#: A to F of 20, 13, 20, 13, 20 and 14 cells: at 2 s A, C and E have ended and leave three holes of 20. Then 30 arrive.
HOLES = [(0, 19, 2), (0, 3, 11), (0, 19, 2), (0, 3, 11), (0, 19, 2), (0, 4, 11), (2 * S, 30, 1)]


def test_a_contiguous_reservation_waits_beside_three_holes() -> None:
    """B20: 60 cells are free and 30 are asked for, but no run is longer than 20: it waits; fragmentation 66.7%."""
    config = contiguous("oracle", pool_blocks=100, block_size_tokens=1)
    run = core(config, *HOLES)
    samples = np.concatenate(run.pool)
    sample: Any = samples[samples["time_ns"] == 2 * S][0]
    free = 100 - sample["allocated_blocks"]
    assert (free, sample["holes"], sample["largest_hole_blocks"]) == (60, 3, 20)
    assert 1 - sample["largest_hole_blocks"] / free == pytest.approx(0.667, abs=0.0005)
    assert run.rows[6].admitted_ns == 11 * S, "only when a neighbour of a hole has ended"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_pages_fit_into_holes_at_once(placement: str) -> None:
    """B20: the same requests in pages: the 30 are admitted when they arrive."""
    config = paged(pool_blocks=100, block_size_tokens=1, placement=placement)
    run = core(config, *HOLES)
    assert run.rows[6].admitted_ns == 2 * S
    assert run.rows[6].finish_ns == 3 * S


def overload(watermark_blocks: int, count: int) -> CoreRun:
    """A batch job: all at once, short prompts that grow long, on a pool for about a dozen."""
    rng = random.Random(7)
    rows = [(0, rng.randint(20, 200), rng.randint(100, 600)) for _ in range(count)]
    config = paged(pool_blocks=300, slots=64, token_budget=512, watermark_blocks=watermark_blocks)
    # A step costs its fixed part and a little for each token: larger batches pay, recomputing does not.
    costs = {"host_step_ns": 1e7, "dense_token_ns": 2e5, "attention_token_ns": 1e2}
    return run_core(parameters_for(config, costs, check=0), requests(*rows))


@pytest.mark.skipif(not COMPILED, reason="thousands of steps")
def test_a_watermark_cuts_preemptions_and_throughput_is_best_in_between() -> None:
    """B07: watermark 0 to 0.6 of the pool: preemptions never rise; the fastest is neither the first nor the last."""
    runs = [overload(int(share * 300), 400) for share in (0, 0.05, 0.1, 0.2, 0.4, 0.6)]
    preemptions = [total(run, "preemptions") for run in runs]
    assert preemptions == sorted(preemptions, reverse=True)
    assert preemptions[0] > 4 * preemptions[-1]
    rates = [total(run, "delivered_tokens") / total(run, "last_finish_ns") for run in runs]
    assert rates.index(max(rates)) not in (0, len(rates) - 1)


def test_a_watermark_is_for_admissions_behind_others_only() -> None:
    """B07: not for the first request on an empty pool, and not for what running requests append."""
    config = paged(pool_blocks=10, watermark_blocks=5)
    run = core(config, (0, 128, 33), (0, 16, 1))
    assert run.rows[0].admitted_ns == 0, "8 of 10 blocks, and 5 should stay free: it is alone"
    assert total(run, "peak_allocated_blocks") == 10, "it grows to the last block"
    assert total(run, "preemptions") == 0
    assert run.rows[1].admitted_ns == run.rows[0].finish_ns, "2 are free, but not above the margin"
    without = core(replace(config, watermark_blocks=0), (0, 128, 33), (0, 16, 1))
    assert without.rows[1].admitted_ns == 0


def demand(config: ReferenceConfig, at_once: int) -> CoreRun:
    """``at_once`` requests of 10 blocks at their end that declare 5 more; cost per token: larger batches do not pay."""
    costs = {"dense_token_ns": float(S // 100)}
    return core(config, *[(0, 81, 80, 160)] * at_once, costs=costs)


def test_recomputation_against_reservation_below_and_above_the_pool() -> None:
    """B16: "max utilisation" against "no eviction": equal at 0.7 of the pool; slower at 1.5, first tokens earlier."""
    utilise = paged(pool_blocks=200, slots=64, prefill="separate", token_budget=81)
    reserve = contiguous("declared", pool_blocks=200, slots=64, prefill="separate", token_budget=81)
    below = [demand(config, 9) for config in (utilise, reserve)]
    assert below[0].rows == below[1].rows, "equal when not over-subscribed"
    above = [demand(config, 30) for config in (utilise, reserve)]
    assert total(above[0], "preemptions") > 0
    assert total(above[1], "preemptions") == 0
    assert total(above[0], "last_finish_ns") > total(above[1], "last_finish_ns"), "slower: it computes again"

    def median_ttft(run: CoreRun) -> int:
        waits = sorted((row.first_token_ns or 0) - row.arrival_ns for row in run.rows)
        return waits[len(waits) // 2 - 1]

    assert median_ttft(above[0]) < median_ttft(above[1]), "but the first token comes earlier"
    assert times(above[0], st.H_ITL)[3] > times(above[1], st.H_ITL)[3], "and the longest gap is longer"

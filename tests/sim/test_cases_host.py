"""The host's pool and the link to it, on the core: swaps, loads, offload, and when they are noticed (cases B11, D)."""

from __future__ import annotations

from typing import Any

import pytest

from kvrm_sim import state as st
from kvrm_sim.derivation import code
from kvrm_sim.words import Preempt
from tests.sim.core_runs import CoreRun, arrival_ids, arrival_records, new_run, parameters_for, run_core
from tests.sim.reference_records import Arrival, ReferenceConfig
from tests.sim.small_replays import S, core, free_blocks, paged, total

pytestmark = pytest.mark.core

MS = 1_000_000
SWAP = code("swap", Preempt)


def swapping(**values: Any) -> dict[str, Any]:
    """A host pool for victims, a link that takes no time beyond what ``values`` say."""
    return {"preempt": SWAP, "host_blocks": 100, "host_overlap": 1, "out_slowdown": 1.0, "in_slowdown": 1.0} | values


#: Blocks of 32, a pool of 3, a row each. The first writes its 33rd entry in step 10 and needs a block; the last
#: admitted is the victim. The second needs one block only.
ONE_SWAP = [(0, 23, 30), (0, 1, 30), (0, 1, 20)]


@pytest.mark.parametrize(("copy_ns", "noticed"), [(S, 20), (S + 1, 21), (S - 1, 20)])
def test_blocks_of_a_copy_to_the_host_are_held_until_it_ends(copy_ns: int, noticed: int) -> None:
    """B11: steps of 0.1 s; at 1 s a victim's block begins to be copied for 1 s: nobody has it before 2 s, the row that
    waits for it has it in the very step at 2 s (or, done a nanosecond later, in the next). There are no clients that
    leave in the simulator, and every transfer completes: leases are not shown.
    """
    config = paged(pool_blocks=3, block_size_tokens=32)
    run = core(config, *ONE_SWAP, costs={"host_step_ns": 1e8}, **swapping(host_out_block_ns=float(copy_ns)))
    assert [step["start_ns"] for step in run.steps[:31]] == [100 * MS * n for n in range(31)]
    seen = [(step["stalled_rows"], step["pending_blocks"], step["allocated_blocks"]) for step in run.steps[9:22]]
    waits = noticed - 10
    assert seen == [(0, 0, 3), *[(1, 1, 3)] * waits, *[(0, 0, 3)] * (12 - waits)]
    assert [step["decode_rows"] for step in run.steps[9:22]] == [3, *[1] * waits, *[2] * (12 - waits)]
    assert run.rows[0].finish_ns == (30 + waits) * 100 * MS, "30 tokens, and the steps in which it waited"
    assert total(run, "preemptions") == 1
    assert free_blocks(run) == 3
    assert [row.delivered for row in run.rows] == [30, 30, 20]


def hashed(row: int, at_ns: int, prompt: int, output: int, first: int = 0, count: int = 0) -> Arrival:
    """A request whose prompt begins with so many hash blocks, ids from ``first`` on."""
    return Arrival(row, at_ns, prompt, output, hashes=tuple(range(first, first + count)))


def offloading(pool_blocks: int) -> ReferenceConfig:
    return paged(pool_blocks=pool_blocks, prefix_sharing=True, hash_block_tokens=16)


#: Nothing costs anything but a token computed, 1 ms, and a block loaded, 1 ms.
COMPUTE_AND_LOAD = {"dense_token_ns": 1e6}


def offload_run(config: ReferenceConfig, *arrivals: Arrival, costs: dict[str, float], **values: Any) -> CoreRun:
    host = {"offload": 1, "host_blocks": 1000, "host_overlap": 1, "out_slowdown": 1.0, "in_slowdown": 1.0}
    return run_core(parameters_for(config, costs, **(host | values)), arrivals, keep_steps=True)


def test_what_a_load_uses_is_held_on_both_sides_until_it_ends() -> None:
    """B11: a load of 1 s beside steps of 0.1 s: until 30 s the row's five blocks and the host's four stay held; at 30 s
    the host's can be evicted again and the row computes what is left; what it holds comes free when it ends.
    """
    costs = {"dense_token_ns": 1e8}  # 0.1 s a token; a block takes 0.025 s out and 0.25 s in
    arrivals = [
        hashed(0, 0, 64, 1, 1, 4),
        Arrival(1, 10 * S, 128, 1),  # the whole pool: the four cached blocks go to the host
        Arrival(2, 28 * S, 1, 31),
        hashed(3, 29 * S, 65, 1, 1, 4),
    ]
    config = offloading(8)
    parameters = parameters_for(
        config, costs, offload=1, host_blocks=4, host_overlap=1, out_slowdown=1.0, in_slowdown=1.0,
        host_out_block_ns=25e6, host_in_block_ns=250e6,
    )  # fmt: skip
    run = new_run(parameters)
    run.replica.supply(arrival_records(arrivals), known_until_ns=st.NEVER, ids=arrival_ids(arrivals))
    held: dict[int, tuple[int, int]] = {}
    while run.replica.advance(st.NEVER, max_steps=1000, flags=st.STOP_AT_DECISIONS) == st.DECIDED:
        step = run.replica.steps[0]
        host = run.replica.arrays.host_scalars[0]
        own = int(step["allocated_blocks"]) - (2 if step["start_ns"] >= 29_600 * MS else 1)
        held[int(step["start_ns"]) // (100 * MS)] = (own, 4 - int(host.evictable))
    run.replica.close()
    assert [held[n] for n in range(285, 290)] == [(0, 0)] * 5
    assert [held[n] for n in range(290, 300)] == [(5, 4)] * 10
    assert held[300] == (5, 0)
    assert held[302] == (0, 0)
    assert 301 not in held, "two tokens in the step at 30 s"
    row = run.rows[3]
    assert (row.admitted_ns, row.first_token_ns, row.hit_tokens) == (29 * S, 30_200 * MS, 64)
    assert total(run, "unnoticed_ns") == 0
    assert free_blocks(run) + int(run.replica.scalars[0].evictable) == 8


def conversation(shared_blocks: int) -> list[Arrival]:
    """1024 tokens, then a prompt that takes the whole pool, then 1280 tokens that begin with what is shared."""
    return [
        hashed(0, 0, 1024, 1, 1, 64),
        Arrival(1, 10 * S, 1280, 1),
        Arrival(2, 20 * S, 1280, 1, hashes=(*range(1, shared_blocks + 1), *range(1001, 1081 - shared_blocks))),
    ]


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("shared_blocks", [0, 16, 32, 48, 64])
def test_what_is_loaded_is_not_computed_and_moves_the_first_token(shared_blocks: int, overlap: int) -> None:
    """D10: 1280 tokens of which 1024 are in the host's tier: 256 are computed (1 ms each) and 64 blocks loaded (1 ms
    each): TTFT 320 ms instead of 1280. Fewer hits, later first token.
    """
    run = offload_run(
        offloading(80), *conversation(shared_blocks), costs=COMPUTE_AND_LOAD, host_in_block_ns=1e6,
        host_overlap=overlap,
    )  # fmt: skip
    hit = 16 * shared_blocks
    last = run.rows[2]
    assert last.hit_tokens == hit
    assert run.steps[-1]["prefill_tokens"] == 1280 - hit
    assert sum(step["host_in_blocks"] for step in run.steps) == total(run, "loaded_blocks") == shared_blocks
    assert last.first_token_ns == 20 * S + (1280 - hit + shared_blocks) * MS
    assert total(run, "recomputed_tokens") == 0


def test_what_is_not_on_the_host_is_computed() -> None:
    """D10: the same without the tier: no hit, and all of 1280 tokens are billed."""
    run = offload_run(offloading(80), *conversation(64), costs=COMPUTE_AND_LOAD, offload=0, host_blocks=0)
    assert run.rows[2].hit_tokens == 0
    assert run.rows[2].first_token_ns == 20 * S + 1280 * MS


#: Blocks of 16, a pool of 3. In step 1 the first takes the last block and the second, which needs one too, goes to the
#: host; it comes back in step 4, when the first has ended. A third has arrived, with a prompt of one block.
COMES_BACK = [(0, 16, 4), (0, 16, 3), (50 * MS, 16, 1)]
COPY_NS, COMPUTE_NS = 46_190_000, 30_550_000


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_copy_beside_a_step_takes_the_longer_and_in_series_both(overlap: int) -> None:
    """D12: copy 46.19 ms, compute 30.55 ms: 76.74 ms in series; beside each other 46.19 ms, the longer of them."""
    run = core(
        paged(pool_blocks=3), *COMES_BACK, costs={"host_step_ns": float(COMPUTE_NS)},
        **swapping(host_overlap=overlap, host_in_block_ns=float(COPY_NS)),
    )  # fmt: skip
    at = next(n for n, step in enumerate(run.steps) if step["host_in_blocks"])
    step, after = run.steps[at], run.steps[at + 1]
    assert step["prefill_rows"] == 1, "the third request's prompt is what is computed"
    assert after["start_ns"] - step["start_ns"] == (COPY_NS if overlap else COPY_NS + COMPUTE_NS)
    assert step["duration_ns"] == (COMPUTE_NS if overlap else COPY_NS + COMPUTE_NS)
    assert step["transport_exposed_ns"] == (0 if overlap else COPY_NS)
    assert step["decode_rows"] == 1 - overlap, "in series the row that comes back is in the step that it waits for"
    assert after["decode_rows"] == 1
    assert [row.outcome for row in run.rows] == ["completed"] * 3


def test_a_copy_that_ends_during_a_step_is_noticed_at_its_end() -> None:
    """D14: steps of 3 s; a copy of 0.1 s begins with one: it is done at 0.1 s of it, noticed 2.9 s later, and that time
    is counted apart. The copy back begins beside nothing, and is noticed when it ends.
    """
    config = paged(pool_blocks=3, block_size_tokens=32)
    late = swapping(host_out_block_ns=1e8, host_in_block_ns=1e8)
    run = core(config, (0, 32, 3), (0, 1, 8), (0, 8, 4), costs={"host_step_ns": 3e9}, **late, until_ns=9 * S)
    assert [step["start_ns"] // S for step in run.steps] == [0, 3, 6]
    assert [step["pending_blocks"] for step in run.steps] == [0, 1, 0]
    assert total(run, "unnoticed_ns") == 2_900 * MS


def test_a_copy_beside_nothing_is_noticed_when_it_ends() -> None:
    """D14: without a step in flight there is nobody to wait for: 0.1 s after the decision, and 0 unnoticed."""
    config = paged(pool_blocks=2, block_size_tokens=32)
    at_once = swapping(host_out_block_ns=1e8, host_in_block_ns=1e8)
    run = core(config, (0, 32, 3), (0, 8, 4), costs={"host_step_ns": 3e9}, **at_once)
    assert [step["start_ns"] // MS for step in run.steps[:2]] == [0, 3_100]
    assert total(run, "unnoticed_ns") == 0


def rounds(conversations: int, *, reuse: bool) -> list[Arrival]:
    """Three rounds of so many prompts of 161 tokens, a second apart: 10 whole blocks each, the same ones in each round
    or new ones.
    """
    found = []
    for n in range(3 * conversations):
        which = n % conversations if reuse else n
        found.append(hashed(n, n * S, 161, 1, 1 + 10 * which, 10))
    return found


def ttft_sum(run: CoreRun) -> int:
    return sum((row.first_token_ns or 0) - row.arrival_ns for row in run.rows)


@pytest.mark.parametrize(("conversations", "reuse", "gains"), [(7, True, False), (15, True, True), (15, False, False)])
def test_offload_gains_only_where_reused_prefixes_are_evicted(conversations: int, reuse: bool, gains: bool) -> None:
    """D17: pool 100 blocks. A working set of 70 is never evicted, so the host holds nothing and gains nothing. One of
    150 is evicted in turn: with reuse every later round is loaded; prompts that share nothing only pay for the copies.
    """
    arrivals = rounds(conversations, reuse=reuse)
    run = offload_run(offloading(100), *arrivals, costs=COMPUTE_AND_LOAD, host_in_block_ns=1e6, host_out_block_ns=1e5)
    without = offload_run(offloading(100), *arrivals, costs=COMPUTE_AND_LOAD, offload=0, host_blocks=0)
    if conversations == 7:
        assert total(run, "evicted_blocks") == total(run, "loaded_blocks") == 0
        assert run.rows == without.rows
        return
    assert total(without, "evicted_blocks") > 0
    assert sum(row.hit_tokens or 0 for row in without.rows) == 0, "in turn, the least recently used is what is next"
    hits = [row.hit_tokens for row in run.rows]
    assert hits == [0] * 15 + [160 if reuse else 0] * 30
    assert total(run, "loaded_blocks") == (300 if reuse else 0)
    assert (ttft_sum(run) < ttft_sum(without)) == gains
    assert sum(step["offload_blocks"] for step in run.steps) > 0


#: Blocks of 32, a pool of 4, steps of 10 ms, copies of 40 ms. In step 10 the first needs a block and the last goes to
#: the host; it comes back in step 20, when the third has ended. In step 21 the second needs a block and goes itself.
BOTH_WAYS = [(0, 23, 40), (0, 12, 30), (0, 1, 20), (0, 1, 30)]


@pytest.mark.parametrize(("in_slowdown", "joins"), [(1.0, 24), (2.0, 26)])
def test_a_copy_in_is_late_while_another_goes_out(in_slowdown: float, joins: int) -> None:
    """D11: 40 ms in from step 20 on, 40 ms out from step 21 on. Alone it would be back in step 24. At half its speed
    while the other is under way it has 10 + 20 ms by step 25 and 10 to go: step 26. What goes out takes its 40 ms.
    """
    config = paged(pool_blocks=4, block_size_tokens=32)
    host = swapping(host_out_block_ns=40e6, host_in_block_ns=40e6, in_slowdown=in_slowdown)
    run = core(config, *BOTH_WAYS, costs={"host_step_ns": 10e6}, **host)
    assert [step["start_ns"] for step in run.steps[:30]] == [10 * MS * n for n in range(30)]
    assert [n for n, step in enumerate(run.steps[:30]) if step["host_out_blocks"]] == [10, 21]
    assert [n for n, step in enumerate(run.steps[:30]) if step["host_in_blocks"]] == [20]
    assert [step["decode_rows"] for step in run.steps[20:28]] == [2, *[1] * (joins - 21), *[2] * (28 - joins)]
    assert [step["pending_blocks"] for step in run.steps[20:27]] == [0, 1, 1, 1, 1, 0, 0]
    assert [row.outcome for row in run.rows] == ["completed"] * 4

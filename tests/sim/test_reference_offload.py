"""The reference's offload against small cases by hand: what the host keeps, what is loaded instead of computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, Replica, always, simulate
from tests.sim.reference_host import Host
from tests.sim.reference_host_pool import HostPool
from tests.sim.strategies import constant

SECOND = 1_000_000_000
MS = 1_000_000


def offloading(**changes: object) -> ReferenceConfig:
    """Shared prefixes, blocks of four tokens, 4 of them, a stack; copies are part of the step; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=1000, pool_blocks=4, block_size_tokens=4, placement="lifo", slots=8,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live",
        prefix_sharing=True, hash_block_tokens=4, offload=True, host_blocks=10,
        host_out_block_ns=0.2 * SECOND, host_in_block_ns=0.2 * SECOND,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def arrivals(*rows: tuple[float, int, int, tuple[int, ...]]) -> list[Arrival]:
    """Requests of (arrival in seconds, prompt, output, ids)."""
    return [
        Arrival(row, int(seconds * SECOND), prompt, output, hashes=ids)
        for row, (seconds, prompt, output, ids) in enumerate(rows)
    ]


def run(
    config: ReferenceConfig,
    *rows: tuple[float, int, int, tuple[int, ...]],
    cheaper: Callable[[int, int, int], bool] = always,
) -> ReferenceResult:
    """Steps of one second, tables kept."""
    return simulate(config, arrivals(*rows), constant(SECOND), tables=True, load_is_cheaper=cheaper)


def host_after(config: ReferenceConfig, *rows: tuple[float, int, int, tuple[int, ...]]) -> list[tuple[int, int]]:
    """(key, block) on the host when all is done, least recently used first."""
    host = Host(config, always, always)
    Replica(config, arrivals(*rows), constant(SECOND), host, tables=False).run(None)
    key_of = {block: key for key, block in host.pool.cached.items()}
    return [(key_of[block], block) for block in host.pool.evictable]


def plans(result: ReferenceResult, name: str) -> list[int]:
    return [step.plan[name] for step in result.steps]


def hits(result: ReferenceResult) -> list[int | None]:
    return [r.hit_tokens for r in result.requests]


def table(result: ReferenceResult, step: int, row: int) -> tuple[int, ...]:
    """The blocks of a row in a step."""
    return next(found.blocks for found in (result.steps[step].tables or {}).values() if found.row == row)


#: Request 0 leaves keys 10 and 11 in blocks 1 and 2. Request 1 takes all four blocks, so both are evicted; it leaves
#: keys 21 to 24 in blocks 1 to 4, which are evicted from the last one on.
FIRST = (0.0, 8, 1, (10, 11))
SECOND_ONE = (1.0, 16, 1, (21, 22, 23, 24))


def test_what_is_evicted_is_kept_and_loaded_again() -> None:
    """Blocks 2 and 1 are evicted, in this order, and copied in ascending order to the host's 1 and 2, as one group.

    Request 2 has 9 tokens and takes 2, 3, 4, which are evicted for it: both keys are loaded to the first two, and one
    token is computed.
    """
    result = run(offloading(), FIRST, SECOND_ONE, (2, 9, 1, (10, 11)))
    assert hits(result) == [0, 0, 8]
    assert plans(result, "offload_blocks") == [0, 2, 3]
    assert plans(result, "offload_groups") == [0, 1, 1]
    assert plans(result, "host_in_blocks") == [0, 0, 2]
    assert plans(result, "prefill_tokens") == [8, 16, 1]
    assert plans(result, "prefill_read_tokens")[2] == 9
    # 4, 3 and 2 were pushed on the stack in this order.
    assert table(result, 2, 2) == (2, 3, 4)
    assert plans(result, "host_in_groups")[2] == 1
    assert (result.offloaded_blocks, result.loaded_blocks, result.transfers) == (5, 2, [])
    assert (result.free_host_blocks, result.cached_host_blocks) == (10, 5)


def test_what_is_loaded_is_billed_as_loaded() -> None:
    """D10: prompt 1280, 1024 of it on the host: 256 tokens are computed, 64 blocks loaded. TTFT moves with the hit."""
    config = offloading(block_size_tokens=16, hash_block_tokens=16, pool_blocks=81, host_blocks=300)
    config = replace(config, limit_tokens=2000, token_budget=2000)

    def step_ns(plan: dict[str, int]) -> int:
        return 1000 * plan["prefill_tokens"] + 100 * plan["host_in_blocks"]

    requests = arrivals(
        (0, 1025, 1, tuple(range(64))),
        (1, 1296, 1, tuple(range(1000, 1081))),
        (2, 1280, 1, (*range(64), *range(2000, 2016))),
    )
    ttft_ns = {}
    for offload in (False, True):
        result = simulate(replace(config, offload=offload), requests, step_ns)
        row = result.requests[2]
        assert row.first_token_ns is not None
        ttft_ns[offload] = row.first_token_ns - row.arrival_ns
        assert row.hit_tokens == (1024 if offload else 0)
    assert ttft_ns == {False: 1280 * 1000, True: 256 * 1000 + 64 * 100}
    assert plans(result, "offload_groups")[1] == 1  # blocks 1 to 64 to the host's 1 to 64


def test_it_helps_only_when_the_working_set_is_larger_than_the_pool() -> None:
    """D17: prompts of 2 blocks and a token, again and again. Two of them fit in 6 blocks, so nothing is evicted."""
    fits = [(float(second), 9, 1, (10 * (second % 2), 10 * (second % 2) + 1)) for second in range(8)]
    result = run(offloading(pool_blocks=6), *fits)
    assert (result.offloaded_blocks, result.loaded_blocks, hits(result)[2:]) == (0, 0, [8] * 6)
    # Three of them do not: each evicts what comes next, as LRU does, and finds it on the host.
    many = [(float(second), 9, 1, (10 * (second % 3), 10 * (second % 3) + 1)) for second in range(9)]
    with_host, without = run(offloading(pool_blocks=5), *many), run(offloading(pool_blocks=5, offload=False), *many)
    assert hits(with_host)[3:] == [8] * 6
    assert with_host.loaded_blocks > 0
    assert max(hit or 0 for hit in hits(without)) < 8


def test_only_as_many_are_kept_as_there_is_room_for_and_what_is_loaded_is_not_evicted() -> None:
    """A host of 2 blocks has the keys 10 and 11. Request 2 (8 tokens) loads one block, key 10: its last token is always
    computed. It wants 2 blocks, so 4 and 3 are evicted, with the keys 24 and 23. Of the host's, 11 may go and 10 not:
    one block, for the first in ascending order, 3 with 23. 10 has been used since."""
    rows = (FIRST, SECOND_ONE, (2.0, 8, 1, (10, 11)))
    config = offloading(host_blocks=2)
    result = run(config, *rows)
    assert plans(result, "offload_blocks") == [0, 2, 1]
    assert plans(result, "host_in_blocks") == [0, 0, 1]
    assert plans(result, "prefill_tokens") == [8, 16, 4]
    assert hits(result) == [0, 0, 4]
    assert host_after(config, *rows[:2]) == [(10, 1), (11, 2)]
    assert host_after(config, *rows) == [(23, 2), (10, 1)]


def test_what_the_host_has_is_used_and_not_copied_again() -> None:
    """Request 2 loads keys 10 and 11 and leaves them on the device; request 3 takes all four blocks, which evicts
    21 (block 1) and the two: the host has those, so they become its most recently used, and only 21 is copied."""
    rows = (FIRST, SECOND_ONE, (2.0, 9, 1, (10, 11)), (3.0, 16, 1, (31, 32, 33, 34)))
    result = run(offloading(), *rows)
    assert plans(result, "offload_blocks") == [0, 2, 3, 1]
    assert [key for key, _ in host_after(offloading(), *rows[:3])] == [22, 23, 24, 10, 11]
    # In ascending order of the device's ids: 1 with 21, 2 with 10, 3 with 11.
    assert [key for key, _ in host_after(offloading(), *rows)] == [22, 23, 24, 10, 11, 21]


@pytest.mark.parametrize(
    ("prompt", "ids", "loaded"),
    [
        (9, (10, 11), 8),
        (8, (10, 11), 4),  # the last token is computed
        (9, (10, 99), 4),
        (9, (99, 11), 0),  # a chain begins at its beginning
        (12, (10, 11, 99), 8),
        (13, (21, 10, 11), 12),  # 21 is a hit of the device, the chain goes on on the host
    ],
)
def test_the_chain_that_goes_on_on_the_host(prompt: int, ids: tuple[int, ...], loaded: int) -> None:
    asked: list[tuple[int, int, int]] = []

    def yes(start: int, tokens: int, blocks: int) -> bool:
        asked.append((start, tokens, blocks))
        return True

    result = run(offloading(), FIRST, SECOND_ONE, (2, prompt, 1, ids), cheaper=yes)
    assert result.requests[2].hit_tokens == loaded
    start = 4 if ids[0] == 21 else 0
    assert set(asked) == ({(start, loaded - start, (loaded - start) // 4)} if loaded else set())


def test_what_costs_more_to_load_is_computed() -> None:
    result = run(offloading(), FIRST, SECOND_ONE, (2, 9, 1, (10, 11)), cheaper=lambda *_: False)
    assert (hits(result), result.loaded_blocks, plans(result, "prefill_tokens")[2]) == ([0, 0, 0], 0, 9)


def test_where_no_prompt_is_computed_nothing_is_loaded() -> None:
    result = run(offloading(prefill="none"), FIRST, SECOND_ONE, (2, 9, 1, (10, 11)))
    assert result.offloaded_blocks > 0
    assert result.loaded_blocks == 0


def test_what_was_loaded_is_found_in_the_same_decision() -> None:
    """In series the copies are done before the step: request 3 hits what request 2 loads."""
    result = run(offloading(pool_blocks=5), FIRST, (1, 20, 1, (21, 22, 23, 24, 25)), *[(2, 9, 1, (10, 11))] * 2)
    assert hits(result) == [0, 0, 8, 8]
    assert plans(result, "host_in_blocks")[2] == 2
    assert table(result, 2, 2)[:2] == table(result, 2, 3)[:2]


def test_overlapped_it_moves_and_then_computes_the_rest() -> None:
    """Two blocks in 0.4 s from 2 s on. Nothing else is to do: the one token is computed from 2.4 s on.

    What goes out belongs to the step even so. Its blocks are held from 2 s on, all that it will need.
    """
    result = run(offloading(host_overlap=True), FIRST, SECOND_ONE, (2, 9, 1, (10, 11)))
    (transfer,) = result.transfers
    assert (transfer.direction, transfer.row, transfer.blocks, transfer.groups) == ("in", 2, 2, 1)
    times = (transfer.submitted_ns, transfer.completed_ns, transfer.noticed_ns)
    assert times == (2 * SECOND, 2400 * MS, 2400 * MS)
    step = result.steps[2]
    assert (step.start_ns, step.planned) == (2400 * MS, ((2, 1),))
    names = ("host_in_blocks", "offload_blocks", "blocks_taken", "prefill_read_tokens")
    assert [step.plan[name] for name in names] == [2, 3, 3, 9]
    row = result.requests[2]
    assert (row.admitted_ns, row.hit_tokens) == (2 * SECOND, 8)


def test_overlapped_what_moves_is_allocated_and_used() -> None:
    """Beside request 2, which decodes from 2 s on in a fifth block; the load is noticed after its step, at 3 s."""
    config = offloading(host_overlap=True, pool_blocks=5)
    result = run(config, FIRST, SECOND_ONE, (1, 1, 3, ()), (2, 9, 1, (10, 11)))
    assert [step.start_ns // SECOND for step in result.steps] == [0, 1, 2, 3]
    assert [tuple(row for row, _ in step.planned) for step in result.steps] == [(0,), (1, 2), (2,), (2, 3)]
    assert (result.steps[2].allocated_blocks, result.steps[2].used_tokens) == (1 + 3, 1 + 8)
    assert (result.steps[3].allocated_blocks, result.steps[3].used_tokens) == (1 + 3, 2 + 8)
    assert result.transfers[0].noticed_ns == 3 * SECOND  # complete at 2.4 s (D14)


@pytest.mark.parametrize(("overlap", "want"), [(False, 2), (True, 3)])
def test_a_first_chunk_wants_all_when_it_moves(overlap: bool, want: int) -> None:
    """11 tokens, 4 of them loaded, chunks of 3. In series it wants two blocks, for 4 + 3; moving it wants three."""
    config = offloading(admission="first_chunk", token_budget=3, slots=3, host_overlap=overlap, pool_blocks=3)
    result = run(config, (0, 5, 1, (10,)), (5, 12, 1, (21, 22, 23)), (15, 11, 1, (10, 99)))
    assert result.requests[2].hit_tokens == 4
    step = next(step for step in result.steps if step.planned[0][0] == 2)
    assert (step.planned, step.plan["blocks_taken"]) == (((2, 3),), want)


def test_the_blocks_of_a_load_are_held_until_it_is_noticed() -> None:
    """B11: a host of one block, with key 10, which is being loaded from 4 s to 9 s. What request 3 evicts at 5 s is not
    kept, since the one block is held. At 10 s request 4 evicts again: one is kept."""
    config = offloading(host_overlap=True, host_blocks=1, host_in_block_ns=5.0 * SECOND, pool_blocks=5)
    rows = (
        (0.0, 5, 1, (10,)),
        (1.0, 20, 1, (21, 22, 23, 24, 25)),
        (4.0, 5, 1, (10,)),
        (5.0, 8, 1, (31, 32)),
        (10.0, 20, 1, (41, 42, 43, 44, 45)),
    )
    result = run(config, *rows)
    (transfer,) = result.transfers
    assert (transfer.submitted_ns, transfer.completed_ns) == (4 * SECOND, 9 * SECOND)
    offloaded = {step.start_ns // SECOND: step.plan["offload_blocks"] for step in result.steps}
    assert (offloaded[1], offloaded[5], offloaded[10]) == (1, 0, 1)
    assert hits(result)[2] == 4


def test_separate_computes_what_is_ready_within_the_budget() -> None:
    """Budget 12. Requests 2, 3 and 4 load a block each and have 9, 9 and 1 tokens left. Two of 9 are too many for one
    step, and request 4, behind request 3, does not go ahead of it."""
    config = offloading(prefill="separate", token_budget=12, host_overlap=True, pool_blocks=12, host_in_block_ns=1.0)
    first, others = (0, 8, 1, (10, 11)), (1, 48, 1, tuple(range(100, 112)))
    result = run(config, first, others, (2, 13, 1, (10, 1, 2)), (2, 13, 1, (10, 3, 4)), (2, 5, 1, (10,)))
    assert [r.hit_tokens for r in result.requests[2:]] == [4, 4, 4]
    assert [step.planned for step in result.steps[2:]] == [((2, 9),), ((3, 9), (4, 1))]


def test_the_host_pool() -> None:
    """Room for three: kept in order, used again, held, let go, evicted for a copy that is swapped out."""
    pool = HostPool(3)
    assert pool.keep([(4, 40), (7, 70)]) == [(4, 1), (7, 2)]
    assert pool.keep([(5, 40)]) == []
    assert pool.evictable == [2, 1]
    pool.hold([1])
    pool.hold([1])
    assert (pool.free(), pool.evictable) == (2, [2])
    assert pool.keep([(1, 11), (2, 22), (3, 33)]) == [(1, 2), (2, 3)]  # best fit: first 70 goes, and of three two fit
    assert pool.cached == {40: 1, 11: 2, 22: 3}
    pool.let_go([1])
    assert pool.evictable == [2, 3]
    pool.let_go([1])
    assert pool.evictable == [2, 3, 1]
    assert pool.take(2) == [2, 3]
    assert (pool.cached, pool.free()) == ({40: 1}, 1)
    pool.release([2, 3])
    pool.check()
    assert pool.free() == 3

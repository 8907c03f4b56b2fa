"""The reference's prefix sharing against small cases by hand: blocks of four tokens unless said otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.reference_prefix import keys_of
from tests.sim.strategies import constant

SECOND = 1_000_000_000


def sharing(**changes: object) -> ReferenceConfig:
    """Paged, shared prefixes, hash blocks of the pager's size, a stack, whole prompts in one step; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=1000, pool_blocks=100, block_size_tokens=4, placement="lifo", slots=8,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live",
        prefix_sharing=True, hash_block_tokens=4,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def arrivals(*rows: tuple[int, int, int, tuple[int, ...]]) -> list[Arrival]:
    """Requests of (arrival in seconds, prompt, output, ids)."""
    return [
        Arrival(row, seconds * SECOND, prompt, output, hashes=ids)
        for row, (seconds, prompt, output, ids) in enumerate(rows)
    ]


def run(config: ReferenceConfig, *rows: tuple[int, int, int, tuple[int, ...]]) -> ReferenceResult:
    """Steps of one second, tables kept."""
    return simulate(config, arrivals(*rows), constant(SECOND), tables=True)


def hits(result: ReferenceResult) -> list[int | None]:
    return [r.hit_tokens for r in result.requests]


def admitted_s(result: ReferenceResult) -> list[int | None]:
    return [None if r.admitted_ns is None else r.admitted_ns // SECOND for r in result.requests]


def table(result: ReferenceResult, step: int, row: int) -> tuple[int, ...]:
    """The blocks of a row in a step."""
    return next(found.blocks for found in (result.steps[step].tables or {}).values() if found.row == row)


@pytest.mark.parametrize(
    ("block_size", "hash_tokens", "prompt", "ids", "keys"),
    [
        (4, 4, 8, (3, 5), [3, 5]),
        (4, 4, 7, (3, 5), [3]),  # the second hash block is partial: no whole pager block
        (2, 4, 7, (7, 9), [14, 15, 18]),  # m = 2; three whole blocks, the third in a partial hash block
        (2, 8, 9, (2, 5), [8, 9, 10, 11]),  # m = 4
        (4, 2, 7, (0, 1, 2, 3), [1]),  # k = 2; tokens 4 to 6 fill no block
        (4, 2, 8, (0, 1, 2, 3), [1, 3]),
        (4, 2, 12, (0, 1, 2), [1]),  # ids end before the prompt: half a block of them is not enough
        (4, 4, 8, (), []),
        (4, 4, 3, (6,), []),
    ],
)
def test_keys_of_whole_pager_blocks(
    block_size: int, hash_tokens: int, prompt: int, ids: tuple[int, ...], keys: list[int]
) -> None:
    config = sharing(block_size_tokens=block_size, hash_block_tokens=hash_tokens)
    assert keys_of(config, prompt, ids) == keys
    assert keys_of(replace(config, prefix_sharing=False), prompt, ids) == []


@pytest.mark.parametrize(
    ("block_size", "hash_tokens", "first", "second", "hit"),
    [
        # The two prompts of 9 tokens have 6 tokens in common.
        (4, 4, (0, 1, 2), (0, 3, 4), 4),
        (2, 4, (0, 1, 2), (0, 3, 4), 4),  # the third pager block is equal, but its hash block is not
        (4, 2, (0, 1, 2, 3, 4), (0, 1, 2, 5, 6), 4),  # three equal hash blocks are one block and a half
        (2, 2, (0, 1, 2, 3, 4), (0, 1, 2, 5, 6), 6),
        (1, 2, (0, 1, 2, 3, 4), (0, 1, 2, 5, 6), 6),
    ],
)
def test_a_hit_is_whole_pager_blocks_of_whole_hash_blocks(
    block_size: int, hash_tokens: int, first: tuple[int, ...], second: tuple[int, ...], hit: int
) -> None:
    config = sharing(block_size_tokens=block_size, hash_block_tokens=hash_tokens)
    assert hits(run(config, (0, 9, 1, first), (1, 9, 1, second))) == [0, hit]


def test_a_hit_is_not_computed_again() -> None:
    """9 tokens, 8 of them cached: one is computed. The two shared blocks count as taken and, at the end, as freed."""
    result = run(sharing(), (0, 9, 2, (0, 1, 2)), (2, 9, 1, (0, 1, 3)))
    assert hits(result) == [0, 8]
    step = result.steps[2]
    assert step.planned == ((1, 1),)
    plan = ("prefill_rows", "prefill_tokens", "prefill_read_tokens", "prefill_pairs", "blocks_taken", "copied_blocks")
    assert [step.plan[name] for name in plan] == [1, 1, 9, 9, 3, 0]
    assert (step.allocated_blocks, step.used_tokens, step.cached_blocks) == (3, 8, 0)
    # Row 0 gave back 3 (no key: 9 tokens end in it), then 2 and 1. Row 1 shares 1 and 2 and takes 3 off the stack.
    assert table(result, 2, 1) == (1, 2, 3)
    assert (result.free_blocks, result.cached_blocks) == (100, 2)


@pytest.mark.parametrize(
    ("tail", "hit", "computed_now", "copied"), [("recompute", 4, 4, 0), ("copy", 7, 1, 1)], ids=["recompute", "copy"]
)
def test_a_whole_prompt_cached(tail: str, hit: int, computed_now: int, copied: int) -> None:
    """All 8 tokens are cached; the last one is computed all the same, in a block of the row's own.

    The stack gives 1 and 2; both have keys and become evictable, 2 first. The second request shares 1. It takes 3; what
    2 holds is computed again or copied. 2 keeps its key, so 3 never gets it and goes back to the stack.
    """
    result = run(sharing(partial_tail=tail), (0, 8, 1, (0, 1)), (1, 8, 1, (0, 1)))
    assert hits(result) == [0, hit]
    step = result.steps[1]
    assert step.planned == ((1, computed_now),)
    assert (step.plan["prefill_rows"], step.plan["copied_blocks"], step.plan["blocks_taken"]) == (1, copied, 2)
    assert (step.allocated_blocks, step.used_tokens, step.cached_blocks) == (2, hit, 1)
    assert table(result, 1, 1) == (1, 3)
    assert result.cached_blocks == 2


def test_copy_of_a_tail_in_a_full_pool_takes_over_its_source() -> None:
    """Pool of 2: the store is empty, block 1 is shared, so the block to be copied is the one that has to be evicted."""
    result = run(sharing(partial_tail="copy", pool_blocks=2), (0, 8, 1, (0, 1)), (1, 8, 1, (0, 1)))
    assert table(result, 1, 1) == (1, 2)
    assert result.steps[1].plan["copied_blocks"] == 1
    # It got its key back at the step's end.
    assert result.cached_blocks == 2


def test_a_prompt_that_only_begins_with_a_cached_one_copies_nothing() -> None:
    result = run(sharing(partial_tail="copy"), (0, 8, 1, (0, 1)), (1, 9, 1, (0, 1, 2)))
    assert hits(result) == [0, 8]
    assert result.steps[1].plan["copied_blocks"] == 0


def test_of_two_that_compute_one_prefix_at_once_the_first_is_found() -> None:
    """Rows 0 and 1 hold 1 2 3 and 4 5 6. Keys go to 1 and 2; 3, then 6 5 4 go to the stack."""
    result = run(sharing(), (0, 9, 1, (0, 1, 2)), (0, 9, 1, (0, 1, 2)), (1, 9, 1, (0, 1, 2)))
    assert hits(result) == [0, 0, 8]
    assert [result.steps[0].allocated_blocks, result.steps[1].allocated_blocks] == [6, 3]
    assert table(result, 1, 2) == (1, 2, 4)
    assert result.cached_blocks == 2


def test_generated_tokens_have_no_keys() -> None:
    """6 + 6 tokens write 11 entries: the first block is the prompt's alone, the second is full but has no key."""
    result = run(sharing(), (0, 6, 6, (0, 1)), (6, 12, 1, (0, 1, 2)))
    assert result.steps[-1].cached_blocks == 0
    assert hits(result) == [0, 4]
    # Of the second request all three blocks get a key; the first one has it already.
    assert result.cached_blocks == 3


def test_the_least_recently_used_goes_first_and_of_one_prompt_its_tail() -> None:
    """Pool of 4. Evictable blocks, least recently used first, after each request:

    0 (ids 0 1): 2 1. 1 (ids 2 3): 2 1 4 3. 2 (one block, no ids) evicts 2, row 0's tail: 1 4 3, and 2 in the store.
    3 (ids 0 1) hits 1 and computes the rest anew in 2: 4 3 2 1. 4 (two blocks, no ids) evicts 4 and 3: the stack then
    gives 3 before 4. 5 (ids 0 1 4) hits 1 and 2: they outlived 4 and 3 because they were used since.
    """
    result = run(
        sharing(pool_blocks=4),
        (0, 8, 1, (0, 1)), (1, 8, 1, (2, 3)), (2, 4, 1, ()), (3, 8, 1, (0, 1)), (4, 8, 1, ()), (5, 9, 1, (0, 1, 4)),
    )  # fmt: skip
    assert hits(result) == [0, 0, 0, 4, 0, 8]
    tables = [table(result, row, row) for row in range(6)]
    assert tables[:5] == [(1, 2), (3, 4), (2,), (1, 2), (3, 4)]
    assert tables[5][:2] == (1, 2)
    assert [step.cached_blocks for step in result.steps] == [0, 2, 3, 2, 2, 0]


def test_growth_evicts() -> None:
    """Pool of 3. Row 0 leaves 2 and 1 evictable at 1 s. Row 1 writes 9 entries from block 3 on: 1 s: 2; 5 s: 1."""
    result = run(sharing(pool_blocks=3), (0, 8, 1, (0, 1)), (0, 4, 6, ()), (7, 8, 1, (0, 1)))
    assert (table(result, 1, 1), table(result, 5, 1)) == ((3, 2), (3, 2, 1))
    assert [step.cached_blocks for step in result.steps] == [0, 1, 1, 1, 1, 0, 0]
    assert hits(result) == [0, 0, 0]


def test_evictable_blocks_are_free_to_an_admission() -> None:
    """Pool of 3, all of it cached: a request of 3 other blocks starts at once."""
    result = run(sharing(pool_blocks=3), (0, 12, 1, (0, 1, 2)), (1, 12, 1, (3, 4, 5)))
    assert admitted_s(result) == [0, 1]
    assert hits(result) == [0, 0]
    assert result.cached_blocks == 3


def test_an_evictable_block_that_is_hit_is_not_free_besides() -> None:
    """Pool of 4. At 1 s row 1 holds two blocks and two are evictable: row 0's.

    Row 2 hits both and lacks one block: 1 <= 2 - 2 is false. Counted twice they would admit it. Row 1 ends at 5 s.
    """
    result = run(sharing(pool_blocks=4), (0, 8, 1, (0, 1)), (0, 4, 5, ()), (1, 12, 1, (0, 1, 2)))
    assert [step.cached_blocks for step in result.steps[:2]] == [0, 2]
    assert admitted_s(result) == [0, 0, 5]
    assert hits(result) == [0, 0, 8]


def test_shared_blocks_need_no_room() -> None:
    """Pool of 5. Row 0 holds 3 blocks until 4 s; row 1 needs 3 blocks and has room for 2: it shares one."""
    rows = (0, 9, 4, (0, 1, 2)), (1, 9, 2, (0, 3, 4))
    result = run(sharing(pool_blocks=5), *rows)
    assert admitted_s(result) == [0, 1]
    assert admitted_s(run(sharing(pool_blocks=5, prefix_sharing=False), *rows)) == [0, 4]
    # Both run: 3 + 3 blocks, one of them twice; 9 + 4 entries, 4 of them twice.
    step = result.steps[1]
    assert (step.reserved_blocks, step.allocated_blocks, step.used_tokens, step.cached_blocks) == (5, 5, 9, 0)
    assert step.plan["blocks_taken"] == 3
    # A watermark of one keeps row 1 out: 3 - 1 <= 2 - 0 - 1 is false.
    assert admitted_s(run(sharing(pool_blocks=5, watermark_blocks=1), *rows)) == [0, 4]


def test_a_shared_block_is_held_until_its_last_row_ends() -> None:
    """Row 0 ends at 2 s; row 1, which shares 1 and 2, at 4 s."""
    result = run(sharing(), (0, 9, 2, (0, 1, 2)), (1, 9, 3, (0, 1, 2)))
    assert table(result, 2, 1) == (1, 2, 4)
    assert [step.cached_blocks for step in result.steps] == [0, 0, 0, 0]
    assert [step.allocated_blocks for step in result.steps] == [3, 4, 3, 3]
    assert result.steps[2].plan["blocks_freed"] == 3  # row 0 gave back three, two of which are still held
    assert result.cached_blocks == 2


def test_first_chunk_takes_the_hit_and_one_chunk() -> None:
    """Budget 6. Row 0 computes 6 + 2. Row 1 of 24 tokens hits 8: its first chunk ends at 14, in 4 blocks of 6."""
    config = sharing(token_budget=6, slots=2, admission="first_chunk")
    rows = (0, 8, 1, (0, 1)), (2, 24, 1, (0, 1, 2, 3, 4, 5))
    result = run(config, *rows)
    assert [step.planned for step in result.steps] == [((0, 6),), ((0, 2),), ((1, 6),), ((1, 6),), ((1, 4),)]
    assert [step.plan["blocks_taken"] for step in result.steps] == [2, 0, 4, 1, 1]
    whole = run(replace(config, admission="full_prompt"), *rows)
    assert [step.plan["blocks_taken"] for step in whole.steps] == [2, 0, 6, 0, 0]


def test_keys_appear_chunk_by_chunk() -> None:
    """A block is found once it is whole, although its row still prefills."""
    result = run(sharing(token_budget=6, slots=2), (0, 13, 1, (0, 1, 2, 3)), (1, 12, 1, (0, 1, 2)))
    # At 1 s row 0 takes the whole budget; at 2 s it takes one token. Row 1 hits two of its three blocks: with all three
    # cached (12 tokens are) its last token still has to be computed, and with it the last block.
    assert [step.planned for step in result.steps] == [((0, 6),), ((0, 6),), ((0, 1), (1, 4))]
    assert hits(result) == [0, 8]
    stopped = run(sharing(token_budget=7, slots=2), (0, 8, 1, (0, 1)), (1, 12, 1, (0, 1, 2)))
    # At 1 s row 0 lacks one token of its second block: only the first one is found.
    assert [step.planned for step in stopped.steps] == [((0, 7),), ((0, 1), (1, 6)), ((1, 2),)]
    assert hits(stopped) == [0, 4]


def test_a_block_that_missed_its_key_gets_none_later() -> None:
    """Pool of 3, budget 8. At 0 s both rows compute the block of id 0; the key goes to row 0's, which ends at 1 s.

    At 1 s row 1 needs two more blocks and evicts it. Row 1 has the tokens of id 0 in a block of its own, but only the
    blocks that a step fills get keys at its end. So row 2 hits nothing.
    """
    config = sharing(pool_blocks=3, token_budget=8, admission="first_chunk")
    result = run(config, (0, 4, 1, (0,)), (0, 12, 1, (0, 1, 2)), (2, 8, 1, (0, 1)))
    assert [step.planned for step in result.steps] == [((0, 4), (1, 4)), ((1, 8),), ((2, 8),)]
    assert hits(result) == [0, 0, 0]
    assert [step.cached_blocks for step in result.steps] == [0, 0, 1]


def test_separate_counts_only_what_is_computed_against_its_budget() -> None:
    """Budget 10. At 1 s two of 9 tokens, 8 of them cached: 1 + 1 tokens are one step; without sharing two."""
    rows = (0, 9, 1, (0, 1, 2)), (1, 9, 1, (0, 1, 3)), (1, 9, 1, (0, 1, 4))
    config = sharing(prefill="separate", token_budget=10)
    assert [step.planned for step in run(config, *rows).steps] == [((0, 9),), ((1, 1), (2, 1))]
    alone = run(replace(config, prefix_sharing=False), *rows)
    assert [step.planned for step in alone.steps] == [((0, 9),), ((1, 9),), ((2, 9),)]


def test_without_prefill_keys_are_there_at_admission() -> None:
    """Two of 9 tokens at once: row 0's first two blocks have their keys when row 1 is tried in the same decision."""
    result = run(sharing(prefill="none"), (0, 9, 2, (0, 1, 2)), (0, 9, 2, (0, 1, 3)))
    assert hits(result) == [0, 8]
    step = result.steps[0]
    assert step.planned == ((0, 1), (1, 1))
    assert (step.plan["decode_rows"], step.plan["blocks_taken"]) == (2, 6)
    # 3 + 3 blocks, two shared; 8 + 8 entries, 8 of them twice.
    assert (step.allocated_blocks, step.used_tokens) == (4, 8)
    # Of 8 tokens 7 come with the admission: the second block is not whole then, and never gets a key.
    result = run(sharing(prefill="none"), (0, 8, 1, (0, 1)), (1, 8, 1, (0, 1)))
    assert hits(result) == [0, 4]
    assert result.cached_blocks == 1


def test_what_is_hit_after_a_preemption_was_not_lost() -> None:
    """Blocks of two, pool of 6. Both rows write 4 entries at 0 s; row 1's blocks 3 and 4 get keys.

    At 3 s both hold three full blocks. Row 0 needs a fourth: row 1 goes, with 6 entries; 6 to the stack, 4 and 3
    evictable. Row 0 takes 6 and ends at 5 s. Row 1 hits 3 and 4 and computes 3 of its 7 known tokens: 6 - 4 are lost.
    """
    result = run(sharing(block_size_tokens=2, hash_block_tokens=2, pool_blocks=6), (0, 4, 5, ()), (0, 4, 4, (0, 1)))
    row = result.requests[1]
    assert (row.preemptions, row.recomputed_tokens, row.hit_tokens) == (1, 2, 0)
    assert [step.cached_blocks for step in result.steps] == [0, 0, 0, 2, 2, 0]
    assert result.steps[5].planned == ((1, 3),)
    assert table(result, 5, 1)[:2] == (3, 4)
    assert row.finish_ns == 6 * SECOND


def test_no_more_is_taken_back_than_was_lost() -> None:
    """Blocks of two, pool of 5, budget 7, admission by the first chunk; the order is by priority.

    0 s: row 0 computes 6 tokens in 3 blocks, row 1 (of 8) one token in one. 1 s: row 0 takes the last block, row 1
    lacks three and is its own victim: one token lost. 3 s: row 0 has ended; row 2, more urgent and with row 1's prompt,
    computes 7. 4 s: three blocks have keys; row 1 hits 6 tokens, but had lost 1.
    """
    config = sharing(
        block_size_tokens=2, hash_block_tokens=2, pool_blocks=5, token_budget=7, slots=3,
        admission="first_chunk", order="priority",
    )  # fmt: skip
    requests = [
        Arrival(0, 0, 6, 3, priority=0),
        Arrival(1, 0, 8, 1, priority=1, hashes=(0, 1, 2, 3)),
        Arrival(2, 2 * SECOND, 8, 1, priority=0, hashes=(0, 1, 2, 3)),
    ]
    result = simulate(config, requests, constant(SECOND))
    assert [step.planned for step in result.steps] == [
        ((0, 6), (1, 1)), ((0, 1),), ((0, 1),), ((2, 7),), ((2, 1), (1, 2)),
    ]  # fmt: skip
    row = result.requests[1]
    assert (row.preemptions, row.recomputed_tokens, row.hit_tokens) == (1, 0, 0)
    # Row 2 holds 4 blocks and row 1 one besides the three that they share; 7 + 6 - 3 * 2 entries.
    step = result.steps[4]
    assert (step.reserved_blocks, step.allocated_blocks, step.used_tokens) == (5, 5, 7)


def test_only_blocks_without_a_key_are_sorted_when_they_are_released() -> None:
    """Pool of 8, a queue. Row 0 holds 1 to 5 (two keys): 3 4 5 go back. Sorted: the lowest first."""
    rows = (0, 20, 1, (0, 1)), (1, 24, 1, ())
    config = sharing(pool_blocks=8, placement="fifo")
    assert table(run(config, *rows), 1, 1) == (6, 7, 8, 5, 4, 3)
    assert table(run(replace(config, release_order="sorted"), *rows), 1, 1) == (6, 7, 8, 3, 4, 5)


def test_a_rejected_request_hits_nothing_and_a_waiting_one_neither() -> None:
    requests = arrivals((0, 9, 5, (0, 1, 2)), (0, 2000, 1, ()), (0, 9, 5, (0, 1, 2)))
    result = simulate(sharing(slots=1), requests, constant(SECOND), until_ns=SECOND)
    assert hits(result) == [0, None, None]

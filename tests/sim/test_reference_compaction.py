"""The reference's compaction against small cases by hand: blocks of one token, steps of one second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.reference import Arrival, ReferenceConfig, ReferenceResult, simulate
from tests.sim.reference_compaction import Compaction, Move, block_moves, longest_run, reservation_moves
from tests.sim.reference_contents import Contents
from tests.sim.reference_pool import ExtentStore, FifoStore, LifoStore, LowestStore, Store
from tests.sim.reference_prefix import Pager
from tests.sim.reference_records import Request
from tests.sim.reference_run_ahead import Pipeline
from tests.sim.reference_runs import BuddyStore, ContiguousStore
from tests.sim.strategies import constant

SECOND = 1_000_000_000

#: Six holders of 20, 10, 20, 20, 20 and 10 cells; the first, the third and the fifth end at 1 s, the others at 9 s.
HOLDERS = ((20, 1), (2, 9), (20, 1), (12, 9), (20, 1), (2, 9))


def paged(**changes: object) -> ReferenceConfig:
    """Paged on 12 blocks, compacted whenever the free ones are not one run; with changes."""
    config = ReferenceConfig(
        reserve="paged", limit_tokens=1000, pool_blocks=12, block_size_tokens=1, placement="lifo", slots=8,
        prefill="chunked", token_budget=1000, read_what="table", read_extent="live",
        compaction="threshold", compaction_ratio=0.0,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]  # a test names its own fields


def reserved(**changes: object) -> ReferenceConfig:
    """One run for each request in 100 blocks, compacted on demand; with changes."""
    contiguous = {"reserve": "oracle", "placement": "contiguous", "read_what": "live", "pool_blocks": 100}
    return paged(**(contiguous | {"compaction": "demand"} | changes))


def run(config: ReferenceConfig, *arrivals: Arrival) -> ReferenceResult:
    return simulate(config, arrivals, constant(SECOND), tables=True)


def at_once(*lengths: tuple[int, int]) -> list[Arrival]:
    """(prompt, output) of requests that all arrive at 0."""
    return [Arrival(row, 0, prompt, output) for row, (prompt, output) in enumerate(lengths)]


def tables(result: ReferenceResult, step: int) -> dict[int, list[int]]:
    """The blocks of each running request in a step."""
    return {table.row: list(table.blocks) for table in (result.steps[step].tables or {}).values()}


def compacted(result: ReferenceResult) -> list[tuple[int, int]]:
    """(blocks, groups) moved before each step."""
    return [(step.plan["compacted_blocks"], step.plan["compaction_groups"]) for step in result.steps]


@pytest.mark.parametrize("placement", ["lifo", "fifo", "lowest", "extent", "contiguous"])
def test_the_highest_blocks_fill_the_lowest_holes(placement: str) -> None:
    """Row 0 ends: 1 to 3 are free, and 9 to 12 or three of them. The last three held blocks go there as one group.

    (With extents of three blocks row 2 has 7 to 9, else 6 to 8.) Then 6 to 12 are free, the lower ones first: growth
    takes 6 and 7. A stack would have given 1, a queue 9.
    """
    result = run(paged(placement=placement, extent_blocks=3), *at_once((3, 1), (2, 3), (3, 3)))
    third = [7, 8, 9] if placement == "extent" else [6, 7, 8]
    assert tables(result, 0) == {0: [1, 2, 3], 1: [4, 5], 2: third}
    assert tables(result, 1) == {1: [4, 5, 6], 2: [1, 2, 3, 7]}
    assert compacted(result) == [(0, 0), (3, 1), (0, 0)]
    assert result.free_blocks == 12


def test_at_most_so_many_blocks_move() -> None:
    """Two may: 7 and 8 go to 1 and 2. Free are 3 and 7 to 12, and nothing came back since: it is not checked again."""
    result = run(paged(compaction_max_moves=2), *at_once((3, 1), (2, 4), (3, 4)))
    assert tables(result, 1) == {1: [4, 5, 3], 2: [6, 1, 2, 7]}
    assert compacted(result) == [(0, 0), (2, 1), (0, 0), (0, 0)]


@pytest.mark.parametrize(("ratio", "blocks"), [(0.42, 3), (3 / 7, 0), (0.43, 0), (1.0, 0)])
def test_the_share_outside_the_longest_run_has_to_be_above_the_ratio(ratio: float, blocks: int) -> None:
    """Of 7 free blocks 4 are one run: 3 of 7 are outside it."""
    result = run(paged(compaction_ratio=ratio), *at_once((3, 1), (2, 2), (3, 2)))
    assert compacted(result)[1][0] == blocks


def test_without_compaction_nothing_moves() -> None:
    result = run(paged(compaction="none"), *at_once((3, 1), (2, 2), (3, 2)))
    assert tables(result, 1) == {1: [4, 5, 1], 2: [6, 7, 8, 2]}
    assert compacted(result) == [(0, 0), (0, 0)]


def test_holes_by_taking_alone_are_not_checked() -> None:
    """Extents of three: rows of 1 block each at 1, 4, 7 and 10; 2, 3, 5, 6, … are free, but none of them came back."""
    result = run(paged(placement="extent", extent_blocks=3), *at_once((1, 2), (1, 2), (1, 2), (1, 3)))
    assert tables(result, 0) == {0: [1], 1: [4], 2: [7], 3: [10]}
    # Until three rows end: 10 and 11 go to 1 and 2.
    assert compacted(result) == [(0, 0), (0, 0), (2, 1)]
    assert tables(result, 2) == {3: [1, 2, 3]}


def test_groups_follow_each_other_on_both_sides() -> None:
    """9 and 7 go to 2 and 1; 5 stays, since 6 is above it."""
    assert block_moves({4, 5, 7, 9}, [1, 2, 6, 8, 10], 9) == [Move(7, 1, 1), Move(9, 2, 1)]
    assert block_moves({7, 8, 9, 10}, [1, 2, 4, 5], 9) == [Move(7, 1, 2), Move(9, 4, 2)]
    assert block_moves({7, 8, 9, 10}, [1, 2, 4, 5], 3) == [Move(8, 1, 2), Move(10, 4, 1)]
    assert block_moves({1, 2}, [3, 4], 9) == []
    assert block_moves(set(), [3, 4], 9) == block_moves({3, 4}, [], 9) == []


def test_the_longest_run_of_ids() -> None:
    assert [longest_run(ids) for ids in ([], [4], [9, 7, 8, 1, 2], [1, 3, 5])] == [0, 1, 3, 1]


def test_shared_blocks_move_for_everybody_who_holds_them() -> None:
    """Row 0 has 1 to 6 and 10, row 1 its prompt in 7 to 9 and 11; row 2 shares 7 and 8 and has 12. Row 0 ends at 2 s.

    7 to 9 go to 1 to 3, 11 and 12 to 4 and 5.
    """
    config = paged(pool_blocks=14, prefix_sharing=True, hash_block_tokens=1)
    requests = [Arrival(0, 0, 6, 2), Arrival(1, 0, 3, 5, hashes=(7, 8, 9)), Arrival(2, SECOND, 3, 5, hashes=(7, 8, 9))]
    result = run(config, *requests)
    assert tables(result, 1) == {0: [1, 2, 3, 4, 5, 6, 10], 1: [7, 8, 9, 11], 2: [7, 8, 12]}
    assert tables(result, 2) == {1: [1, 2, 3, 4, 6], 2: [1, 2, 5, 7]}
    assert compacted(result)[:4] == [(0, 0), (0, 0), (5, 2), (0, 0)]
    assert result.steps[2].used_tokens == 4 + 1


def test_evictable_blocks_move_with_their_keys_and_nothing_moves_while_nobody_runs() -> None:
    """Rows 0 (1 to 3, no keys) and 1 (4 and 5, keys 7 and 8) end at 1 s. Nobody runs then, nor when row 2 comes at 5 s.

    It takes 1 and 2. At 6 s the check is due: 3 and 6 to 10 are free, so 5 goes to 3. Row 3 finds 4 and 3 at 7 s.
    """
    config = paged(pool_blocks=10, prefix_sharing=True, hash_block_tokens=1)
    requests = [Arrival(0, 0, 3, 1), Arrival(1, 0, 2, 1, hashes=(7, 8)), Arrival(2, 5 * SECOND, 2, 3)]
    result = run(config, *requests, Arrival(3, 7 * SECOND, 3, 1, hashes=(7, 8, 9)))
    assert [step.start_ns // SECOND for step in result.steps] == [0, 5, 6, 7]
    assert compacted(result) == [(0, 0), (0, 0), (1, 1), (0, 0)]
    assert tables(result, 2) == {2: [1, 2, 5]}
    assert tables(result, 3) == {2: [1, 2, 5, 6], 3: [4, 3, 7]}
    assert result.requests[3].hit_tokens == 2


def test_evictable_blocks_keep_their_places_in_the_order() -> None:
    """The last block of a prompt was released first, so it is the least recently used, wherever it lies."""
    config = paged(pool_blocks=8, prefix_sharing=True, hash_block_tokens=1)
    pager = Pager(config, LifoStore(8), Pipeline(config))
    rows = [Request(row, 0, 2, 1, None) for row in range(3)]
    for r in rows:
        pager.take(r, 2)
    pager.cached = {55: 5, 66: 6}
    pager.release(rows[2])
    pager.release(rows[0])
    compaction = Compaction(config, pager, Contents(config, pager))
    compaction.check([rows[1]], ready=[], moving=[])
    assert pager.evictable == [2, 1]
    assert pager.cached == {55: 1, 66: 2}
    assert rows[1].blocks == [3, 4]
    assert compaction.integers() == {"compacted_blocks": 2, "compaction_groups": 1}
    assert compaction.integers() == {"compacted_blocks": 0, "compaction_groups": 0}


def test_rows_that_are_ready_move_as_those_that_run_do_but_nothing_moves_for_them_alone() -> None:
    """Row 0 gives back 1 and 2 of 8 blocks; row 2 has 5 and 6."""
    config = paged(pool_blocks=8)
    pager = Pager(config, LifoStore(8), Pipeline(config))
    rows = [Request(row, 0, 2, 1, None) for row in range(3)]
    for r in rows:
        pager.take(r, 2)
    pager.release(rows[0])
    compaction = Compaction(pager.config, pager, Contents(pager.config, pager))
    compaction.check([], ready=rows[1:], moving=[])
    assert rows[2].blocks == [5, 6]
    compaction.check(rows[1:2], ready=rows[2:], moving=[])
    assert rows[2].blocks == [1, 2]


def test_nothing_is_staged_again() -> None:
    """Rows are staged at 1 s. Row 0 ends at 2 s: 8, 10 and 11 go to 1, 2 and 3, and staging moves nothing."""
    config = paged(read_what="staged", scope="model", staging="delta")
    result = run(config, *at_once((3, 2), (2, 4), (3, 4)))
    assert [step.plan["moved_blocks"] for step in result.steps] == [0, 8, 0, 0]
    assert compacted(result) == [(0, 0), (0, 0), (3, 2), (0, 0)]
    assert tables(result, 2) == {1: [4, 5, 2, 8], 2: [6, 7, 1, 3, 9]}


def test_an_admission_that_finds_no_run_has_one_made() -> None:
    """B20: three holes of 20 in 100 cells, 30 are asked for at 1 s, which would wait until 9 s.

    From the highest down: row 5 (10 cells) goes to 1, row 3 (20) to 31, row 1 (10) to 11. Then 51 to 100 are one run.
    """
    requests = [*at_once(*HOLDERS), Arrival(6, SECOND, 30, 1)]
    result = run(reserved(), *requests)
    assert result.requests[6].admitted_ns == SECOND
    assert compacted(result)[:3] == [(0, 0), (40, 3), (0, 0)]
    moved = {1: range(11, 21), 3: range(31, 51), 5: range(1, 11), 6: range(51, 81)}
    assert tables(result, 1) == {row: list(blocks) for row, blocks in moved.items()}
    assert run(reserved(compaction="none"), *requests).requests[6].admitted_ns == 9 * SECOND


def test_a_move_of_a_reservation_is_one_move() -> None:
    """B20 with one move: row 5 goes to 1, and 71 to 100 are free.

    45 cells get no run by that; at 2 s row 3 goes to 31, and from 51 on there are 50.
    """
    config = reserved(compaction_max_moves=1)
    result = run(config, *at_once(*HOLDERS), Arrival(6, SECOND, 30, 1))
    assert compacted(result)[:3] == [(0, 0), (10, 1), (0, 0)]
    assert tables(result, 1)[6] == list(range(71, 101))
    result = run(config, *at_once(*HOLDERS), Arrival(6, SECOND, 45, 1))
    assert compacted(result)[:4] == [(0, 0), (10, 1), (20, 1), (0, 0)]
    assert result.requests[6].admitted_ns == 2 * SECOND
    assert tables(result, 2)[6] == list(range(51, 96))


@pytest.mark.parametrize(("prompt", "watermark"), [(61, 0), (30, 31)])
def test_what_does_not_fit_anyhow_moves_nothing(prompt: int, watermark: int) -> None:
    """60 are free: 61 are too many, and so are 30 with a margin of 31."""
    result = run(reserved(watermark_blocks=watermark), *at_once(*HOLDERS), Arrival(6, SECOND, prompt, 1))
    assert [blocks for blocks, _ in compacted(result)] == [0] * len(result.steps)
    assert result.requests[6].admitted_ns == 9 * SECOND


@pytest.mark.parametrize(("ratio", "asks", "blocks"), [(0.5, False, 40), (0.7, False, 0), (0.7, True, 40)])
def test_a_threshold_moves_reservations_before_anybody_asks_and_on_demand(
    ratio: float, asks: bool, blocks: int
) -> None:
    """60 are free and 20 the longest run: 2/3 are outside it, which is above 0.5; above 0.7 nothing moves unasked."""
    requests = [*at_once(*HOLDERS), *([Arrival(6, SECOND, 30, 1)] if asks else [])]
    result = run(reserved(compaction="threshold", compaction_ratio=ratio), *requests)
    assert compacted(result)[1][0] == blocks
    assert asks is False or result.requests[6].admitted_ns == SECOND


def test_one_move_of_64_fills_one_hole_of_64() -> None:
    """B21: a move limit counts moves, not blocks. After it all that is free is one run, 65 to 256."""
    config = reserved(pool_blocks=256, compaction="threshold", compaction_ratio=0.1, compaction_max_moves=1)
    result = run(config, *at_once((64, 1), (61, 4)), Arrival(2, SECOND, 192, 1))
    assert compacted(result) == [(0, 0), (64, 1), (0, 0), (0, 0)]
    assert tables(result, 1) == {1: list(range(1, 65)), 2: list(range(65, 257))}


def test_padding_is_no_hole() -> None:
    """B21: 20 of 32 reserved cells are used, and the free ones are one run: nothing moves, whatever is padding."""
    config = reserved(reserve="bucket", buckets_tokens=(32, 1000), compaction="threshold", compaction_ratio=0.1)
    result = run(config, *at_once((15, 6), (20, 1), (20, 1)))
    assert tables(result, 0)[0] == list(range(1, 33))
    assert result.steps[-1].used_tokens == 19
    assert compacted(result) == [(0, 0)] * 6


def test_a_reservation_goes_to_the_lowest_run_that_holds_it_whole() -> None:
    """A run beside it that is too short is no place for it, even if both together were long enough."""
    runs = [list(range(11, 15)), list(range(21, 24)), list(range(31, 33))]
    free = [1, 2, 3, *range(8, 11), *range(15, 21), *range(24, 31)]
    # From above: 31 (2 blocks) to 1; 21 (3) to 8, not to 1, where one is left; 11 (4) stays.
    assert reservation_moves(runs, free, 9) == [Move(31, 1, 2), Move(21, 8, 3)]
    assert reservation_moves(runs, free, 1) == [Move(31, 1, 2)]
    assert reservation_moves([[5, 6, 7]], [2, 3, 4, 8, 9, 10], 9) == [Move(5, 2, 3)]
    assert reservation_moves([[5, 6, 7]], [3, 4, 8, 9, 10], 9) == []


def stores() -> list[Store]:
    return [LifoStore(12), FifoStore(12), LowestStore(12), ExtentStore(12, 3), ContiguousStore(12)]


@pytest.mark.parametrize("store", stores(), ids=lambda store: type(store).__name__)
def test_a_store_opens_with_what_is_free(store: Store) -> None:
    """2, 4 to 6, 8 and 10 to 12: of the whole extents, and of the runs of three, 4 to 6 is the more recent."""
    held = store.grow(None, 12)
    for block in (12, 3, 8, 5, *(block for block in held if block not in (12, 3, 8, 5))):
        store.release_one(block)
    store.open_with([2, 4, 5, 6, 8, 10, 11, 12])
    store.check()
    expected = {
        "LifoStore": [2, 4, 5, 6, 8, 10, 11, 12],
        "FifoStore": [2, 4, 5, 6, 8, 10, 11, 12],
        "LowestStore": [2, 4, 5, 6, 8, 10, 11, 12],
        "ExtentStore": [4, 10, 2, 5, 6, 8, 11, 12],  # two whole extents, then the lowest
        "ContiguousStore": [2, 8, 4, 5, 6, 10, 11, 12],  # best fit for one, then what is left of it
    }[type(store).__name__]
    assert [store.take_one() for _ in range(8)] == expected


def test_of_equal_runs_the_lower_one_is_taken() -> None:
    store = ContiguousStore(20)
    store.open_with([3, 4, 5, 9, 10, 13, 14, 15])
    assert store.extents == [(3, 3), (9, 2), (13, 3)]
    assert store.reserve(3) == [3, 4, 5]


def test_blocks_that_came_are_counted_and_opening_brings_none() -> None:
    store = ContiguousStore(9)
    store.release_reservation(store.reserve(4) or [])
    store.release_one(store.take_one())
    store.open_with([1, 2])
    assert store.came == 5


def test_what_is_refused() -> None:
    with pytest.raises(AssertionError, match="no compaction is called 'always'"):
        paged(compaction="always")
    with pytest.raises(AssertionError, match="nothing paged demands a single run"):
        paged(compaction="demand")
    with pytest.raises(AssertionError, match="a buddy pool"):
        paged(placement="buddy")
    with pytest.raises(AssertionError, match="a buddy pool"):
        reserved(placement="buddy")
    with pytest.raises(AssertionError, match="moves something"):
        paged(compaction_max_moves=0)
    with pytest.raises(AssertionError, match=r"no share of the free blocks is -0\.1"):
        paged(compaction_ratio=-0.1)
    with pytest.raises(AssertionError, match="a buddy pool is never compacted"):
        BuddyStore(8).open_with([1, 2])

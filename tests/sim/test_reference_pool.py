"""The reference's free stores, by hand."""

from __future__ import annotations

import pytest

from tests.sim.reference_pool import ExtentStore, FifoStore, LifoStore, LowestStore, PoolExhaustedError, Store
from tests.sim.reference_runs import BuddyStore, ContiguousStore


def test_what_does_not_fit_changes_nothing() -> None:
    """B01: pool of 10, a request holds 8 and asks for 3 more: refused, it still holds 8, 2 are free."""
    pool = LifoStore(10)
    held = pool.grow(None, 8)
    with pytest.raises(PoolExhaustedError):
        pool.grow(held[-1], 3)
    assert held == [1, 2, 3, 4, 5, 6, 7, 8]
    assert pool.free() == 2
    pool.release(held)
    # The last logical block went first, so the first one is on top again.
    assert pool.grow(None, 3) == [1, 2, 3]


def test_holes_stop_a_contiguous_reservation_and_no_paged_growth() -> None:
    """B20: 100 cells with three free holes of 20; 30 are asked for. Enough in total, no run."""
    pool = ContiguousStore(100)
    pieces = [pool.grow(None, size) for size in (20, 10, 20, 20, 20, 10)]
    for hole in (pieces[0], pieces[2], pieces[4]):
        pool.release(hole)
    assert pool.free() == 60
    assert pool.reserve(30) is None
    assert pool.free() == 60
    assert 1 - max(size for _, size in pool.extents) / pool.free() == pytest.approx(0.667, abs=0.001)
    # Paged: the most recent of the largest extents whole, then the best fit for the rest.
    assert pool.grow(None, 30) == [*range(71, 91), *range(31, 41)]


def test_contiguous_growth_extends_the_last_run_first() -> None:
    pool = ContiguousStore(20)
    first, second, third = pool.grow(None, 4), pool.grow(None, 4), pool.grow(None, 4)
    assert (first, second, third) == ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12])
    pool.release(second)
    # Follows block 4 (where 4 were freed), then the 8 at the end as the only extent left.
    assert pool.grow(first[-1], 6) == [5, 6, 7, 8, 13, 14]
    pool.release_reservation(third)
    # 9–12 was freed apart from 15–20: the smaller one that holds three is taken.
    assert pool.grow(None, 3) == [9, 10, 11]


def test_buddy_splits_from_the_low_end_and_merges_back() -> None:
    pool = BuddyStore(7)  # cut as 4 + 2 + 1
    assert pool.lists == [[6], [4], [0]]
    assert pool.reserve(3) == [1, 2, 3, 4]
    assert pool.reserve(3) is None
    single = [pool.take_one(), pool.take_one()]
    assert single == [7, 5]
    pool.release(single)
    assert pool.lists == [[6], [4], []]
    pool.release_reservation([1, 2, 3, 4])
    assert pool.lists == [[6], [4], [0]]
    assert BuddyStore(8).largest_empty_run() == 8
    assert BuddyStore(7).largest_empty_run() == 4


def test_lowest_takes_the_lowest_whatever_came_back_last() -> None:
    pool = LowestStore(6)
    assert pool.grow(None, 5) == [1, 2, 3, 4, 5]
    pool.release([2, 4, 3])
    assert pool.grow(1, 2) == [2, 3]


def test_a_queue_gives_first_what_came_back_first() -> None:
    pool = FifoStore(5)
    held = pool.grow(None, 3)
    assert held == [1, 2, 3]
    pool.release(held)  # 3, 2, 1 behind 4, 5
    assert pool.grow(None, 4) == [4, 5, 3, 2]
    with pytest.raises(PoolExhaustedError):
        pool.grow(2, 2)
    assert pool.free_ids() == [1]


@pytest.mark.parametrize("pool", [LifoStore(6), FifoStore(6)], ids=["lifo", "fifo"])
def test_a_sorted_release_is_given_out_in_ascending_order(pool: Store) -> None:
    pool.grow(None, 6)
    pool.release([5, 1, 6, 3], "sorted")
    assert pool.grow(None, 4) == [1, 3, 5, 6]
    # Not sorted, the last logical block goes first: it is the last to be given out by a stack, the first by a queue.
    pool.release([5, 1, 6, 3])
    assert pool.grow(None, 4) == ([5, 1, 6, 3] if isinstance(pool, LifoStore) else [3, 6, 1, 5])


def test_a_request_goes_on_in_its_extent_then_in_a_whole_one_then_anywhere() -> None:
    pool = ExtentStore(10, 4)  # 1-4, 5-8, 9-10
    assert pool.grow(None, 2) == [1, 2]
    assert pool.grow(None, 1) == [5]
    # The rest of its extent; then 5 is another extent's (and taken), so the only whole one, the short one at the end.
    assert pool.grow(2, 3) == [3, 4, 9]
    # Nothing is whole: the lowest, which is in the second request's extent.
    assert pool.grow(None, 1) == [6]
    # 6 is taken, although 7 and 8 of the extent are free: a request goes on in the very next block or not at all.
    assert pool.grow(5, 1) == [7]
    assert pool.grow(9, 1) == [10]
    assert pool.grow(10, 1) == [8]
    with pytest.raises(PoolExhaustedError):
        pool.grow(8, 1)


def test_of_whole_extents_the_one_that_became_so_last_is_taken() -> None:
    pool = ExtentStore(12, 4)
    pool.grow(None, 12)
    pool.release([1, 2, 3])
    pool.release([9, 10, 11, 12])
    pool.release([6, 7, 8, 5])
    assert pool.whole == [1, 2]  # the first one lacks 4
    # After 8 comes 9, free, but of another extent: the extents are looked at as for a new request.
    assert pool.grow(8, 1) == [5]
    pool.release([5])
    assert pool.grow(4, 6) == [5, 6, 7, 8, 9, 10]
    pool.release([4])
    assert pool.whole == [0]
    assert pool.grow(None, 1) == [1]
    pool.check()


def test_an_extent_is_free_again_when_its_last_block_is_back() -> None:
    """Extents of one block are a stack; one extent over all is the next block, else the lowest."""
    single = ExtentStore(4, 1)
    held = single.grow(None, 3)
    single.release(held)
    assert single.grow(None, 4) == [1, 2, 3, 4]
    single.release([2, 4])
    assert single.grow(None, 2) == [2, 4]
    one = ExtentStore(4, 8)
    assert one.grow(None, 3) == [1, 2, 3]
    one.release([2])
    assert one.grow(None, 1) == [2]
    assert one.grow(3, 1) == [4]

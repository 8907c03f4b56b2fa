"""The reference's free stores, by hand."""

from __future__ import annotations

import pytest

from tests.sim.reference_pool import BuddyStore, ContiguousStore, LifoStore, LowestStore, PoolExhaustedError


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

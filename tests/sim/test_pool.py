"""The block pool against simple models of each placement: what is given out, and that nothing is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from kvrm_sim import pager, pool
from kvrm_sim import state as st
from kvrm_sim.bittree import new_tree

pytestmark = pytest.mark.core


class Pool:
    """The arrays of one pool, and the kernels over them."""

    def __init__(self, placement: int, total: int, extent_blocks: int = 0) -> None:
        self.total = total
        self.params, self.scalars = np.zeros(1, st.PARAMS), np.zeros(1, st.SCALARS)
        self.params["placement"], self.params["pool_blocks"] = placement, total
        self.params["extent_blocks"] = extent_blocks
        self.blocks, self.tree = np.zeros(total + 2, st.BLOCKS), new_tree(total + 2)
        pool.open_pool(self.params[0], self.scalars[0], self.blocks, self.tree)

    @property
    def free(self) -> int:
        return int(self.scalars[0].free_blocks)

    def take(self, last: int = 0) -> int:
        return int(pool.take_block(self.params[0], self.scalars[0], self.blocks, self.tree, last))

    def release(self, block: int) -> None:
        pool.release_block(self.params[0], self.scalars[0], self.blocks, self.tree, block)

    def held_for(self, count: int) -> int:
        """Blocks that a reservation of `count` holds: a buddy is rounded up, all of it held."""
        return 1 << int(pool.order_of(count)) if self.params[0].placement == pool.BUDDY else count

    def take_run(self, count: int) -> int | None:
        """A best-fit extent or the buddy of `count` blocks; None when there is none."""
        if self.params[0].placement == pool.BUDDY:
            order = int(pool.order_of(count))
            if not pool.has_order(self.tree, order):
                return None
            return int(pool.take_buddy(self.scalars[0], self.blocks, self.tree, order))
        start = int(pool.best_extent(self.blocks, self.tree, count))
        if start == 0:
            return None
        pool.take_from_extent(self.scalars[0], self.blocks, self.tree, start, count)
        return start

    def release_run(self, start: int, count: int) -> None:
        pool.release_run(self.params[0], self.scalars[0], self.blocks, self.tree, start, count)

    def free_ids(self) -> set[int]:
        return {int(block) for block in np.flatnonzero(self.blocks["free"])}


def extents(ids: set[int]) -> list[tuple[int, int]]:
    """Maximal stretches of consecutive ids as (start, length)."""
    found: list[tuple[int, int]] = []
    for block in sorted(ids):
        if found and sum(found[-1]) == block:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((block, 1))
    return found


def listed(p: Pool, key: int) -> list[int]:
    """The list of free extents or buddies under a key, most recent first."""
    found, at = [], int(p.blocks[key].head)
    while at != 0:
        found.append(at)
        at = int(p.blocks[at].next)
    return found


def churn(data: hs.DataObject, p: Pool, check: Callable[[], None]) -> None:
    """Take and release runs of random length until bored; after each, the pool is conserved and `check` holds."""
    held: list[tuple[int, int]] = []
    for _ in range(data.draw(hs.integers(1, 25))):
        if held and data.draw(hs.booleans()):
            p.release_run(*held.pop(data.draw(hs.integers(0, len(held) - 1))))
        else:
            count = p.held_for(data.draw(hs.integers(1, p.total)))
            start = p.take_run(count)
            if start is not None:
                held.append((start, count))
        check()
    for run in held:
        p.release_run(*run)
    assert p.free == p.total
    check()


@given(data=hs.data())
def test_lifo_is_a_stack(data: hs.DataObject) -> None:
    total = data.draw(hs.integers(1, 40))
    p, stack, held = Pool(pool.LIFO, total), list(range(total, 0, -1)), []
    for releases in data.draw(hs.lists(hs.booleans(), max_size=80)):
        if releases and held:
            block = held.pop(data.draw(hs.integers(0, len(held) - 1)))
            p.release(block)
            stack.append(block)
        elif stack:
            expected = stack.pop()
            assert p.take() == expected
            held.append(expected)
        assert p.free + len(held) == total
        assert p.free_ids() == set(stack)


@given(data=hs.data())
def test_lowest_gives_the_lowest_free_id(data: hs.DataObject) -> None:
    total = data.draw(hs.integers(1, 70))
    p, free = Pool(pool.LOWEST, total), set(range(1, total + 1))
    for releases in data.draw(hs.lists(hs.booleans(), max_size=80)):
        held = sorted(set(range(1, total + 1)) - free)
        if releases and held:
            block = data.draw(hs.sampled_from(held))
            p.release(block)
            free.add(block)
        elif free:
            assert p.take() == min(free)
            free.discard(min(free))
        assert p.free == len(free)
        assert p.free_ids() == free


@given(data=hs.data())
def test_fifo_is_a_queue(data: hs.DataObject) -> None:
    total = data.draw(hs.integers(1, 40))
    p, queue, held = Pool(pool.FIFO, total), list(range(1, total + 1)), []
    for releases in data.draw(hs.lists(hs.booleans(), max_size=120)):
        if releases and held:
            block = held.pop(data.draw(hs.integers(0, len(held) - 1)))
            p.release(block)
            queue.append(block)
        elif queue:
            expected = queue.pop(0)
            assert p.take() == expected
            held.append(expected)
        assert p.free + len(held) == total
        assert p.free_ids() == set(queue)


class ExtentModel:
    """`extent` by its page: the free ids, and the wholly free extents, most recent first."""

    def __init__(self, total: int, size: int) -> None:
        self.extents = [range(first, min(first + size, total + 1)) for first in range(1, total + 1, size)]
        self.free = set(range(1, total + 1))
        self.whole = list(self.extents)

    def of(self, block: int) -> range:
        return next(extent for extent in self.extents if block in extent)

    def take(self, last: int) -> int:
        """The next block of a request whose last one is `last` (0: none)."""
        if last and last + 1 in self.free and last + 1 in self.of(last):
            block = last + 1
        elif self.whole:
            block = self.whole[0][0]
        else:
            block = min(self.free)
        self.free.discard(block)
        self.whole = [extent for extent in self.whole if block not in extent]
        return block

    def release(self, block: int) -> None:
        self.free.add(block)
        if self.free.issuperset(self.of(block)):
            self.whole.insert(0, self.of(block))


@given(data=hs.data())
def test_extents_are_filled_by_who_has_them_then_opened_whole_then_taken_lowest_first(data: hs.DataObject) -> None:
    total, size = data.draw(hs.integers(1, 50)), data.draw(hs.integers(1, 9))
    p, model, requests = Pool(pool.EXTENT, total, size), ExtentModel(total, size), list[list[int]]()
    for _ in range(data.draw(hs.integers(1, 60))):
        action = data.draw(hs.sampled_from(("new", "grow", "grow", "end")))
        if action == "new" or not requests:
            requests.append([])
        blocks = requests[data.draw(hs.integers(0, len(requests) - 1))]
        if action == "end":
            for block in reversed(blocks):
                p.release(block)
                model.release(block)
            requests.remove(blocks)
        else:
            for _ in range(min(data.draw(hs.integers(1, 12)), p.free)):
                last = blocks[-1] if blocks else 0
                blocks.append(p.take(last))
                assert blocks[-1] == model.take(last)
        assert p.free_ids() == model.free
        assert p.free == len(model.free)
    for block in [block for blocks in requests for block in blocks]:
        p.release(block)
        model.release(block)
    assert p.free == total
    assert p.take() == model.take(0), "the extent that became whole last"


@given(data=hs.data())
def test_contiguous_takes_best_fit_and_keeps_extents_maximal(data: hs.DataObject) -> None:
    p = Pool(pool.CONTIGUOUS, data.draw(hs.integers(1, 60)))

    def check() -> None:
        whole = extents(p.free_ids())
        by_size = itertools.groupby(sorted(whole, key=lambda e: e[1]), key=lambda e: e[1])
        expected = {size: sorted(start for start, _ in group) for size, group in by_size}
        found = {size: sorted(listed(p, size)) for size in range(1, p.total + 1) if listed(p, size)}
        assert found == expected, "the bins hold exactly the maximal free extents"
        assert p.free == sum(size for _, size in whole)
        for count in range(1, p.total + 1):
            fitting = [size for size in expected if size >= count]
            start = int(pool.best_extent(p.blocks, p.tree, count))
            assert (start in expected[min(fitting)]) if fitting else (start == 0)

    churn(data, p, check)
    assert extents(p.free_ids()) == [(1, p.total)]


@given(data=hs.data())
def test_buddies_are_aligned_and_never_lie_free_beside_each_other(data: hs.DataObject) -> None:
    p = Pool(pool.BUDDY, data.draw(hs.integers(1, 60)))

    def check() -> None:
        covered: list[int] = []
        free = {(block - 1, order) for order in range(7) for block in listed_order(p, order)}
        for index, order in free:
            assert index % (1 << order) == 0, "aligned to its own size"
            assert (index ^ (1 << order), order) not in free, "two free buddies would have been joined"
            covered += range(index + 1, index + 1 + (1 << order))
        assert len(covered) == len(set(covered)) == p.free
        assert set(covered) == p.free_ids()

    churn(data, p, check)
    assert sorted(order for order in range(7) for _ in listed_order(p, order)) == [
        bit for bit in range(7) if p.total >> bit & 1
    ], "drained, the pool is cut as at the start"


def listed_order(p: Pool, order: int) -> list[int]:
    return listed(p, order + 1) if order + 1 < len(p.blocks) else []


@pytest.mark.parametrize(
    ("placement", "expected"),
    [(pool.LIFO, [2, 1, 4]), (pool.FIFO, [4, 5, 6]), (pool.LOWEST, [1, 2, 4]), (pool.BUDDY, [4, 1, 2])],
    ids=["lifo", "fifo", "lowest", "buddy"],
)
def test_what_is_given_after_one_then_two_came_back(placement: int, expected: list[int]) -> None:
    p = Pool(placement, 8)
    assert [p.take() for _ in range(3)] == [1, 2, 3]
    p.release(1)
    p.release(2)
    # Buddies 1 and 2 have joined to a pair, so that 4 is the only single block; then the pair is cut, lower half first.
    assert [p.take() for _ in range(3)] == expected


def test_an_extent_is_the_most_recent_of_its_size_when_it_was_made_last() -> None:
    p = Pool(pool.CONTIGUOUS, 12)
    runs = [p.take_run(2) for _ in range(6)]
    assert runs == [1, 3, 5, 7, 9, 11]
    for start in (9, 1, 5):
        p.release_run(start, 2)
    assert listed(p, 2) == [5, 1, 9]
    assert p.take_run(2) == 5
    p.release_run(3, 2)  # joins 1
    assert (listed(p, 4), listed(p, 2)) == ([1], [9])
    assert p.take_run(1) == 9, "the smallest that fits, not the longest"
    assert p.take_run(5) is None


def test_a_buddy_pool_of_any_size_is_cut_from_zero_upwards() -> None:
    p = Pool(pool.BUDDY, 13)
    assert [listed_order(p, order) for order in range(4)] == [[13], [], [9], [1]]
    assert p.take_run(3) == 9, "3 blocks are rounded up to the order of 4"
    assert p.take_run(3) == 1, "the lower half of the largest"
    assert listed_order(p, 2) == [5]
    assert p.free == 13 - 8


def test_an_extent_is_a_preference_of_its_first_owner_and_no_promise() -> None:
    p = Pool(pool.EXTENT, 10, extent_blocks=4)
    assert [p.take(), p.take(1)] == [1, 2]
    assert [p.take(), p.take(5)] == [5, 6], "another request opens the next extent"
    assert p.take() == 9, "the last extent is shorter, and whole all the same"
    assert p.take() == 3, "none is whole: the lowest free id, in the extent of the first"
    assert p.take(2) == 4, "the first request finds its next block taken"
    p.release(5)
    p.release(6)
    p.release(9)
    assert p.take() == 9, "the extent that became whole last"
    assert p.take(8) == 5, "8 ends its extent, whatever is free behind it"


@given(data=hs.data())
def test_a_sorted_release_gives_the_blocks_out_again_in_ascending_order(data: hs.DataObject) -> None:
    placement = data.draw(hs.sampled_from((pool.LIFO, pool.FIFO)))
    total = data.draw(hs.integers(1, 40))
    held = data.draw(hs.permutations(range(1, total + 1)))[: data.draw(hs.integers(1, total))]
    params, scalars, rows = np.zeros(1, st.PARAMS), np.zeros(1, st.SCALARS), np.zeros(1, st.ROWS)
    params["reserve"], params["placement"], params["pool_blocks"] = pager.PAGED, placement, total
    params["release_order"] = pager.RELEASE_SORTED
    blocks, tree, table = np.zeros(total + 2, st.BLOCKS), new_tree(total + 2), np.array([held], np.int64)
    scalars["reserved_blocks"] = rows["blocks"] = len(held)
    # All blocks but the held ones are free, and lie where the placement would give them out first.
    p, s = params[0], scalars[0]
    others = [block for block in range(1, total + 1) if block not in held]
    blocks["free"][others] = 1
    blocks["stack"][: len(others)] = others
    s.free_blocks = len(others)
    arrays = SimpleNamespace(rows=rows, blocks=blocks, tree=tree, table=table)
    pager.release_row(p, s, arrays, 0, False)
    assert (s.free_blocks, s.reserved_blocks, s.blocks_freed) == (total, 0, len(held))
    given_out = [int(pool.take_block(p, s, blocks, tree, 0)) for _ in range(total)]
    if placement == pool.LIFO:
        assert given_out == sorted(held) + others[::-1]
    else:
        assert given_out == others + sorted(held)


def test_the_order_of_a_count() -> None:
    counts: dict[int, int] = {1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 1024: 10, 1025: 11}
    assert {count: int(pool.order_of(count)) for count in counts} == counts


def test_a_buddy_run_takes_and_gives_back_a_power_of_two() -> None:
    p = Pool(pool.BUDDY, 16)
    start = p.take_run(5)
    assert start is not None
    assert p.free == 8
    p.release_run(start, 8)
    assert p.free == 16

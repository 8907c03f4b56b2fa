"""The tree of bits against a Python set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from kvrm_sim.bittree import highest_bit, lowest_bit, new_tree, tree_add, tree_discard, tree_greatest, tree_least

pytestmark = pytest.mark.core

#: Around the borders of words (32) and levels (32 and 1024 words below one).
SIZES = (1, 2, 31, 32, 33, 1023, 1024, 1025, 32_768, 32_769, 100_000)


@given(data=hs.data())
def test_the_tree_holds_what_a_set_holds(data: hs.DataObject) -> None:
    size = data.draw(hs.sampled_from(SIZES))
    members = hs.integers(0, size - 1) | hs.integers(max(0, size - 3), size - 1)
    tree, model = new_tree(size), set[int]()
    for member in data.draw(hs.lists(members, max_size=60)):
        if member in model:
            tree_discard(tree, member)
            model.remove(member)
        else:
            tree_add(tree, member)
            model.add(member)
        start = data.draw(members)
        assert tree_least(tree, start) == min((m for m in model if m >= start), default=-1)
        assert tree_greatest(tree) == max(model, default=-1)
    for member in sorted(model):
        assert tree_least(tree, member) == member
        tree_discard(tree, member)
    assert not tree[1 + 8 :].any(), "an empty set has no bit left at any level"


@given(member=hs.integers(0, 1024))
def test_adding_a_member_again_changes_nothing(member: int) -> None:
    tree = new_tree(1025)
    tree_add(tree, member)
    before = tree.copy()
    tree_add(tree, member)
    assert (tree == before).all()


@pytest.mark.parametrize("size", SIZES)
def test_the_last_member_is_found_from_the_first(size: int) -> None:
    tree = new_tree(size)
    assert tree_least(tree, 0) == tree_greatest(tree) == -1
    tree_add(tree, size - 1)
    assert tree_least(tree, 0) == tree_greatest(tree) == size - 1
    assert tree_least(tree, size) == -1


def test_every_single_bit_is_found() -> None:
    for bit in range(52):
        assert lowest_bit(1 << bit) == highest_bit(1 << bit) == bit
        assert highest_bit((2 << bit) - 1) == bit
    assert lowest_bit(0b1011000) == 3


def test_members_may_be_block_ids_of_a_table() -> None:
    """Block tables are int32: bit 31 of a word must not become a sign."""
    tree = new_tree(100)
    ids = np.arange(1, 100, dtype=np.int32)
    for member in ids:
        tree_add(tree, member)
    assert (tree >= 0).all()
    for member in ids:
        assert tree_least(tree, 0) == member
        tree_discard(tree, member)
    assert tree_least(tree, 0) == -1

"""A set of small integers as a tree of 32-bit words: add, discard, least member >= i, greatest member; O(levels) each.

Layout of the int64 array ``tree``: [0] number of levels, [1 + l] offset of level l (0 = leaves), then the words. A
level's bit says that the word below it is not empty. 32 bits a word keep every value a positive int64, in compiled
and interpreted code alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvrm_sim.compiled import kernel
from kvrm_sim.state import Ints

_HEADER = 9  # one count and up to eight levels: 32^8 members


def new_tree(size: int) -> NDArray[np.int64]:
    """An empty set over 0 … size - 1."""
    offsets, at, words = [], _HEADER, size
    while True:
        words = (words + 31) // 32
        offsets.append(at)
        at += words
        if words == 1:
            break
    tree = np.zeros(at, np.int64)
    tree[0] = len(offsets)
    tree[1 : 1 + len(offsets)] = offsets
    return tree


@kernel
def tree_clear(tree: Ints) -> None:
    """Take every member out."""
    for at in range(_HEADER, len(tree)):
        tree[at] = 0


@kernel
def lowest_bit(word: int) -> int:
    """Index of the lowest set bit of a positive word (through the exponent of a float64, exact for powers of two)."""
    return int(np.float64(word & -word).view(np.int64) >> 52) - 1023


@kernel
def highest_bit(word: int) -> int:
    """Index of the highest set bit of a positive word below 2^52."""
    return int(np.float64(word).view(np.int64) >> 52) - 1023


@kernel
def tree_add(tree: Ints, member: int) -> None:
    """Add a member."""
    for level in range(tree[0]):
        at = tree[1 + level] + (member >> 5)
        before = tree[at]
        tree[at] = before | (np.int64(1) << (member & 31))
        if before != 0:
            return
        member >>= 5


@kernel
def tree_discard(tree: Ints, member: int) -> None:
    """Remove a member that is in the set."""
    for level in range(tree[0]):
        at = tree[1 + level] + (member >> 5)
        tree[at] &= ~(np.int64(1) << (member & 31))
        if tree[at] != 0:
            return
        member >>= 5


@kernel
def tree_least(tree: Ints, start: int) -> int:
    """The least member >= start, or -1."""
    levels = tree[0]
    level = 0
    position = start
    while level < levels:
        bound = tree[2 + level] if level + 1 < levels else len(tree)
        at = tree[1 + level] + (position >> 5)
        if at >= bound:
            return -1
        rest = tree[at] >> (position & 31) << (position & 31)
        if rest != 0:
            position = ((position >> 5) << 5) + lowest_bit(rest)
            while level > 0:
                level -= 1
                position = (position << 5) + lowest_bit(tree[tree[1 + level] + position])
            return position
        position = (position >> 5) + 1
        level += 1
    return -1


@kernel
def tree_greatest(tree: Ints) -> int:
    """The greatest member, or -1."""
    level = tree[0] - 1
    position = 0
    if tree[tree[1 + level]] == 0:
        return -1
    while level >= 0:
        position = (position << 5) + highest_bit(tree[tree[1 + level] + position])
        level -= 1
    return position

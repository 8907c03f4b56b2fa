"""Caches over independent block accesses: LRU, and the bound of a cache that knows the future."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as hs

from kvrm_traces.reuse import _touch, belady_hits, next_uses

ACCESSES = hs.lists(hs.integers(0, 5), max_size=12)


def bound(ids: list[int], capacity: int) -> int:
    return belady_hits(ids, next_uses(np.array(ids, np.int64)).tolist(), capacity)


def best(ids: list[int], capacity: int) -> int:
    """The most hits of any cache, by trying every way to stay within its size."""

    @cache
    def hits(at: int, kept: frozenset[int]) -> int:
        if at == len(ids):
            return 0
        found = int(ids[at] in kept)
        held = kept | {ids[at]}
        choices = [held] if len(held) <= capacity else [held - {dropped} for dropped in held]
        return found + max(hits(at + 1, frozenset(choice)) for choice in choices)

    return hits(0, frozenset())


@given(ids=ACCESSES, capacity=hs.integers(0, 4))
def test_nothing_beats_the_bound_and_it_can_be_reached(ids: list[int], capacity: int) -> None:
    assert bound(ids, capacity) == best(ids, capacity)


@given(ids=hs.lists(hs.integers(0, 30), max_size=300), capacity=hs.integers(0, 20))
def test_lru_never_finds_more_than_the_bound(ids: list[int], capacity: int) -> None:
    assert _touch(OrderedDict(), capacity, ids) <= bound(ids, capacity)


def test_next_uses_by_hand() -> None:
    assert next_uses(np.array([7, 8, 7, 7, 9, 8])).tolist() == [2, 5, 3, 6, 6, 6]
    assert next_uses(np.zeros(0, np.int64)).tolist() == []

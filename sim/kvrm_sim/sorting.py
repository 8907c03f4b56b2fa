"""Sorting ids in place, where the core needs them in order."""

from __future__ import annotations

from kvrm_sim.compiled import kernel
from kvrm_sim.state import Ints


@kernel
def sort_ids(ids: Ints, first: int, end: int, descending: bool) -> None:
    """Sort entries [first, end) in place (Shell's sort: they are mostly ascending runs already)."""
    gap = 1
    while gap * 3 < end - first:
        gap = gap * 3 + 1
    while gap > 0:
        for at in range(first + gap, end):
            block = ids[at]
            to = at
            while to - gap >= first and (ids[to - gap] < block) == descending:
                ids[to] = ids[to - gap]
                to -= gap
            ids[to] = block
        gap //= 3

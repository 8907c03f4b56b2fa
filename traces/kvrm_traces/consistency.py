"""Whether prefix hashes are what they claim: one id, one prefix.

An id stands for a whole prefix, so what is before it is always the same, and so is how many of its block's tokens are
filled. Lists of a wrong length never get here: the row is rejected on reading.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

#: Before the first block of a prompt.
_NOTHING = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class HashConsistency:
    """``rows_without``: requests without hashes. ``other_prefix``: touches of an id behind another id than the first
    time. ``other_fill``: touches of an id whose block holds another number of tokens than the first time.
    """

    rows: int
    rows_without: int
    touched_blocks: int
    other_prefix: int
    other_fill: int


class HashChecker:
    """Fed the ids of prompts. Memory grows with the different ids."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._before = np.empty(0, np.int64)
        self._fill = np.empty(0, np.int64)
        self._rows = self._without = self._touched = self._other_prefix = self._other_fill = 0

    def see(self, ids: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> None:
        """`ids` of all rows, `counts` of ids a row (0: without), `sizes` in tokens an id."""
        self._rows += counts.size
        self._without += int(np.count_nonzero(counts == 0))
        if ids.size == 0:
            return
        self._touched += ids.size
        different, first, which = np.unique(ids, return_index=True, return_inverse=True)
        known = len(self._places)
        place = np.array([self._places.setdefault(one, len(self._places)) for one in different.tolist()], np.int64)
        self._grow(len(self._places))
        own = place[which]
        before = np.empty(ids.size, np.int64)
        before[1:] = own[:-1]
        starts = np.cumsum(counts) - counts
        before[starts[counts > 0]] = _NOTHING
        fresh = place >= known
        self._before[place[fresh]] = before[first[fresh]]
        self._fill[place[fresh]] = sizes[first[fresh]]
        self._other_prefix += int(np.count_nonzero(self._before[own] != before))
        self._other_fill += int(np.count_nonzero(self._fill[own] != sizes))

    def found(self) -> HashConsistency:
        """What was found in all that was seen."""
        return HashConsistency(
            rows=self._rows,
            rows_without=self._without,
            touched_blocks=self._touched,
            other_prefix=self._other_prefix,
            other_fill=self._other_fill,
        )

    def _grow(self, size: int) -> None:
        if size > self._before.size:
            room = max(size, 2 * self._before.size) - self._before.size
            self._before = np.concatenate((self._before, np.empty(room, np.int64)))
            self._fill = np.concatenate((self._fill, np.empty(room, np.int64)))

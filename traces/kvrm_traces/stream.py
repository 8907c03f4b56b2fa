"""A sequence of numbers that is made in blocks and taken in pieces of any size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


class Stream:
    """Blocks of one size in, pieces of any size out."""

    def __init__(self, blocks: Iterator[npt.NDArray[np.int64]]) -> None:
        self._blocks = blocks
        self._left = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> npt.NDArray[np.int64]:
        """The next `count` numbers."""
        parts, missing = [], count
        while missing > self._left.size:
            parts.append(self._left)
            missing -= self._left.size
            self._left = next(self._blocks)
        parts.append(self._left[:missing])
        self._left = self._left[missing:]
        return np.concatenate(parts)

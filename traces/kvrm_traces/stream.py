"""Random streams of a seed, and a sequence of numbers that is made in blocks and taken in pieces of any size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


def random_stream(seed: int, *key: int) -> np.random.Generator:
    """The random numbers of one quantity: streams of one seed with different keys are independent."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


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

"""The distribution of a column of counts, exact, in memory that grows with the different counts and not with the rows.

The name is of its main use: tokens a request. Turns a session and milliseconds between turns are counted the same way.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

#: Counts below it are tallied in an array, which costs a tenth of sorting them; those above are sorted.
_DENSE = 1 << 20

#: Parts of an octave in a histogram.
_PER_OCTAVE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenStats:
    """Tokens a request. Quantiles are of the exact order statistics, interpolated linearly between neighbours."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int
    total: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histogram:
    """``counts[i]`` values are in [``edges[i]``, ``edges[i + 1]``); edges grow geometrically, perhaps behind a 0."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class TokenCounter:
    """Fed counts (int64, 0 or more) piece by piece, in any order."""

    def __init__(self) -> None:
        self._dense = np.zeros(1, np.int64)
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def see(self, tokens: npt.NDArray[np.int64]) -> None:
        """Take the next piece into account."""
        if tokens.size and int(tokens.max()) >= _DENSE:
            self._see_large(tokens[tokens >= _DENSE])
            tokens = tokens[tokens < _DENSE]
        tally = np.bincount(tokens, minlength=self._dense.size)
        tally[: self._dense.size] += self._dense
        self._dense = tally

    def _see_large(self, tokens: npt.NDArray[np.int64]) -> None:
        values, counts = np.unique(tokens, return_counts=True)
        merged, at = np.unique(np.concatenate((self._values, values)), return_inverse=True)
        total = np.zeros(merged.size, np.int64)
        np.add.at(total, at, np.concatenate((self._counts, counts)))
        self._values, self._counts = merged, total

    def tally(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(different values, ascending; how often each was seen)."""
        small = np.flatnonzero(self._dense)
        return np.concatenate((small, self._values)), np.concatenate((self._dense[small], self._counts))

    def stats(self) -> TokenStats:
        """Of all that was seen, which must be one count or more."""
        values, counts = self.tally()
        total = int(values @ counts)
        upto = np.cumsum(counts)
        return TokenStats(
            mean=total / int(upto[-1]),
            p50=_quantile(values, upto, 0.50),
            p90=_quantile(values, upto, 0.90),
            p99=_quantile(values, upto, 0.99),
            max=int(values[-1]),
            total=total,
        )

    def histogram(self) -> Histogram:
        """Four parts an octave; zeros have a part of their own."""
        return _log_histogram(*self.tally())


def _log_histogram(values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Histogram:
    positive = values > 0
    if not positive.any():
        return Histogram(edges=(0.0, 1.0), counts=(int(counts.sum()),))
    part = np.floor(np.log2(values[positive]) * _PER_OCTAVE + 1e-9).astype(np.int64)
    first = int(part.min())
    filled = np.bincount(part - first, weights=counts[positive]).astype(np.int64)
    edges = 2.0 ** (np.arange(first, first + filled.size + 1) / _PER_OCTAVE)
    zeros = int(counts[~positive].sum())
    return Histogram(
        edges=tuple([0.0] * (zeros > 0) + edges.tolist()), counts=tuple([zeros] * (zeros > 0) + filled.tolist())
    )


def _quantile(values: npt.NDArray[np.int64], upto: npt.NDArray[np.int64], q: float) -> float:
    at = q * (int(upto[-1]) - 1)
    low, high = (int(values[np.searchsorted(upto, rank, side="right")]) for rank in (int(at), math.ceil(at)))
    return low + (high - low) * (at - int(at))

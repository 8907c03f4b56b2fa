"""The distribution of a column of token counts, exact, in memory that grows with the different counts and not with
the rows.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenStats:
    """Tokens a request. Quantiles are of the exact order statistics, interpolated linearly between neighbours."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int
    total: int


class TokenCounter:
    """Fed token counts (int64) piece by piece, in any order."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def see(self, tokens: npt.NDArray[np.int64]) -> None:
        """Take the next piece into account."""
        values, counts = np.unique(tokens, return_counts=True)
        merged, at = np.unique(np.concatenate((self._values, values)), return_inverse=True)
        total = np.zeros(merged.size, np.int64)
        np.add.at(total, at, np.concatenate((self._counts, counts)))
        self._values, self._counts = merged, total

    def stats(self) -> TokenStats:
        """Of all that was seen, which must be one count or more."""
        total = int(self._values @ self._counts)
        return TokenStats(
            mean=total / int(self._counts.sum()),
            p50=self._quantile(0.50),
            p90=self._quantile(0.90),
            p99=self._quantile(0.99),
            max=int(self._values[-1]),
            total=total,
        )

    def _quantile(self, q: float) -> float:
        upto = np.cumsum(self._counts)
        at = q * (int(upto[-1]) - 1)
        low, high = (int(self._values[np.searchsorted(upto, rank, side="right")]) for rank in (int(at), math.ceil(at)))
        return low + (high - low) * (at - int(at))

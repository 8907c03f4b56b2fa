"""Times summarised from a histogram: mean, percentiles by nearest rank, and how far a percentile can be trusted.

A bucket is at most 0.1% wide (meters.py) and stands for its middle, so a percentile is within 0.05% of the exact one,
never below the least nor above the greatest value. Sum and extremes are exact. n = 0 gives None everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_sim.meters import BUCKETS, bucket_ns
from kvrm_sim.state import Record

#: Percentiles of every metric, by name, as (part of a whole, whole): exact in integers.
PERCENTILES = {"p50": (50, 100), "p90": (90, 100), "p99": (99, 100)}
#: Standard errors either side of a 95% interval.
_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Distribution:
    """One metric's times: ``counts`` int64 [BUCKETS], and ``n``, ``least_ns``, ``greatest_ns``, ``total_ns``, exact."""

    counts: NDArray[np.int64]
    n: int
    least_ns: int
    greatest_ns: int
    total_ns: float

    @classmethod
    def of(cls, tally: Record, counts: NDArray[np.int64]) -> Distribution:
        """From one ``TALLY`` record and its row of the histograms."""
        return cls(counts, int(tally.n), int(tally.least), int(tally.greatest), float(tally.total))

    def at_rank_ns(self, rank: int) -> float:
        """The rank-th smallest value, 1-based, as the middle of its bucket."""
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        if bucket >= BUCKETS - 1:  # the last bucket has no upper edge
            return float(self.greatest_ns)
        return min(max(bucket_ns(bucket), float(self.least_ns)), float(self.greatest_ns))

    def percentile_ns(self, name: str) -> float | None:
        """``p50``, ``p90`` or ``p99`` by nearest rank: the value of rank ceil(q n)."""
        if self.n == 0:
            return None
        part, whole = PERCENTILES[name]
        return self.at_rank_ns(-(-part * self.n // whole))

    def interval_ns(self, name: str) -> tuple[float, float] | None:
        """95% interval of a percentile from the ranks around it (binomial, normal approximation).

        None when the sample is too small to have values on both sides of it. Assumes independent values: requests
        that queue behind each other are not, so the true spread between runs is wider.
        """
        part, whole = PERCENTILES[name]
        q = part / whole
        margin = _Z95 * math.sqrt(self.n * q * (1 - q))
        low, high = math.floor(self.n * q - margin), math.ceil(self.n * q + margin) + 1
        if low < 1 or high > self.n:
            return None
        return self.at_rank_ns(low), self.at_rank_ns(high)

    def unsupported(self) -> list[str]:
        """The percentiles for which n is too small: below 1 / (1 - q) values nothing lies beyond them."""
        few = [name for name, (part, whole) in PERCENTILES.items() if self.n * (whole - part) < whole]
        return few if self.n > 0 else []

    def to_dict(self) -> dict[str, Any]:
        """``{n, mean, p50, p90, p99, max, p99_interval, flags}`` in seconds; None where n = 0."""
        if self.n == 0:
            return {"n": 0, "mean": None, **dict.fromkeys(PERCENTILES), "max": None, "p99_interval": None, "flags": []}
        interval = self.interval_ns("p99")
        return {
            "n": self.n,
            "mean": self.total_ns / self.n / 1e9,
            **{name: seconds(self.percentile_ns(name)) for name in PERCENTILES},
            "max": self.greatest_ns / 1e9,
            "p99_interval": None if interval is None else [interval[0] / 1e9, interval[1] / 1e9],
            "flags": [f"{name}: n = {self.n} is too small" for name in self.unsupported()],
        }


def seconds(time_ns: float | None) -> float | None:
    """Nanoseconds as seconds; None stays None."""
    return None if time_ns is None else time_ns / 1e9


def count_above(counts: NDArray[np.int64], threshold_ns: float) -> int:
    """How many values' buckets have their middle above a threshold."""
    filled = np.flatnonzero(counts)
    return int(sum(counts[bucket] for bucket in filled if bucket_ns(int(bucket)) > threshold_ns))

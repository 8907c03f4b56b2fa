"""A run's records as series over time, on a common grid of bins, for figures.

Percentiles of parts cannot be combined, so a bin shows the median or the worst of what falls into it, and says which;
of memory it shows the mean. A bin without any step has no latency, and holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvrm_analysis.runs import RunLike

Floats = NDArray[np.float64]

#: As many points as a figure's width can show apart.
BINS = 120
#: A burst: a bin with at least this many times the mean number of arrivals, and more than chance would give.
BURST_FACTOR = 2.0
BURST_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Grid:
    """Bins of ``width_s`` seconds from 0 to ``end_s``."""

    width_s: float
    count: int

    @property
    def end_s(self) -> float:
        """End of the last bin."""
        return self.count * self.width_s

    @property
    def edges_s(self) -> Floats:
        """float64 [count + 1]."""
        return np.arange(self.count + 1, dtype=np.float64) * self.width_s

    @property
    def middles_s(self) -> Floats:
        """float64 [count]."""
        return self.edges_s[:-1] + self.width_s / 2

    def bin_of(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which bin each time falls into; times outside are put into the first or the last."""
        return np.clip((times_ns / 1e9 / self.width_s).astype(np.int64), 0, self.count - 1)


def grid_of(end_s: float, bins: int = BINS) -> Grid:
    """A grid over [0, end]: bins of 1, 2 or 5 times a power of ten seconds, at most ``bins`` of them."""
    least = end_s / bins
    power = 10.0 ** np.floor(np.log10(least))
    width = next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))
    return Grid(float(width), max(1, int(np.ceil(end_s / width))))


def numbers(table: pa.Table, name: str) -> Floats:
    """A column as float64; NaN where absent."""
    return np.asarray(table[name].to_numpy(), np.float64)


def integers(table: pa.Table, name: str) -> NDArray[np.int64]:
    """A column without absent values, as int64."""
    return np.asarray(table[name].to_numpy(), np.int64)


def typical_itl_s(steps: pa.Table, grid: Grid) -> Floats:
    """The median, over the windows of each bin and weighted by their gaps, of their median inter-token gap, seconds.

    Weighted, since a window of a few long steps holds far fewer tokens than one of many short ones.
    """
    return _weighted_median(grid, integers(steps, "end_ns"), numbers(steps, "itl_p50_ns") / 1e9, numbers(steps, "gaps"))


def worst_itl_s(steps: pa.Table, grid: Grid) -> Floats:
    """The largest p99 inter-token gap of a window in each bin, seconds; NaN where no token followed another."""
    return _largest(grid, integers(steps, "end_ns"), numbers(steps, "itl_p99_ns") / 1e9)


def typical_ttft_s(requests: pa.Table, grid: Grid) -> Floats:
    """The median TTFT of the requests that arrived in each bin, seconds; NaN where none got a token."""
    arrival = integers(requests, "arrival_ns")
    return _median(grid, arrival, (numbers(requests, "first_token_ns") - arrival) / 1e9)


def worst_ttft_s(requests: pa.Table, grid: Grid) -> Floats:
    """The longest TTFT among the requests that arrived in each bin, seconds; NaN where none got a token."""
    arrival = integers(requests, "arrival_ns")
    return _largest(grid, arrival, (numbers(requests, "first_token_ns") - arrival) / 1e9)


def mean_per_bin(steps: pa.Table, grid: Grid, column: str) -> Floats:
    """Mean of a column (memory, waiting requests) over the records of each bin; 0 where nothing ran.

    Of a cluster the sum of each replica's mean.
    """
    at = grid.bin_of(integers(steps, "end_ns"))
    if "replica" in steps.column_names:
        at = at + grid.count * integers(steps, "replica")
    cells = grid.count * (int(at.max(initial=0)) // grid.count + 1)
    total = np.bincount(at, numbers(steps, column), minlength=cells)
    records = np.bincount(at, minlength=cells)
    means = np.divide(total, records, out=np.zeros(cells), where=records > 0)
    return np.asarray(means.reshape(-1, grid.count).sum(axis=0), np.float64)


def sum_per_bin(steps: pa.Table, grid: Grid, column: str) -> Floats:
    """Sum of a column (tokens, steps, nanoseconds of a part) over the records of each bin, of all replicas."""
    at = grid.bin_of(integers(steps, "end_ns"))
    return np.asarray(np.bincount(at, numbers(steps, column), minlength=grid.count), np.float64)


def arrivals_per_bin(run: RunLike, grid: Grid) -> Floats:
    """Requests that arrived in each bin: from requests.parquet, else from what was admitted or joined the queue."""
    if run.requests is not None:
        return np.bincount(grid.bin_of(integers(run.requests, "arrival_ns")), minlength=grid.count).astype(np.float64)
    joined = np.diff(numbers(run.steps, "waiting"), prepend=0.0)
    arrived = numbers(run.steps, "admitted") + joined - numbers(run.steps, "preempted")
    return np.bincount(grid.bin_of(integers(run.steps, "end_ns")), arrived, minlength=grid.count).astype(np.float64)


def bursts(arrivals: Floats, span_bins: int) -> list[tuple[int, int]]:
    """Stretches [first, last) of bins with far more arrivals than the mean over the ``span_bins`` bins of the trace."""
    mean = float(arrivals[:span_bins].mean()) if span_bins else 0.0
    above = arrivals >= max(BURST_FACTOR * mean, mean + BURST_SIGMAS * np.sqrt(mean), 1.0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], above, [False]]).astype(np.int8)))
    return [(int(first), int(last)) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _weighted_median(grid: Grid, times_ns: NDArray[np.int64], values: Floats, weights: Floats) -> Floats:
    known = ~np.isnan(values)
    at, values, weights = grid.bin_of(times_ns)[known], values[known], weights[known]
    order = np.lexsort((values, at))
    at, values, below = at[order], values[order], np.cumsum(weights[order])
    result = np.full(grid.count, np.nan)
    first, last = (np.searchsorted(at, np.arange(grid.count), side=side) for side in ("left", "right"))
    for index in np.flatnonzero(last > first).tolist():
        before = below[first[index] - 1] if first[index] else 0.0
        half = before + (below[last[index] - 1] - before) / 2
        result[index] = values[int(np.searchsorted(below, half))]
    return result


def _median(grid: Grid, times_ns: NDArray[np.int64], values: Floats) -> Floats:
    known = ~np.isnan(values)
    at, values = grid.bin_of(times_ns)[known], values[known]
    order = np.lexsort((values, at))
    first, last = (np.searchsorted(at[order], np.arange(grid.count), side=side) for side in ("left", "right"))
    result = np.full(grid.count, np.nan)
    filled = last > first
    result[filled] = values[order][((first + last - 1) // 2)[filled]]
    return result


def _largest(grid: Grid, times_ns: NDArray[np.int64], values: Floats) -> Floats:
    worst = np.full(grid.count, -np.inf)
    known = ~np.isnan(values)
    np.maximum.at(worst, grid.bin_of(times_ns)[known], values[known])
    return np.where(np.isinf(worst), np.nan, worst)

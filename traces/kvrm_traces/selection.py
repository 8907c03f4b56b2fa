"""Which rows of a trace are replayed, and how fast its clock runs.

The order is fixed, whatever the order of the calls: window, idle cap, sample, limit, replicas, then speed or rate. The
window is in the trace's own seconds; the cap shortens silences of the trace, not those that thinning it makes; the
limit counts rows that are sampled; the replicas share what is left; and only then does the clock run faster or slower.
A window, a cap or a limit therefore means the same at any speed, and a rate is that of the rows that are left.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

import numpy as np

from kvrm_traces.errors import TraceError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Each row is kept with probability ``share``: a draw that depends on the seed and the row's place alone."""

    share: float
    seed: int

    def generator(self, first_row: int) -> np.random.Generator:
        """Whose next draws from [0, 1) are those of this row and the ones behind it."""
        bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(1,)))
        bits.advance(first_row)
        return np.random.Generator(bits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What is kept of a trace. ``stretch`` multiplies every gap between arrivals (speed-up f is stretch 1/f)."""

    window_s: tuple[float, float | None] | None = None
    first_row: int = 0
    window_rows: int | None = None
    idle_cap_ns: int | None = None
    sample: Sample | None = None
    limit: int | None = None
    replicas: int = 1
    index: int = 0
    speedup: float = 1.0
    time_stretch: float = 1.0
    #: The mean rate that the clock is set to, instead of either factor.
    rate_per_s: float | None = None

    @property
    def whole(self) -> bool:
        """Nothing is left out and the clock is the trace's own."""
        return self == Selection()

    def row_range(self, rows: int) -> tuple[int, int]:
        """Rows [start, stop) of the store's `rows` that have to be read: of the window, and of the limit when nothing
        is sampled before it.
        """
        stop = rows if self.window_rows is None else self.first_row + self.window_rows
        counted = self.limit is not None and self.sample is None
        return self.first_row, min(stop, self.first_row + (self.limit or 0)) if counted else stop

    def count(self, rows: int) -> int:
        """How many of the store's `rows` are kept."""
        start, stop = self.row_range(rows)
        left = stop - start
        if self.sample is not None:
            left = _sampled_rows(self.sample, start, stop)
            left = left if self.limit is None else min(left, self.limit)
        return max(0, -((self.index - left) // self.replicas))

    def words(self) -> str:
        """What was done, in the order in which it is applied."""
        parts = []
        if self.window_s is not None:
            start_s, end_s = self.window_s
            parts.append(f"window {exactly(start_s)}:{'' if end_s is None else exactly(end_s)} s")
        if self.idle_cap_ns is not None:
            parts.append(f"idle cap {exactly(self.idle_cap_ns / 1e9)} s")
        if self.sample is not None:
            parts.append(f"sample {exactly(self.sample.share)} seed {self.sample.seed}")
        if self.limit is not None:
            parts.append(f"limit {self.limit}")
        if self.replicas > 1:
            parts.append(f"replica {self.index} of {self.replicas}")
        if self.speedup != 1.0:
            parts.append(f"speedup {exactly(self.speedup)}")
        if self.time_stretch != 1.0:
            parts.append(f"time_stretch {exactly(self.time_stretch)}")
        if self.rate_per_s is not None:
            parts.append(f"rate {exactly(self.rate_per_s)}")
        return ", ".join(parts)


def exactly(value: float) -> str:
    """As short as it can be while the words still say exactly what was done: a run is made again from them."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


@lru_cache(maxsize=64)
def _sampled_rows(sample: Sample, start: int, stop: int) -> int:
    """How many of rows [start, stop) are kept."""
    rng, count = sample.generator(start), 0
    for at in range(start, stop, 1 << 20):
        count += int(np.count_nonzero(rng.random(min(1 << 20, stop - at)) < sample.share))
    return count


def checked_factor(name: str, factor: float) -> float:
    """The factor, finite and above 0; otherwise a TraceError that says what it does."""
    if not (math.isfinite(factor) and factor > 0):
        does = "divides" if name == "speedup" else "multiplies"
        raise TraceError(f"{name} {factor!r}: must be a finite number above 0 (it {does} every gap between arrivals)")
    return factor


def checked_count(name: str, count: int, least: int) -> int:
    """The count, at least `least`; otherwise a TraceError."""
    if count < least:
        raise TraceError(f"{name} {count}: must be a whole number, {least} or more")
    return count

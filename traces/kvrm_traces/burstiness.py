"""How bursty arrivals are: coefficient of variation and spread of the gaps, Fano factors of the counts, the rate over
time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvrm_traces.tokens import Histogram

#: Windows of the Fano factors, in seconds.
FANO_WINDOWS_S = (1, 10, 60)

#: Equal parts of the span in the rate profile, and how many of them a bar of the text joins.
PROFILE_PARTS = 240
PARTS_A_BAR = 10

#: Gaps are tallied in four equal parts of each octave, which the first bits of a float tell (its logarithm costs more
#: than all the rest of an inspection).
_DROPPED_BITS = 50
_FIRST_PART = 1023 << 2  # of a gap of 1 ns


class Gaps:
    """Fed sorted arrivals (int64 ns, from 0) piece by piece."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._count = 0
        self._sum_s = 0.0
        self._square_s2 = 0.0
        self._zero = 0
        self._tally = np.zeros(64 * 4, np.int64)
        #: The longest gap, and the arrival that begins it.
        self.longest_ns = 0
        self.longest_from_ns = 0

    def see(self, arrival_ns: npt.NDArray[np.int64]) -> None:
        """Take the next piece into account."""
        before = int(arrival_ns[0]) if self._last_ns is None else self._last_ns
        gaps_ns = np.diff(arrival_ns, prepend=before)
        if self._last_ns is None:
            gaps_ns = gaps_ns[1:]  # the first arrival ends no gap
        self._last_ns = int(arrival_ns[-1])
        if gaps_ns.size == 0:
            return
        gaps_s = gaps_ns / 1e9
        self._count += gaps_s.size
        self._sum_s += float(gaps_s.sum())
        self._square_s2 += float(gaps_s @ gaps_s)
        at = int(np.argmax(gaps_ns))
        if int(gaps_ns[at]) > self.longest_ns:
            self.longest_ns = int(gaps_ns[at])
            self.longest_from_ns = int(arrival_ns[at - gaps_ns.size]) - self.longest_ns
        some = gaps_ns[gaps_ns > 0]
        self._zero += gaps_ns.size - some.size
        parts = (some.astype(np.float64).view(np.int64) >> _DROPPED_BITS) - _FIRST_PART
        self._tally += np.bincount(parts, minlength=self._tally.size)

    def cv(self) -> float | None:
        """Standard deviation (of the population) / mean; None without two distinct arrivals."""
        if self._sum_s == 0.0:
            return None
        mean_s = self._sum_s / self._count
        return float(np.sqrt(max(0.0, self._square_s2 / self._count - mean_s**2)) / mean_s)

    def histogram_s(self) -> Histogram:
        """Gaps in seconds, in four equal parts an octave; those of 0 in a part of their own."""
        bits = (np.arange(self._tally.size + 1, dtype=np.int64) + _FIRST_PART) << _DROPPED_BITS
        edges = bits.view(np.float64) / 1e9
        seen = np.flatnonzero(self._tally)
        if seen.size == 0:
            return Histogram(edges=(0.0, 1.0), counts=(self._zero,))
        first, last = int(seen[0]), int(seen[-1]) + 1
        zero = self._zero > 0
        return Histogram(
            edges=tuple([0.0] * zero + edges[first : last + 1].tolist()),
            counts=tuple([self._zero] * zero + self._tally[first:last].tolist()),
        )


class WindowCounts:
    """Arrivals a window of `window_ns`, from the first arrival; only whole windows count. Memory is flat in time and
    rows.
    """

    def __init__(self, window_ns: int, span_ns: int) -> None:
        self._window_ns = window_ns
        self._windows = span_ns // window_ns
        self._at = 0
        self._in_window = 0
        self._sum = 0
        self._square = 0

    def see(self, arrival_ns: npt.NDArray[np.int64]) -> None:
        """Take the next piece of sorted arrivals into account."""
        window = arrival_ns // self._window_ns
        starts = np.concatenate(([0], np.flatnonzero(window[1:] != window[:-1]) + 1))  # sorted: no need to sort again
        windows, counts = window[starts], np.diff(starts, append=window.size)
        if int(windows[0]) == self._at:
            counts[0] += self._in_window
        else:
            self._close(np.array([self._in_window]))
        self._at, self._in_window = int(windows[-1]), int(counts[-1])
        self._close(counts[:-1])
        if self._at >= self._windows:
            # The last window is cut short by the end of the trace.
            self._in_window = 0

    def _close(self, counts: npt.NDArray[np.int64]) -> None:
        self._sum += int(counts.sum())
        self._square += int(counts @ counts)

    def fano(self) -> float | None:
        """Variance (of the population) / mean of the counts; None without two whole windows or an arrival in them."""
        total, square = self._sum + self._in_window, self._square + self._in_window**2
        if self._windows < 2 or total == 0:
            return None
        mean = total / self._windows
        return (square / self._windows - mean**2) / mean


class RateProfile:
    """Requests in equal parts of the span: shows a ramp that slicing from row 0 would catch alone (case A06)."""

    def __init__(self, span_ns: int) -> None:
        self._span_ns = max(1, span_ns)
        self._edges_ns = np.ceil(np.arange(1, PROFILE_PARTS) * (self._span_ns / PROFILE_PARTS)).astype(np.int64)
        self.counts = np.zeros(PROFILE_PARTS, np.int64)

    @property
    def part_s(self) -> float:
        """Length of a part."""
        return self._span_ns / 1e9 / PROFILE_PARTS

    def see(self, arrival_ns: npt.NDArray[np.int64]) -> None:
        """Take the next piece of sorted arrivals into account."""
        before = np.searchsorted(arrival_ns, self._edges_ns)
        self.counts += np.diff(before, prepend=0, append=arrival_ns.size)

    def rates_per_s(self) -> tuple[float, ...]:
        """One rate a bar of PARTS_A_BAR parts."""
        bars = self.counts.reshape(-1, PARTS_A_BAR).sum(axis=1)
        return tuple(float(count) / (self.part_s * PARTS_A_BAR) for count in bars)

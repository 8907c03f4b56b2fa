"""How bursty arrivals are: coefficient of variation of the gaps, Fano factors of the counts, and the rate over time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Windows of the Fano factors, in seconds.
FANO_WINDOWS_S = (1, 10, 60)

#: Equal parts of the span in the rate profile.
PROFILE_PARTS = 24


class Gaps:
    """Fed sorted arrivals (int64 ns, from 0) piece by piece."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._count = 0
        self._sum_s = 0.0
        self._square_s2 = 0.0

    def see(self, arrival_ns: npt.NDArray[np.int64]) -> None:
        """Take the next piece into account."""
        before = int(arrival_ns[0]) if self._last_ns is None else self._last_ns
        gaps_s = np.diff(arrival_ns, prepend=before) / 1e9
        self._count += gaps_s.size - (self._last_ns is None)
        self._sum_s += float(gaps_s.sum())
        self._square_s2 += float(gaps_s @ gaps_s)
        self._last_ns = int(arrival_ns[-1])

    def cv(self) -> float | None:
        """Standard deviation (of the population) / mean; None without two distinct arrivals."""
        if self._sum_s == 0.0:
            return None
        mean_s = self._sum_s / self._count
        return float(np.sqrt(max(0.0, self._square_s2 / self._count - mean_s**2)) / mean_s)


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
        windows, counts = np.unique(arrival_ns // self._window_ns, return_counts=True)
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
    """Requests/s in equal parts of the span: shows a ramp that slicing from row 0 would catch alone (case A06)."""

    def __init__(self, span_ns: int) -> None:
        self._span_ns = max(1, span_ns)
        self._counts = np.zeros(PROFILE_PARTS, np.int64)

    def see(self, arrival_ns: npt.NDArray[np.int64]) -> None:
        """Take the next piece into account."""
        part = (arrival_ns / self._span_ns * PROFILE_PARTS).astype(np.int64)
        self._counts += np.bincount(np.minimum(part, PROFILE_PARTS - 1), minlength=PROFILE_PARTS)

    def rates_per_s(self) -> tuple[float, ...]:
        """One rate a part."""
        part_s = self._span_ns / 1e9 / PROFILE_PARTS
        return tuple(float(count) / part_s for count in self._counts)

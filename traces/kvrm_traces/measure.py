"""What can be said of a clock after one pass over its arrivals: span, ties, resolution, order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvrm_traces.order import Order


class Clock:
    """Fed arrivals (int64 ns) piece by piece, in the order of the source."""

    def __init__(self) -> None:
        self.rows = 0
        self.least_ns = 0
        self.most_ns = 0
        #: Arrivals at the same instant as the one before them.
        self.ties = 0
        self.order = Order()
        self._first_ns = 0
        self._last_ns = 0
        self._divisor_ns = 0

    @property
    def span_ns(self) -> int:
        """From the earliest arrival to the latest."""
        return self.most_ns - self.least_ns

    @property
    def resolution_ns(self) -> int | None:
        """The greatest common divisor of the distances between arrivals; None when there is no distance."""
        return self._divisor_ns or None

    @property
    def descents(self) -> int:
        """Arrivals earlier than the one before them."""
        return self.order.descents

    def see(self, arrival_ns: npt.NDArray[np.int64]) -> None:
        """Take the next piece into account."""
        if arrival_ns.size == 0:
            return
        if self.rows == 0:
            self._first_ns = self._last_ns = self.least_ns = self.most_ns = int(arrival_ns[0])
            self.ties -= 1  # the first is about to be compared with itself
        steps_ns = np.diff(arrival_ns, prepend=self._last_ns)
        self.ties += int(np.count_nonzero(steps_ns == 0))
        self.order.see(arrival_ns)
        self.least_ns = min(self.least_ns, int(arrival_ns.min()))
        self.most_ns = max(self.most_ns, int(arrival_ns.max()))
        self._last_ns = int(arrival_ns[-1])
        self.rows += arrival_ns.size
        self._divide(arrival_ns - self._first_ns)

    def _divide(self, offsets_ns: npt.NDArray[np.int64]) -> None:
        # A remainder costs a hundredth of a gcd, and after the first rows the divisor rarely changes.
        if self._divisor_ns == 1 or (self._divisor_ns and not np.any(offsets_ns % self._divisor_ns)):
            return
        self._divisor_ns = int(np.gcd(self._divisor_ns, np.gcd.reduce(offsets_ns)))

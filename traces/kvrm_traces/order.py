"""In which order a source gives its arrivals: sorted, here and there out of order, or several streams end to end."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

#: A clock that goes back by less than this share of the span is disorder within one stream.
RESTART_SHARE = 0.05
#: A stream has at least this share of the rows; more restarts than _MOST are no streams.
STREAM_SHARE = 0.01
_MOST = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restart:
    """The clock goes back at request ``row`` (from 1), in nanoseconds of the file's clock."""

    row: int
    from_ns: int
    to_ns: int


class Order:
    """Fed arrivals (int64 ns) piece by piece, in the order of the source."""

    def __init__(self) -> None:
        #: Arrivals earlier than the one before them.
        self.descents = 0
        #: The furthest that an arrival is behind the one before it.
        self.most_back_ns = 0
        self._largest: list[Restart] = []
        self._rows = 0
        self._tail: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def see(self, arrival_ns: npt.NDArray[np.int64]) -> None:
        """Take the next piece into account."""
        tail = self._tail.size
        seen = np.concatenate((self._tail, arrival_ns))
        first_row = self._rows - tail + 1
        self._rows += arrival_ns.size
        self._tail = seen[-3:]
        back_ns = seen[:-1] - seen[1:]
        steps = np.flatnonzero(back_ns > 0)
        new_ns = back_ns[steps[steps >= max(0, tail - 1)]]
        if new_ns.size:
            self.descents += new_ns.size
            self.most_back_ns = max(self.most_back_ns, int(new_ns.max()))
        # One arrival that is ahead of both its neighbours, or behind both, is a stray: no stream begins there. That is
        # known once the arrival after it was seen.
        steps = steps[(steps >= (tail == 3)) & (steps + 2 < seen.size)]
        ahead = (steps > 0) & (seen[steps + 1] >= seen[np.maximum(steps - 1, 0)])
        behind = seen[np.minimum(steps + 2, seen.size - 1)] >= seen[steps]
        real = steps[~ahead & ~behind]
        top = real[np.argsort(-back_ns[real], kind="stable")[:_MOST]]
        found = [Restart(row=first_row + at + 1, from_ns=int(seen[at]), to_ns=int(seen[at + 1])) for at in top.tolist()]
        self._largest = sorted(self._largest + found, key=lambda one: one.to_ns - one.from_ns)[:_MOST]

    def restarts(self, rows: int, span_ns: int) -> list[Restart]:
        """Where one stream ends and the next begins, in the order of the file; [] when it is one stream."""
        far = [one for one in self._largest if one.from_ns - one.to_ns > RESTART_SHARE * span_ns]
        if not far or len(far) == _MOST:
            return []
        far.sort(key=lambda one: one.row)
        starts = [1, *(one.row for one in far), rows + 1]
        least = max(1.0, STREAM_SHARE * rows)
        long = all(stop - start >= least for start, stop in itertools.pairwise(starts))
        return far if long else []

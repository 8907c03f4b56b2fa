"""Windows of a trace that are worth replaying: where the load is steady, and the ramp that leads up to it (case A06).

A window is steady when each of its eight equal parts has the window's own rate, within a quarter of it and what chance
allows. Of all such windows the one with the most requests is proposed: a long quiet head is steady too, and is not
what a server is measured by.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

#: Fewer requests are steady by chance.
LEAST_REQUESTS = 100
#: A window is at least this share of the span.
LEAST_SHARE = 0.05
#: Equal parts of a window that are compared with it.
PIECES = 8
#: How far the rate of a piece may be from the window's, beside two standard errors of a Poisson count.
TOLERANCE = 0.25
#: A head whose rate is below this share of the steady rate is a ramp.
RAMP_SHARE = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stretch:
    """[start_s, end_s) seconds of the trace's clock and the mean rate there; ``end_s`` None: to the end."""

    start_s: float
    end_s: float | None
    rate_per_s: float

    @property
    def option(self) -> str:
        """As ``--window`` takes it."""
        return f"{self.start_s:g}:{'' if self.end_s is None else f'{self.end_s:g}'}"


def steady_stretch(counts: npt.NDArray[np.int64], part_s: float) -> Stretch | None:
    """The proposed window over equal parts of `part_s`; None when no window is steady."""
    parts = counts.size
    if int(counts.sum()) < LEAST_REQUESTS:
        return None
    upto = np.concatenate(([0], np.cumsum(counts)))
    first, last = np.triu_indices(parts + 1, max(PIECES, round(parts * LEAST_SHARE)))
    held = upto[last] - upto[first]
    # Pieces end at whole parts; each is compared with what the window's rate gives a piece of its length.
    cuts = first + np.rint(np.arange(PIECES + 1)[:, None] * (last - first) / PIECES).astype(np.int64)
    expected = np.diff(cuts, axis=0) * (held / (last - first))
    off = np.abs(np.diff(upto[cuts], axis=0) - expected)
    steady = (off <= TOLERANCE * expected + 2 * np.sqrt(expected)).all(axis=0) & (held >= LEAST_REQUESTS)
    if not steady.any():
        return None
    best = int(np.argmax(np.where(steady, held, -1)))
    return _stretch(upto, part_s, *_trimmed(counts, int(first[best]), int(last[best])))


def _trimmed(counts: npt.NDArray[np.int64], first: int, last: int) -> tuple[int, int]:
    """Without parts at either end that are too quiet to be of the window: the end of a ramp that it took along."""
    expected = counts[first:last].mean() * RAMP_SHARE
    quiet = counts < expected - 2 * np.sqrt(expected)
    while last - first > PIECES and quiet[first]:
        first += 1
    while last - first > PIECES and quiet[last - 1]:
        last -= 1
    return first, last


def ramp_before(steady: Stretch | None, counts: npt.NDArray[np.int64], part_s: float) -> Stretch | None:
    """The head before the steady window, when it is much quieter."""
    if steady is None or steady.start_s == 0:
        return None
    upto = np.concatenate(([0], np.cumsum(counts)))
    head = _stretch(upto, part_s, 0, round(steady.start_s / part_s))
    return head if head.rate_per_s < RAMP_SHARE * steady.rate_per_s else None


def _stretch(upto: npt.NDArray[np.int64], part_s: float, first: int, last: int) -> Stretch:
    end_s = None if last == upto.size - 1 else _rounded(last * part_s, part_s)
    rate = float(upto[last] - upto[first]) / ((last - first) * part_s)
    return Stretch(start_s=_rounded(first * part_s, part_s), end_s=end_s, rate_per_s=rate)


def _rounded(seconds: float, part_s: float) -> float:
    """To a digit that a person would write, finer than a part."""
    return round(seconds, max(0, 1 - int(np.floor(np.log10(part_s)))))

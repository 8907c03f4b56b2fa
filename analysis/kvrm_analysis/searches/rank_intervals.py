"""Intervals of a quantile from the ranks of a sample: true for any distribution, and for few values.

Of n independent values, the number below the q-quantile is binomial (n, q). So the i-th and the j-th smallest have the
quantile between them with probability P(i <= B < j), whatever the values are distributed like.
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import binom

from kvrm_sim.errors import InputError

_MOST = 10_000


@dataclass(frozen=True)
class RankInterval:
    """Ranks from 1: the interval is from the ``low``-th to the ``high``-th smallest value; ``at`` is the quantile's.

    ``coverage``: the probability that the interval contains the quantile, at least what was asked for.
    """

    low: int
    at: int
    high: int
    coverage: float


def rank_interval(n: int, quantile: float, confidence: float) -> RankInterval:
    """The narrowest interval by ranks with at least this confidence; of equally narrow ones the surest.

    Raises InputError when n values are too few for it, with how many are needed.
    """
    if not 0 < quantile < 1 or not 0 < confidence < 1:
        raise InputError(f"quantile {quantile:g}, confidence {confidence:g}: each should be between 0 and 1")
    found = _narrowest(n, quantile, confidence)
    if found is None:
        # The widest, from the least value to the greatest.
        wide = (more for more in range(n, _MOST) if 1 - quantile**more - (1 - quantile) ** more >= confidence)
        needed = next(wide, None)
        enough = f"it takes {needed}" if needed else f"more than {_MOST:,} would be needed"
        raise InputError(f"repeats = {n}: too few for an interval of {confidence:.4g} confidence; {enough}")
    return found


def _narrowest(n: int, quantile: float, confidence: float) -> RankInterval | None:
    below = [float(binom.cdf(count, n, quantile)) for count in range(-1, n)]  # below[i]: P(B < i)
    best: RankInterval | None = None
    at = max(1, -int(-quantile * n // 1))
    for low in range(1, at + 1):
        for high in range(max(at, low + 1), n + 1):
            coverage = below[high] - below[low]
            if coverage < confidence:
                continue
            width = high - low
            if best is None or (width, -coverage) < (best.high - best.low, -best.coverage):
                best = RankInterval(low, at, high, coverage)
            break  # a higher one is only wider
    return best

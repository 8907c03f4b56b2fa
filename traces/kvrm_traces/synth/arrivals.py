"""Arrival processes: Poisson, gamma-renewal, and a two-state Markov-modulated Poisson process (MMPP).

A process is an endless sequence of arrival times. It is drawn in blocks whose size is part of the process and not of
the reader, so that the same seed gives the same times however they are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvrm_traces.errors import TraceError

Times = npt.NDArray[np.int64]

#: Gaps drawn at once, and about how many arrivals a block of the modulated process holds.
BLOCK_ROWS = 65536

#: Mean rates that can be stated, and CVs: their products are far from where float64 ends.
RATES_PER_S = (1e-9, 1e9)
CVS = (1e-6, 1e6)

#: Arrivals that two stays of a modulated process may have on average: a block holds so many, or the stays to find one.
STAYS_ARRIVALS = (1e-4, 4e6)

#: No arrival is later: half of what int64 holds, so that what is added to one fits as well.
_MOST_NS = 2**62

#: Pairs of stays in a block, at most.
_MOST_CYCLES = 2**20


class ArrivalProcess(Protocol):
    """Blocks of arrival times, int64 ns, never decreasing within and across blocks; endless."""

    @property
    def rate_per_s(self) -> float:
        """The long-run mean rate."""
        ...

    def blocks(self, rng: np.random.Generator) -> Iterator[Times]:
        """Draw from `rng`, which nothing else may use."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Renewal:
    """Independent gaps, gamma distributed with mean 1 / rate and coefficient of variation `cv` (1: Poisson)."""

    rate_per_s: float
    cv: float = 1.0

    def blocks(self, rng: np.random.Generator) -> Iterator[Times]:
        """See :class:`ArrivalProcess`."""
        now_ns = 0
        shape, mean_ns = 1.0 / self.cv**2, 1e9 / self.rate_per_s
        while True:
            if self.cv == 1.0:
                gaps_ns = rng.standard_exponential(BLOCK_ROWS) * mean_ns
            else:
                gaps_ns = rng.standard_gamma(shape, BLOCK_ROWS) * (mean_ns / shape)
            beyond = now_ns + float(gaps_ns.sum()) > _MOST_NS
            if beyond:
                gaps_ns = gaps_ns[: int(np.searchsorted(np.cumsum(gaps_ns), _MOST_NS - now_ns))]
            times_ns = now_ns + np.cumsum(np.rint(gaps_ns).astype(np.int64))
            if times_ns.size:
                now_ns = int(times_ns[-1])
                yield times_ns
            if beyond:
                raise _too_far(self.rate_per_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModulatedPoisson:
    """Poisson arrivals at one of two rates; a stay lasts an exponential time of the given mean; the second comes
    first.
    """

    rates_per_s: tuple[float, float]
    sojourns_s: tuple[float, float]

    @property
    def rate_per_s(self) -> float:
        """The long-run mean rate."""
        first, second = self.sojourns_s
        return (self.rates_per_s[0] * first + self.rates_per_s[1] * second) / (first + second)

    @property
    def arrivals_a_cycle(self) -> float:
        """Of two stays, one at each rate, on average."""
        return sum(rate * stay for rate, stay in zip(self.rates_per_s, self.sojourns_s, strict=True))

    def blocks(self, rng: np.random.Generator) -> Iterator[Times]:
        """See :class:`ArrivalProcess`. Given their number, a stay's arrivals are uniform in it: no event is drawn
        alone.
        """
        cycles = min(max(1, int(BLOCK_ROWS / (self.rate_per_s * sum(self.sojourns_s)))), _MOST_CYCLES)
        rates, means = np.array(self.rates_per_s[::-1]), np.array(self.sojourns_s[::-1])
        now_ns = 0
        while True:
            stays_s = (rng.standard_exponential((cycles, 2)) * means).ravel()
            counts = rng.poisson(stays_s * np.tile(rates, cycles))
            ends_s = np.cumsum(stays_s)
            uniform = rng.random(int(counts.sum()))
            # Stays follow one another, so sorting all of them sorts each.
            times_s = np.sort(np.repeat(ends_s, counts) - uniform * np.repeat(stays_s, counts))
            room_s = (_MOST_NS - now_ns) / 1e9
            yield now_ns + np.rint(times_s[times_s < room_s] * 1e9).astype(np.int64)
            if ends_s[-1] >= room_s:
                raise _too_far(self.rate_per_s)
            now_ns += int(np.rint(ends_s[-1] * 1e9))


def _too_far(rate_per_s: float) -> TraceError:
    return TraceError(
        f"arrivals at {rate_per_s:g} requests/s go beyond {_MOST_NS / 1e9:.3g} s; state a higher rate or fewer requests"
    )


def from_first(process: ArrivalProcess, rng: np.random.Generator) -> Iterator[Times]:
    """The blocks of a process, on a clock on which its first arrival is 0."""
    first_ns: int | None = None
    for block in process.blocks(rng):
        if first_ns is None and block.size:
            first_ns = int(block[0])
        yield block - (first_ns or 0)


def parse_arrivals(text: str) -> Renewal:
    """'poisson:RATE' or 'gamma:RATE:CV', RATE in requests/s: the stated process of a file without arrivals."""
    kind, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if (kind, len(values)) in (("poisson", 1), ("gamma", 2)):
        process = Renewal(rate_per_s=values[0], cv=values[1] if kind == "gamma" else 1.0)
        if within(process.rate_per_s, RATES_PER_S) and within(process.cv, CVS):
            return process
    raise TraceError(
        f"arrivals {text!r}: must be poisson:RATE or gamma:RATE:CV, RATE in requests/s, e.g. poisson:2.5; "
        f"RATE from {RATES_PER_S[0]:g} to {RATES_PER_S[1]:g}, CV from {CVS[0]:g} to {CVS[1]:g}"
    )


def within(value: float, bounds: tuple[float, float]) -> bool:
    """Whether it is one of the bounds or between them."""
    return bounds[0] <= value <= bounds[1]

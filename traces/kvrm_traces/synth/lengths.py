"""Distributions of whole numbers: tokens of prompts and outputs, turns of a conversation, milliseconds of thought."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Lengths(Protocol):
    """A distribution of whole numbers, each 1 or more."""

    @property
    def most(self) -> int:
        """No draw is above it."""
        ...

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:
        """`rows` independent draws."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """Always the same."""

    value: int

    @property
    def most(self) -> int:
        """See :class:`Lengths`."""
        return self.value

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:  # noqa: ARG002  # as every distribution is drawn
        """See :class:`Lengths`."""
        return np.full(rows, self.value, np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometric:
    """1 and upward with this mean, clipped to [least, most]: turns that end with one chance each, or, where the mean is
    large, an exponential time.
    """

    mean: float
    least: int
    most: int

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:
        """See :class:`Lengths`."""
        return np.clip(rng.geometric(1.0 / self.mean, rows), self.least, self.most).astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogNormal:
    """exp(N(mu, sigma)), rounded and clipped to [least, most]."""

    mu: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:
        """See :class:`Lengths`."""
        values = np.exp(self.mu + self.sigma * rng.standard_normal(rows))
        drawn: Ints = np.rint(np.clip(values, self.least, self.most)).astype(np.int64)
        return drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Given quantiles, log-linear in the normal score between them: a lognormal piece by piece.

    `probabilities` ascend from 0 to 1; `values` never descend, are 1 or more, and are as many.
    """

    probabilities: tuple[float, ...]
    values: tuple[int, ...]

    @property
    def most(self) -> int:
        """See :class:`Lengths`."""
        return self.values[-1]

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:
        """See :class:`Lengths`."""
        # The ends of a normal are infinite; a draw beyond one in a million gets the least or the most.
        scores = [NormalDist().inv_cdf(min(max(p, 1e-6), 1 - 1e-6)) for p in self.probabilities]
        values = np.exp(np.interp(rng.standard_normal(rows), scores, np.log(self.values)))
        return np.rint(values).astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pareto:
    """A tail of index `alpha` from `least` on, cut at `most`: P(more than x) ~ x^-alpha."""

    alpha: float
    least: int
    most: int

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:
        """See :class:`Lengths`. By the inverse of the bounded distribution, so that nothing piles up at the cut."""
        beyond = (self.least / self.most) ** self.alpha
        values = self.least * (1.0 - rng.random(rows) * (1.0 - beyond)) ** (-1.0 / self.alpha)
        drawn: Ints = np.rint(np.minimum(values, self.most)).astype(np.int64)
        return drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """Each draw is of one of the parts, by their weights: a body and a heavy tail, say."""

    weights: tuple[float, ...]
    parts: tuple[Lengths, ...]

    @property
    def most(self) -> int:
        """See :class:`Lengths`."""
        return max(part.most for part in self.parts)

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:
        """See :class:`Lengths`."""
        upto = np.cumsum(self.weights) / sum(self.weights)
        which = np.minimum(np.searchsorted(upto, rng.random(rows), side="right"), len(self.parts) - 1)
        values = np.empty(rows, np.int64)
        for number, part in enumerate(self.parts):
            own = which == number
            values[own] = part.draw(rng, int(np.count_nonzero(own)))
        return values

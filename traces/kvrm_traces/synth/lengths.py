"""Distributions of prompt and output lengths, each a function of a standard normal draw."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Lengths(Protocol):
    """A distribution of token counts."""

    def draw(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
        """`rows` independent token counts, each 1 or more."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogNormal:
    """exp(N(mu, sigma)), rounded and clipped to [least, most] tokens."""

    mu: float
    sigma: float
    least_tokens: int
    most_tokens: int

    def draw(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
        """See :class:`Lengths`."""
        tokens = np.exp(self.mu + self.sigma * rng.standard_normal(rows))
        drawn: npt.NDArray[np.int64] = np.rint(np.clip(tokens, self.least_tokens, self.most_tokens)).astype(np.int64)
        return drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Given quantiles, log-linear in the normal score between them: a lognormal piece by piece.

    `probabilities` ascend from 0 to 1; `tokens` never descend, are 1 or more, and are as many.
    """

    probabilities: tuple[float, ...]
    tokens: tuple[int, ...]

    def draw(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
        """See :class:`Lengths`."""
        # The ends of a normal are infinite; a draw beyond one in a million gets the least or the most.
        scores = [NormalDist().inv_cdf(min(max(p, 1e-6), 1 - 1e-6)) for p in self.probabilities]
        tokens = np.exp(np.interp(rng.standard_normal(rows), scores, np.log(self.tokens)))
        return np.rint(tokens).astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pareto:
    """A tail of index `alpha` from `least_tokens` on, cut at `most_tokens`: P(more than x) ~ x^-alpha."""

    alpha: float
    least_tokens: int
    most_tokens: int

    def draw(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
        """See :class:`Lengths`. By the inverse of the bounded distribution, so that nothing piles up at the cut."""
        beyond = (self.least_tokens / self.most_tokens) ** self.alpha
        tokens = self.least_tokens * (1.0 - rng.random(rows) * (1.0 - beyond)) ** (-1.0 / self.alpha)
        drawn: npt.NDArray[np.int64] = np.rint(np.minimum(tokens, self.most_tokens)).astype(np.int64)
        return drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """Each length is of one of the parts, by their weights: a body and a heavy tail, say."""

    weights: tuple[float, ...]
    parts: tuple[Lengths, ...]

    def draw(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
        """See :class:`Lengths`."""
        upto = np.cumsum(self.weights) / sum(self.weights)
        which = np.minimum(np.searchsorted(upto, rng.random(rows), side="right"), len(self.parts) - 1)
        tokens = np.empty(rows, np.int64)
        for number, part in enumerate(self.parts):
            own = which == number
            tokens[own] = part.draw(rng, int(np.count_nonzero(own)))
        return tokens

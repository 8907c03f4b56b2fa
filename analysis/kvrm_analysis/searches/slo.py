"""Service-level objectives over the figures of a run, and goals: one way to write them for every command.

itl_p99 <= 50ms
ttft_p99 <= 2s and completed_share >= 99.9%
minimize reserved_kv_mean
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from kvrm_analysis.searches.figures_of_merit import Figure, figure_named, parse_amount
from kvrm_sim.distribution import PERCENTILES
from kvrm_sim.errors import InputError

Comparison: TypeAlias = Literal["<=", "<", ">=", ">"]

_TERM = re.compile(r"\s*([\w.]+)\s*(<=|>=|<|>)\s*(.+?)\s*\Z")
_BETWEEN = re.compile(r"\s+and\s+|\s*,\s*|\s*&&?\s*")
_DIRECTIONS = {"minimize": False, "minimise": False, "maximize": True, "maximise": True}


@dataclass(frozen=True)
class Term:
    """A bound on one figure, in the figure's own unit (s, bytes, …)."""

    figure: Figure
    comparison: Comparison
    bound: float

    def __str__(self) -> str:
        return f"{self.figure.short} {self.comparison} {self.figure.text(self.bound)}"

    @property
    def upper(self) -> bool:
        """The bound is from above."""
        return self.comparison[0] == "<"

    def met(self, value: float) -> bool:
        """Whether a value is within the bound."""
        if self.comparison == "<=":
            return value <= self.bound
        if self.comparison == "<":
            return value < self.bound
        return value >= self.bound if self.comparison == ">=" else value > self.bound

    def excess(self, value: float) -> float:
        """By what share of the bound a value misses it, above 0; 0 or less where it is met."""
        off = value - self.bound if self.upper else self.bound - value
        share = off / abs(self.bound) if self.bound else off
        if self.met(value):
            return min(share, 0.0)
        return max(share, 1e-12)  # equal to a strict bound


@dataclass(frozen=True)
class Slo:
    """Bounds that all have to hold."""

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " and ".join(str(term) for term in self.terms)

    def missing(self, run: Mapping[str, Any]) -> tuple[Figure, ...]:
        """The bounded figures that a run does not have (null: no gap, no finish, …)."""
        return tuple(term.figure for term in self.terms if term.figure.value(run) is None)

    def unsupported(self, run: Mapping[str, Any]) -> tuple[tuple[Figure, int, int], ...]:
        """The bounded percentiles beyond which a run has no value, each with its n and the least n that has one."""
        found = []
        for term in self.terms:
            metric, _, name = term.figure.path.rpartition(".")
            if metric and name in PERCENTILES and run[metric]["n"]:
                part, whole = PERCENTILES[name]
                least = -(-whole // (whole - part))
                if run[metric]["n"] < least:
                    found.append((term.figure, int(run[metric]["n"]), least))
        return tuple(found)

    def broken(self, run: Mapping[str, Any]) -> tuple[Term, ...]:
        """The bounds that a run does not keep. A figure that does not exist keeps none."""
        values = ((term, term.figure.value(run)) for term in self.terms)
        return tuple(term for term, value in values if value is None or not term.met(value))


def parse_slo(texts: str | Sequence[str], where: str = "slo") -> Slo:
    """Terms such as ``itl_p99 <= 50ms``, several a text joined by ``and`` or a comma. Raises InputError."""
    texts = [texts] if isinstance(texts, str) else list(texts)
    terms = [_term(part, where) for text in texts for part in _BETWEEN.split(text.strip())]
    if not terms:
        raise InputError(f"{where}: empty; it needs at least one bound, e.g. 'itl_p99 <= 50ms'")
    return Slo(tuple(terms))


def _term(text: str, where: str) -> Term:
    match = _TERM.match(text)
    if match is None:
        raise InputError(f"{where}: {text!r} is not FIGURE <= AMOUNT (or >=), e.g. 'itl_p99 <= 50ms'")
    name, comparison, amount = match.groups()
    figure = figure_named(name, where)
    bound = parse_amount(amount, figure, name, where)
    # None of the figures is below 0, and a time, a size or a rate of exactly 0 is no objective; 0 preemptions are.
    zero_asks_something = figure.unit in ("count", "share") and comparison in ("<=", ">")
    if bound < 0 or (bound == 0 and not zero_asks_something):
        raise InputError(f"{where}: {text.strip()!r}: the bound should be above 0; no {figure.short} is below 0")
    return Term(figure, comparison, bound)  # type: ignore[arg-type]  # of the pattern


@dataclass(frozen=True)
class Goal:
    """A figure to make small or large."""

    figure: Figure
    maximize: bool

    def __str__(self) -> str:
        return f"{'maximize' if self.maximize else 'minimize'} {self.figure.short}"

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Which way is better."""
        return "maximize" if self.maximize else "minimize"

    def better(self, one: float, other: float) -> bool:
        """Whether one value is better than the other."""
        return one > other if self.maximize else one < other


def parse_goal(text: str, where: str = "objective") -> Goal:
    """``minimize FIGURE`` or ``maximize FIGURE``. Raises InputError."""
    verb, _, name = text.strip().partition(" ")
    if verb not in _DIRECTIONS or not name.strip():
        raise InputError(f"{where}: {text!r} is not 'minimize FIGURE' or 'maximize FIGURE', e.g. minimize itl_p99")
    return Goal(figure_named(name.strip(), where), _DIRECTIONS[verb])

"""Conditions under which a difference between runs is a failure: ``itl_p99 > +5%``, ``requests_per_s < -2%``.

A signed value is a difference, B less A: in per cent of A, or (without %) in the metric's own unit. A value without a
sign is about B itself.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

from kvrm_sim.errors import InputError

_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|>|<)\s*([+-]?)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(%?)\s*")


@dataclass(frozen=True)
class Condition:
    """``of``: ``share`` (of A), ``difference`` (in the unit) or ``value`` (of B); ``bound`` likewise."""

    text: str
    metric: str
    comparison: str
    bound: float
    of: str

    def holds(self, value: float) -> bool:
        """Whether it is met, which is a failure."""
        return bool(_OPERATORS[self.comparison](value, self.bound))

    @property
    def upward(self) -> bool:
        """Whether more makes it fail."""
        return self.comparison.startswith(">")


def condition(text: str) -> Condition:
    """Read one. Raises InputError that shows the form; whether there is such a metric is not looked at."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InputError(
            f"condition {text!r}: should be METRIC > VALUE (or >=, <, <=), e.g. 'itl_p99 > +5%', "
            "'requests_per_s < -2%' or 'ttft_p99_s > 2.5'"
        )
    metric, comparison, sign, number, percent = found.groups()
    if percent and not sign:
        raise InputError(
            f"condition {text!r}: a percentage is a difference, so it needs its sign: +{number}% or -{number}%"
        )
    bound = float(f"{sign}{number}") / (100 if percent else 1)
    return Condition(text.strip(), metric, comparison, bound, "share" if percent else "difference" if sign else "value")

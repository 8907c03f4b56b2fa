"""Conditions under which a difference between runs is a failure: ``itl_p99 > +5%``, ``preemptions > +10``.

A signed amount is a difference, B less A: in per cent of A, or (without %) in a unit of the figure. An amount without a
sign is about B itself. Figures and units are those of an SLO (slo.py, figures_of_merit.py).
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvrm_analysis.searches.figures_of_merit import Figure, figure_named, parse_amount
from kvrm_sim.errors import InputError

#: What is judged: a share of A, a difference in the figure's own unit, or B's value in it.
Of: TypeAlias = Literal["share", "difference", "value"]

_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|>|<)\s*([+-]?)\s*(.*\S)\s*")
_WHERE = "--fail-if"


@dataclass(frozen=True)
class Condition:
    """``bound``: a share of A where ``of`` says so, else in the figure's own unit."""

    text: str
    figure: Figure
    comparison: str
    bound: float
    of: Of

    def holds(self, value: float) -> bool:
        """Whether it is met, which is a failure."""
        return bool(_OPERATORS[self.comparison](value, self.bound))

    @property
    def upward(self) -> bool:
        """Whether more makes it fail."""
        return self.comparison.startswith(">")


def condition(text: str) -> Condition:
    """Read one. Raises InputError that shows the form, or names the nearest figure or the units that there are."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InputError(
            f"{_WHERE}: {text!r} is not FIGURE > AMOUNT (or >=, <, <=), e.g. 'itl_p99 > +5%', 'requests_per_s < -2%' "
            "or 'ttft_p99 > 2.5s'"
        )
    name, comparison, sign, amount = found.groups()
    figure = figure_named(name, _WHERE)
    percent = amount.endswith("%") and bool(sign)
    if amount.endswith("%") and not sign and figure.unit != "share":
        raise InputError(
            f"{_WHERE}: {text!r}: a percentage is a difference, so it needs its sign: +{amount} or -{amount}"
        )
    if percent:
        size = _number(amount.removesuffix("%"), text) / 100
    else:
        size = parse_amount(amount, figure, name, _WHERE)
    of: Of = "share" if percent else "difference" if sign else "value"
    return Condition(text.strip(), figure, comparison, -size if sign == "-" else size, of)


def _number(digits: str, text: str) -> float:
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):  # nothing exceeds nan or inf: such a condition would never fail
        raise InputError(f"{_WHERE}: {text!r}: {digits!r} is no finite number")
    return number

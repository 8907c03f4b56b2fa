"""Axes: the values that a key takes in a study, written out, in a range, or drawn.

In TOML an axis is a list of values, or a table: ``{ range = [1, 8], step = 0.5 }``, ``{ range = [1, 8], points = 15 }``
or ``{ log_range = [1000, 64000], points = 7 }``; both ends are values. Without ``step`` or ``points`` a range is a
:class:`Dimension`: a stretch of numbers, for a sampler or a search. Every value is checked against its key here, before
there is a cell; how many values there are is known before any is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvrm_analysis.studies.settings import Key, checked_key
from kvrm_sim.errors import ConfigError
from kvrm_sim.tables import nearest

#: More values than that in one axis are a slip of the hand, and are not even written out.
MOST_VALUES = 1_000_000
#: Digits that a value between two others is rounded to, so that 0.1 + 0.2 is 0.3 in every file.
_DIGITS = 12

_WORDS = ("range", "log_range", "step", "points")


@dataclass(frozen=True)
class Axis:
    """A key and its values, each checked and none twice."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Dimension:
    """A key and a stretch of numbers, both ends in it; ``log``: equal factors are equally long."""

    key: str
    low: float
    high: float
    log: bool = False
    integer: bool = False

    def at(self, share: float) -> int | float:
        """The value at a share of the stretch, 0 to 1: each whole number has an equal part of it."""
        low, high = self.low, self.high
        if self.integer:
            low, high = low - 0.5, high + 0.5
        if self.log:
            value = low * (high / low) ** share
        else:
            value = low + (high - low) * share
        if self.integer:
            return int(min(self.high, max(self.low, math.floor(value + 0.5))))
        return min(self.high, max(self.low, rounded(value)))


def rounded(value: float) -> float:
    """A value computed between two others, without the digits that only the computing gave it."""
    return float(f"{value:.{_DIGITS}g}")


def read_axis(name: str, given: object, where: str = "axes") -> Axis:
    """An axis with all its values. Raises ConfigError that names it, what is wrong and what would be right."""
    key, label = _key(name, where), f"{where}.{name}"
    return _ranged(key, given, label) if isinstance(given, Mapping) else Axis(key.name, _listed(key, given, label))


def read_dimension(name: str, given: object, where: str) -> Axis | Dimension:
    """What a sampler draws from: a stretch of numbers, or the values of a list (equally likely)."""
    key, label = _key(name, where), f"{where}.{name}"
    if not isinstance(given, Mapping):
        return Axis(key.name, _listed(key, given, label))
    if "step" in given or "points" in given:
        return _ranged(key, given, label)
    low, high, log = _ends(key, given, label)
    return Dimension(key.name, low, high, log, key.number == "int")


def _key(name: str, where: str) -> Key:
    try:
        return checked_key(name)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error.message}", error.key) from None


def _listed(key: Key, given: object, label: str) -> tuple[Any, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError(
            f"{label} = {given!r}: should be a list of values, {{ range = [LOW, HIGH], step = STEP }} or "
            "{ log_range = [LOW, HIGH], points = N }",
            key.name,
            given,
        )
    if not given:
        raise ConfigError(f"{label} = []: an axis needs at least one value", key.name, given)
    found: list[Any] = []
    for value in given:
        try:
            one = key.checked(value)
        except ConfigError as error:
            raise ConfigError(f"{label}: {error.message}", key.name, value) from None
        if one in found:
            raise ConfigError(f"{label}: {value!r} is in it twice", key.name, value)
        found.append(one)
    return tuple(found)


def _ends(key: Key, given: Mapping[str, Any], label: str) -> tuple[float, float, bool]:
    """(low, high, whether logarithmic) of a range."""
    for word in given:
        if word not in _WORDS:
            raise ConfigError(f"{label}.{word}: unknown{nearest(word, _WORDS)}", key.name)
    kinds = [word for word in ("range", "log_range") if word in given]
    if len(kinds) != 1:
        raise ConfigError(f"{label}: should have range = [LOW, HIGH] or log_range = [LOW, HIGH]", key.name, dict(given))
    if key.number is None:
        raise ConfigError(f"{label}: its values are no numbers, so it has no range; list them", key.name, dict(given))
    kind, ends = kinds[0], given[kinds[0]]
    wanted = int if key.number == "int" else (int, float)
    if (
        not isinstance(ends, Sequence)
        or isinstance(ends, str)
        or len(ends) != 2
        or any(isinstance(end, bool) or not isinstance(end, wanted) or not math.isfinite(end) for end in ends)
        or not ends[0] < ends[1]
        or (kind == "log_range" and ends[0] <= 0)
    ):
        numbers = "whole numbers" if key.number == "int" else "numbers"
        above = " above 0" if kind == "log_range" else ""
        raise ConfigError(
            f"{label}.{kind} = {ends!r}: should be two {numbers}{above}, [LOW, HIGH] with LOW < HIGH", key.name, ends
        )
    for end in ends:
        try:
            key.checked(end)
        except ConfigError as error:
            raise ConfigError(f"{label}.{kind}: {error.message}", key.name, end) from None
    return ends[0], ends[1], kind == "log_range"


def _ranged(key: Key, given: Mapping[str, Any], label: str) -> Axis:
    low, high, log = _ends(key, given, label)
    step, points = given.get("step"), given.get("points")
    if (step is None) == (points is None) or (log and step is not None):
        how = "points = N" if log else "step = STEP, or points = N"
        raise ConfigError(f"{label}: say how many values it has: {how}", key.name, dict(given))
    if points is not None:
        if isinstance(points, bool) or not isinstance(points, int) or points < 2:
            raise ConfigError(f"{label}.points = {points!r}: should be a whole number, 2 or more", key.name, points)
        _refuse_many(points, label, key.name)
        whole = key.number == "int"
        return Axis(key.name, tuple(dict.fromkeys(_spaced(low, high, points, log=log, whole=whole))))
    wanted = int if key.number == "int" else (int, float)
    if isinstance(step, bool) or not isinstance(step, wanted) or not (math.isfinite(step) and step > 0):
        number = "a whole number, 1 or more" if key.number == "int" else "a number above 0"
        raise ConfigError(f"{label}.step = {step!r}: should be {number}", key.name, step)
    if key.number == "int":
        whole_values = range(int(low), int(high) + 1, int(step))
        _refuse_many(len(whole_values), label, key.name)
        return Axis(key.name, tuple(whole_values))
    count = math.floor((high - low) / step * (1 + 1e-12)) + 1
    _refuse_many(count, label, key.name)
    return Axis(key.name, tuple(rounded(low + at * step) for at in range(count)))


def _refuse_many(count: int, label: str, key: str) -> None:
    if count > MOST_VALUES:
        raise ConfigError(f"{label}: {count:,} values; an axis has at most {MOST_VALUES:,}", key, count)


def _spaced(low: float, high: float, points: int, *, log: bool, whole: bool) -> Iterator[int | float]:
    """Values at equal distances (or factors), both ends among them; whole ones to the nearest."""
    for at in range(points):
        share = at / (points - 1)
        value = low * (high / low) ** share if log else low + (high - low) * share
        yield round(value) if whole else rounded(value)


@dataclass(frozen=True)
class Sample:
    """Points drawn together over several keys: ``lhs`` (Latin hypercube) or ``sobol`` (scrambled), from ``seed``."""

    method: str
    points: int
    seed: int
    dimensions: tuple[Axis | Dimension, ...]

    def settings(self) -> list[dict[str, Any]]:
        """The settings of each point, in the order in which they were drawn."""
        from scipy.stats import qmc  # half a second that a study without a sample need not spend

        count, seed = len(self.dimensions), np.random.default_rng(self.seed)
        sampler = qmc.Sobol(count, rng=seed) if self.method == "sobol" else qmc.LatinHypercube(count, rng=seed)
        drawn = sampler.random(self.points)
        return [
            {of.key: _drawn(of, float(share)) for of, share in zip(self.dimensions, row, strict=True)} for row in drawn
        ]


def _drawn(of: Axis | Dimension, share: float) -> Any:
    if isinstance(of, Dimension):
        return of.at(share)
    return of.values[min(len(of.values) - 1, int(share * len(of.values)))]


_OF_A_SAMPLE = ("method", "points", "seed", "axes")


def read_sample(given: Mapping[str, Any]) -> Sample:
    """The table [sample] of a study. Raises ConfigError that names what is wrong in it."""
    for word in given:
        if word not in _OF_A_SAMPLE:
            raise ConfigError(f"sample.{word}: unknown key{nearest(word, _OF_A_SAMPLE)}", f"sample.{word}")
    method, points, seed = given.get("method"), given.get("points"), given.get("seed", 0)
    if method not in ("lhs", "sobol"):
        raise ConfigError(f"sample.method = {method!r}: should be 'lhs' (Latin hypercube) or 'sobol'", "sample.method")
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise ConfigError(f"sample.points = {points!r}: should be a whole number, 1 or more", "sample.points", points)
    _refuse_many(points, "sample.points", "sample.points")
    if method == "sobol" and points & (points - 1):
        near = 1 << points.bit_length()
        raise ConfigError(
            f"sample.points = {points}: Sobol points are balanced only in powers of two: {near // 2} or {near}",
            "sample.points",
            points,
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"sample.seed = {seed!r}: should be a whole number, 0 or more", "sample.seed", seed)
    axes = given.get("axes")
    if not isinstance(axes, Mapping) or not axes:
        raise ConfigError("sample.axes: should be a table of at least one axis, KEY = { range = [LOW, HIGH] }")
    found = tuple(read_dimension(name, value, "sample.axes") for name, value in axis_entries(axes).items())
    return Sample(method, points, seed, found)


def axis_entries(axes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The axes of a table by dotted key: tables in it are keys too, but for one that is a range."""
    found: dict[str, Any] = {}
    for name, value in axes.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and not any(word in value for word in _WORDS):
            if not value:
                raise ConfigError(f"axes.{dotted} = {{}}: an axis needs at least one value", dotted)
            found |= axis_entries(value, f"{dotted}.")
        else:
            found[dotted] = value
    return found

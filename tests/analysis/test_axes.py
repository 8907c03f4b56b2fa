"""Axes: which values they have, and what is refused before there is a cell."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kvrm_analysis.studies.axes import Axis, Dimension, read_axis, read_dimension, read_sample
from kvrm_sim.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "spec", "values"),
    [
        ("policy", ["static", "kv-rm"], ("static", "kv-rm")),
        ("trace.speedup", [1, 2.5], (1.0, 2.5)),
        ("trace.speedup", {"range": [0.1, 0.5], "step": 0.1}, (0.1, 0.2, 0.3, 0.4, 0.5)),
        ("trace.speedup", {"range": [1, 2], "step": 0.4}, (1.0, 1.4, 1.8)),
        ("trace.speedup", {"range": [1, 2], "points": 3}, (1.0, 1.5, 2.0)),
        ("pool_blocks", {"range": [10, 50], "step": 20}, (10, 30, 50)),
        ("pool_blocks", {"log_range": [1000, 64000], "points": 4}, (1000, 4000, 16000, 64000)),
        ("pool_blocks", {"range": [1, 3], "points": 9}, (1, 2, 3)),  # whole numbers, each once
        ("hardware.h2d_bytes_per_s", {"log_range": [1e9, 1e11], "points": 3}, (1e9, 1e10, 1e11)),
    ],
)
def test_the_values_of_an_axis(key: str, spec: Any, values: tuple[Any, ...]) -> None:
    assert read_axis(key, spec) == Axis(key, values)
    assert [type(value) for value in read_axis(key, spec).values] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("key", "spec", "said"),
    [
        ("polcy", ["static"], "axes.polcy: unknown key; did you mean 'policy'?"),
        ("policy", [], "axes.policy = []: an axis needs at least one value"),
        ("policy", "static", "axes.policy = 'static': should be a list of values"),
        ("policy", {"range": [1, 2], "step": 1}, "axes.policy: its values are no numbers"),
        ("policy", ["static", "static"], "axes.policy: 'static' is in it twice"),
        ("pool_blocks", ["many"], "axes.pool_blocks: pool_blocks = 'many': should be a whole number, 1 or more"),
        ("pool_blocks", [10, 1.5], "axes.pool_blocks: pool_blocks = 1.5"),
        ("pool_blocks", {"range": [1.5, 3], "step": 1}, "should be two whole numbers"),
        ("pool_blocks", {"range": [1, 3], "step": 0.5}, "axes.pool_blocks.step = 0.5: should be a whole number"),
        ("pool_blocks", {"range": [0, 3], "step": 1}, "axes.pool_blocks.range: pool_blocks = 0"),
        ("trace.speedup", {"range": [2, 1], "step": 1}, "[LOW, HIGH] with LOW < HIGH"),
        ("trace.speedup", {"range": [1, math.inf], "step": 1}, "should be two numbers"),
        ("trace.speedup", {"log_range": [0, 1], "points": 3}, "should be two numbers above 0"),
        ("trace.speedup", {"range": [1, 2]}, "say how many values it has: step = STEP, or points = N"),
        ("trace.speedup", {"range": [1, 2], "step": 1, "points": 2}, "say how many values it has"),
        ("trace.speedup", {"log_range": [1, 2], "step": 1}, "say how many values it has: points = N"),
        ("trace.speedup", {"range": [1, 2], "points": 1}, "points = 1: should be a whole number, 2 or more"),
        ("trace.speedup", {"range": [1, 2], "stepp": 1}, "axes.trace.speedup.stepp: unknown; did you mean 'step'?"),
        ("trace.speedup", {"range": [1, 2], "step": 1e-12}, "values; an axis has at most 1,000,000"),
        ("seed", {"range": [0, 10**12], "step": 1}, "axes.seed: 1,000,000,000,001 values"),
        ("trace.speedup", {"range": [1, 2], "points": 10**12}, "1,000,000,000,000 values"),
    ],
)
def test_a_wrong_axis_is_refused_with_what_would_be_right(key: str, spec: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_axis(key, spec)
    assert said in str(caught.value)


SAMPLE = {"method": "lhs", "points": 8, "axes": {"pool_blocks": {"range": [1, 8]}}}


def test_a_latin_hypercube_has_one_point_in_every_part() -> None:
    points = read_sample(SAMPLE).settings()
    assert sorted(point["pool_blocks"] for point in points) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert points == read_sample(SAMPLE).settings()
    assert points != read_sample({**SAMPLE, "seed": 1}).settings()


def test_sobol_points_are_balanced_over_words_and_numbers_alike() -> None:
    axes = {"policy": ["static", "kv-rm"], "trace.speedup": {"log_range": [0.25, 4]}}
    points = read_sample({"method": "sobol", "points": 16, "axes": axes}).settings()
    assert [sum(point["policy"] == name for point in points) for name in axes["policy"]] == [8, 8]
    assert sum(point["trace.speedup"] < 1 for point in points) == 8
    assert all(0.25 <= point["trace.speedup"] <= 4 for point in points)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "grid"}, "should be 'lhs' (Latin hypercube) or 'sobol'"),
        ({"points": 0}, "sample.points = 0"),
        ({"points": 10**12}, "1,000,000,000,000 values"),
        ({"method": "sobol", "points": 100}, "powers of two: 64 or 128"),
        ({"seed": -1}, "sample.seed = -1"),
        ({"axes": {}}, "sample.axes: should be a table of at least one axis"),
        ({"axes": {"policy": []}}, "sample.axes.policy = []: an axis needs at least one value"),
        ({"axes": {"polcy": ["static"]}}, "sample.axes.polcy: unknown key"),
        ({"axis": {}}, "sample.axis: unknown key; did you mean 'axes'?"),
    ],
)
def test_a_wrong_sample_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_sample({**SAMPLE, **change})
    assert said in str(caught.value)


@given(some.floats(0, 1), some.integers(1, 50), some.integers(1, 1000), some.booleans())
def test_a_share_of_a_dimension_is_one_of_its_values(share: float, low: int, more: int, log: bool) -> None:
    whole = Dimension("pool_blocks", low, low + more, log, integer=True).at(share)
    assert isinstance(whole, int)
    assert low <= whole <= low + more
    assert low <= Dimension("trace.speedup", low, low + more, log).at(share) <= low + more


def test_the_ends_of_a_dimension_are_values() -> None:
    found = read_dimension("pool_blocks", {"log_range": [3, 700]}, "sample.axes")
    assert isinstance(found, Dimension)
    assert (found.at(0.0), found.at(1.0)) == (3, 700)

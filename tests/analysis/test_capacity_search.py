"""The search for an edge, over outcomes that are made up: monotone, contradictory, and without an edge."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_analysis.searches.capacity_search import fewest, highest_rate
from kvrm_analysis.searches.rank_intervals import rank_interval
from kvrm_sim.errors import InputError


@given(edge=st.floats(1e-3, 1e3), start=st.floats(0.1, 10), tolerance=st.sampled_from([0.001, 0.01, 0.1]))
def test_a_monotone_edge_is_found_to_the_tolerance(edge: float, start: float, tolerance: float) -> None:
    found = highest_rate(lambda rate: rate <= edge, start=start, tolerance=tolerance)
    assert found.met_to is not None
    assert found.missed_from is not None
    assert found.met_to <= edge < found.missed_from
    assert found.missed_from <= found.met_to * (1 + tolerance)
    assert not found.contradicted
    assert list(found.asked) == sorted(found.asked)


def test_a_contradiction_beside_the_edge_is_in_the_interval() -> None:
    """Met to 10, missed to 10.2, met again to 10.4: wherever the bisection lands, both edges are seen."""

    def meets(rate: float) -> bool:
        return rate <= 10 or 10.2 < rate <= 10.4

    found = highest_rate(meets, start=3.0, tolerance=0.005, guard=6)
    assert found.met_to is not None
    assert found.missed_from is not None
    assert 9.9 < found.met_to <= 10
    assert 10.4 <= found.missed_from < 10.5
    assert found.contradicted


@given(seed=st.integers(0, 10_000))
def test_noisy_answers_never_give_an_interval_that_what_was_asked_contradicts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn: dict[float, bool] = {}

    def meets(rate: float) -> bool:
        return drawn.setdefault(rate, bool(rng.random() < 1 / (1 + (rate / 8) ** 30)))

    found = highest_rate(meets, start=1.0)
    assert dict(found.asked) == drawn
    if found.met_to is not None:
        assert all(met for rate, met in drawn.items() if rate <= found.met_to)
    if found.missed_from is not None:
        assert not any(met for rate, met in drawn.items() if rate >= found.missed_from)


def test_without_an_edge_one_side_is_open_and_the_search_ends() -> None:
    never = highest_rate(lambda rate: False, start=1.0)
    always = highest_rate(lambda rate: True, start=1.0)
    assert never.met_to is None
    assert never.missed_from == min(never.asked)
    assert always.missed_from is None
    assert always.met_to == max(always.asked) >= 2**16
    assert max(len(never.asked), len(always.asked)) < 30


@given(least=st.integers(1, 500), start=st.integers(1, 600))
def test_the_fewest_count_is_exact_where_the_answers_are_monotone(least: int, start: int) -> None:
    found = fewest(lambda count: count >= least, start=start)
    assert found.met_from == least
    assert found.missed_to == (least - 1 or None)
    assert len(found.asked) < 2 * math.log2(max(least, start)) + 8


def test_a_count_that_contradicts_widens_the_edge() -> None:
    found = fewest(lambda count: count >= 9 or count == 7, guard=3)
    assert (found.met_from, found.missed_to) == (9, 6)
    assert fewest(lambda count: False, most=50).met_from is None
    assert fewest(lambda count: True).missed_to is None


@pytest.mark.parametrize(("n", "low", "high", "coverage"), [(6, 1, 6, 0.96875), (9, 2, 8, 0.9609375)])
def test_the_interval_of_the_median_is_the_one_of_the_tables(n: int, low: int, high: int, coverage: float) -> None:
    found = rank_interval(n, 0.5, 0.95)
    assert (found.low, found.high) == (low, high)
    assert found.coverage == pytest.approx(coverage)


@pytest.mark.parametrize(("n", "quantile"), [(6, 0.5), (12, 0.5), (40, 0.1), (29, 0.9)])
def test_the_interval_contains_the_quantile_as_often_as_it_says(n: int, quantile: float) -> None:
    found = rank_interval(n, quantile, 0.9)
    values = np.sort(np.random.default_rng(1).random((20_000, n)), axis=1)
    held = (values[:, found.low - 1] <= quantile) & (quantile <= values[:, found.high - 1])
    assert found.coverage >= 0.9
    assert held.mean() == pytest.approx(found.coverage, abs=0.01)


def test_too_few_values_say_how_many_it_takes() -> None:
    with pytest.raises(InputError, match=r"repeats = 5: too few for an interval of 0.95 confidence; it takes 6"):
        rank_interval(5, 0.5, 0.95)
    with pytest.raises(InputError, match="it takes 29"):
        rank_interval(6, 0.1, 0.95)
    with pytest.raises(InputError, match="between 0 and 1"):
        rank_interval(6, 0.5, 95)

"""Records on a grid of time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from kvrm_analysis.drawing.series import (
    arrivals_per_bin,
    bursts,
    grid_of,
    mean_per_bin,
    typical_itl_s,
    typical_ttft_s,
    worst_itl_s,
    worst_ttft_s,
)
from tests.analysis.made_up_runs import ARRIVALS, SPAN_S, made_up_run
from tests.sim.run_arrays import S


@pytest.mark.parametrize("end_s", [0.001, 1.0, 99.0, 100.0, 923.0, 3501.7, 1e6])
def test_a_grid_has_round_bins_that_cover_the_time(end_s: float) -> None:
    grid = grid_of(end_s)
    assert float(f"{grid.width_s:e}"[:3]) in (1.0, 2.0, 5.0)
    assert grid.count <= 121
    assert end_s <= grid.end_s * (1 + 1e-9)
    assert len(grid.edges_s) == grid.count + 1


def table(times_ns: list[int], **columns: list[int] | list[int | None]) -> pa.Table:
    return pa.table({"end_ns": times_ns, "arrival_ns": times_ns, **columns})


def test_latency_bins_hold_the_median_and_the_worst_and_gaps_stay_open() -> None:
    grid = grid_of(100.0)
    times = [0, S // 2, S // 3, 2 * S]
    steps = table(times, itl_p50_ns=[1, 3, 2, None], itl_p99_ns=[10, 30, 20, None], gaps=[5, 5, 5, 0])
    assert typical_itl_s(steps, grid)[0] == 2e-9
    few_long = table(times, itl_p50_ns=[1, 3, 2, None], gaps=[50, 5, 5, 0])
    assert typical_itl_s(few_long, grid)[0] == 1e-9  # most tokens came in the first window
    assert np.isnan(typical_itl_s(steps, grid)[1:]).all()
    assert worst_itl_s(steps, grid)[0] == 30e-9
    assert np.isnan(worst_itl_s(steps, grid)[1:]).all()
    requests = table([0, 0, S], first_token_ns=[5, 7, None])
    assert typical_ttft_s(requests, grid)[0] == 5e-9  # nearest rank
    assert worst_ttft_s(requests, grid)[0] == 7e-9
    assert np.isnan(worst_ttft_s(requests, grid)[1])


def test_memory_is_the_mean_of_a_bin_and_nothing_where_nothing_ran() -> None:
    grid = grid_of(100.0)
    held = mean_per_bin(table([0, S // 2, 5 * S], used_tokens=[10, 20, 7]), grid, "used_tokens")
    assert held[0] == 15
    assert held[5] == 7
    assert held.sum() == 22


def test_memory_of_a_cluster_is_the_sum_of_each_replicas_mean() -> None:
    grid = grid_of(100.0)
    steps = table([0, S // 2, S // 3, 5 * S], used_tokens=[10, 20, 100, 7], replica=[0, 0, 2, 1])
    held = mean_per_bin(steps, grid, "used_tokens")
    assert held[0] == 15 + 100
    assert held[5] == 7
    assert held.sum() == 122


def test_arrivals_are_the_same_from_requests_and_from_steps() -> None:
    run = made_up_run("static")
    grid = grid_of(float(SPAN_S))
    from_requests = arrivals_per_bin(run, grid)
    from_steps = arrivals_per_bin(dataclasses.replace(run, requests=None), grid)
    assert from_requests.tolist() == ARRIVALS.tolist()
    assert from_steps.tolist() == ARRIVALS.tolist()


def test_bursts_are_found_where_they_are() -> None:
    assert bursts(ARRIVALS.astype(np.float64), SPAN_S) == [(30, 33), (70, 72)]
    assert bursts(np.random.default_rng(0).poisson(6, 100).astype(np.float64), 100) == []
    assert bursts(np.zeros(10), 10) == []
    assert bursts(np.zeros(0), 0) == []

from __future__ import annotations

import numpy as np
import pytest

from kvrm_analysis.latencies import LATENCIES, cdf_of, cdf_of_counts, request_latencies_s
from kvrm_sim.columns import request_table
from kvrm_sim.meters import BUCKETS, bucket_of
from kvrm_sim.state import NONE, OUT
from tests.analysis.small_runs import replayed


def test_each_is_as_defined_and_absent_where_it_did_not_happen() -> None:
    out = np.zeros(3, OUT)
    out["arrival_ns"] = 10
    out["admitted_ns"] = [20, 30, NONE]
    out["first_token_ns"] = [110, 50, NONE]
    out["finish_ns"] = [410, 50, NONE]
    out["delivered"] = [4, 1, 0]
    table = request_table(out)
    assert request_latencies_s(table, "queue_s").tolist() == [10e-9, 20e-9]
    assert request_latencies_s(table, "ttft_s") == pytest.approx([100e-9, 40e-9])
    assert request_latencies_s(table, "tpot_exclusive_s").tolist() == [100e-9]
    assert request_latencies_s(table, "tpot_inclusive_s").tolist() == [100e-9]
    assert request_latencies_s(table, "e2e_s") == pytest.approx([400e-9, 40e-9])
    assert request_latencies_s(table, "normalized_latency_s") == pytest.approx([100e-9, 40e-9])


def test_they_are_those_of_the_summary(tmp_path_factory: pytest.TempPathFactory) -> None:
    run = replayed(tmp_path_factory.mktemp("runs") / "run", "graph-paged")
    assert run.requests is not None
    for latency in LATENCIES:
        values = request_latencies_s(run.requests, latency.key)
        summary = run.summary[latency.key]
        assert len(values) == summary["n"]
        assert values.mean() == pytest.approx(summary["mean"])
        assert np.sort(values)[-(-99 * len(values) // 100) - 1] == pytest.approx(summary["p99"], rel=1e-3)


@pytest.mark.parametrize("n", [1, 7, 400, 401, 50_000])
def test_a_distribution_keeps_its_ends_and_is_exact_where_it_has_points(n: int) -> None:
    values = np.random.default_rng(n).permutation(np.arange(n, dtype=np.float64))
    cdf = cdf_of(values)
    assert cdf.n == n
    assert len(cdf.value) <= 400
    assert cdf.value[-1] == n - 1
    assert cdf.share[-1] == 1.0
    assert cdf.share == pytest.approx((cdf.value + 1) / n)


def test_the_distribution_of_nothing_is_empty() -> None:
    assert cdf_of(np.zeros(0)).n == 0
    assert len(cdf_of_counts(np.zeros(BUCKETS, np.int64)).share) == 0


def test_counts_in_buckets() -> None:
    counts = np.zeros(BUCKETS, np.int64)
    counts[bucket_of(1_000_000)] = 3
    counts[bucket_of(5_000_000)] = 1
    cdf = cdf_of_counts(counts)
    assert cdf.value == pytest.approx([1e-3, 5e-3], rel=1e-3)
    assert cdf.share.tolist() == [0.75, 1.0]

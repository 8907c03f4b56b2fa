"""`kvrm.capacity` beside fine grids of plain replays: same realisations, and fresh ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvrm
from kvrm.capacities import Find
from kvrm.main import run_command
from kvrm_analysis.engines.replicas import replica_config
from kvrm_analysis.searches.capacity import Capacity
from kvrm_analysis.searches.capacity_text import table
from kvrm_sim.engine import run
from kvrm_sim.errors import InputError
from kvrm_traces import Trace, TraceError
from tests.cli.cli_process import kvrm as command
from tests.traces.rows import csv_of, written

SLO = "ttft_p90 <= 1s"
ROWS = 300


@cache
def trace(seed: int) -> Trace:
    return kvrm.open_trace("azure-conv-like", rows=ROWS, seed=seed)


@cache
def meets(seed: int, rate: float) -> bool:
    """A plain replay, judged here."""
    found = run(trace(seed).at_rate(rate), replica_config("graph-paged", {}), keep=False).summary
    return not found["overloaded"] and found["ttft_s"]["p90"] <= 1.0


@pytest.fixture(scope="module")
def found() -> kvrm.Capacities:
    return kvrm.capacity(trace, ["graph-paged"], slo=SLO)


def test_each_edge_agrees_with_a_fine_grid_of_its_realisation(found: kvrm.Capacities) -> None:
    """In steps of half a percent: every rate up to the edge is met, and every one from its other end on is missed."""
    for seed, (met_to, missed_from) in list(enumerate(found.found[0].edges))[:3]:
        assert met_to is not None
        assert missed_from is not None
        assert missed_from / met_to < 1.15
        below = met_to * 1.005 ** -np.arange(12)
        above = missed_from * 1.005 ** np.arange(12)
        assert all(meets(seed, rate) for rate in below)
        assert not any(meets(seed, rate) for rate in above)


@pytest.mark.long
def test_the_capacity_agrees_with_a_fine_grid_of_fresh_realisations_within_its_confidence(
    found: kvrm.Capacities,
) -> None:
    """The rate that half of 12 other realisations meet, in steps of 3%, lies in the interval."""
    (capacity,) = found.found
    assert capacity.interval is not None
    assert capacity.coverage == pytest.approx(0.96875)
    low, high = capacity.interval
    assert low is not None
    assert high is not None
    assert low <= (capacity.at or 0) <= high
    seeds = range(100, 112)
    grid = low * 0.9 * 1.03 ** np.arange(20)
    shares = [np.mean([meets(seed, rate) for seed in seeds]) for rate in grid if rate < high * 1.1]
    half = grid[max(at for at, share in enumerate(shares) if share >= 0.5)]
    assert low / 1.03 <= half <= high * 1.03


def test_the_fewest_replicas_are_what_counting_up_finds() -> None:
    traces = [trace(seed).at_rate(25.0) for seed in range(6)]

    def served(of: Trace, replicas: int) -> bool:
        summary = kvrm.replay(of, "graph-paged", keep=False, cluster=replicas).summary
        return not summary["overloaded"] and summary["ttft_s"]["p90"] <= 1.0

    counted = sorted(next(count for count in range(1, 12) if served(of, count)) for of in traces)
    found = kvrm.capacity(trace, ["graph-paged"], slo=SLO, find="replicas", offered_per_s=25.0)
    (capacity,) = found.found
    assert sorted(met_from or 0 for _, met_from in capacity.edges) == counted
    assert all((missed_to or 0) + 1 == met_from for missed_to, met_from in capacity.edges)
    assert found.to_dict()["capacities"][0]["edges"] == [list(edge) for edge in capacity.edges]
    assert capacity.at == counted[2]
    assert capacity.interval == (counted[0], counted[5])
    assert found.offered_per_s == 25.0


def test_the_edges_of_replicas_are_counts_that_met() -> None:
    """5 met nowhere: it is no edge; where a realisation was never met, the greatest is open."""
    of = Capacity("kv-rm", 6, (6, 8), 0.97, ((5, 6), (7, 8)), 0, ((), ()))
    assert table([of], "replicas", 0)[1].count("6 to 8") == 2, "the interval, and the edges"
    assert "6 to open" in table([replace(of, edges=((5, 6), (256, None)))], "replicas", 0)[1]


def test_replicas_are_told_in_gpus_too() -> None:
    trace = kvrm.open_trace("chat-burst", rows=120)
    asked: dict[str, Any] = {"slo": "itl_p50 <= 160ms", "repeats": 1, "tensor_parallel": 2}
    found = kvrm.capacity(trace, ["graph-paged"], find="replicas", **asked)
    head, row, note, *_ = found.to_text().splitlines()[1:]
    told = dict(zip(head.split()[:3], row.split()[:3], strict=True))
    assert int(told["GPUs"]) == 2 * int(told["replicas"])
    assert note == "GPUs: replicas x 2 (--tp)"
    assert "a replica is 2 GPUs (--tp)" in kvrm.capacity(trace, ["graph-paged"], **asked).to_text().splitlines()
    never = Capacity("kv-rm", None, (None, None), 0.97, ((256, None),), 0, ((), ()))
    assert table([never], "replicas", 0, 2)[1].split()[1:3] == ["none", "none"]


@pytest.mark.parametrize("find", ["rate", "replicas"])
def test_a_load_that_is_rejected_is_not_met(find: Find) -> None:
    """Nearly all requests are over the limit, and the few others are fast at any rate."""
    with pytest.raises(InputError, match=r"graph-paged: 2\d\d of 300 requests are rejected at any load, .*over-limit"):
        kvrm.capacity(trace, ["graph-paged"], slo=SLO, find=find, repeats=1, max_context_tokens=300)


def test_up_to_1_percent_of_the_requests_may_be_over_the_limit_and_are_counted(tmp_path: Path) -> None:
    rows = [(50 * at + 7 * (at % 5), 900 if at else 6000, 40) for at in range(200)]
    path = written(tmp_path, csv_of(*rows))
    found = kvrm.capacity(path, ["graph-paged"], slo="e2e_p90 <= 4s", repeats=1, max_context_tokens=4096)
    assert found.found[0].at is not None
    assert "rejected: 1 of 200 requests never served" in found.to_text()


def test_a_percentile_of_too_few_requests_is_an_error() -> None:
    def short(seed: int) -> Trace:
        return kvrm.open_trace("azure-conv-like", rows=60, seed=seed)

    with pytest.raises(InputError, match=r"too few requests for ttft_p99 \(n = 60; it takes 100\) at a load of"):
        kvrm.capacity(short, ["graph-paged"], slo="ttft_p99 <= 1s", repeats=1)
    assert kvrm.capacity(short, ["graph-paged"], slo="ttft_p90 <= 1s", repeats=1).found[0].at is not None


def test_a_file_is_resampled_and_one_repeat_is_the_trace_alone(tmp_path: Path) -> None:
    rows = [(50 * at + 7 * (at % 5), 900 + 300 * (at % 7), 40 + at % 90) for at in range(200)]
    path = written(tmp_path, csv_of(*rows))
    many = kvrm.capacity(path, ["graph-paged"], slo="e2e_p90 <= 4s")
    one = kvrm.capacity(path, ["graph-paged"], slo="e2e_p90 <= 4s", repeats=1)
    assert many.realisations == "6 draws from the recorded trace, in stretches"
    assert one.realisations == "this trace alone"
    assert one.found[0].interval is None
    assert many.found[0].interval is not None
    assert one.to_dict()["capacities"][0]["coverage"] is None


def test_what_cannot_be_answered_is_said(tmp_path: Path) -> None:
    never = kvrm.capacity(trace, ["graph-paged"], slo="itl_p50 <= 1us", repeats=1)
    assert never.found[0].at is None
    assert "itl_p50 <= 0.001 ms is not met at any load that was tried" in never.to_text()
    with pytest.raises(InputError, match=r"repeats = 3: too few for an interval of 0.95 confidence; it takes 6"):
        kvrm.capacity(trace, ["graph-paged"], slo=SLO, repeats=3)
    with pytest.raises(InputError, match="cached_kv_mean has no value at a load of"):
        kvrm.capacity(trace, ["graph-paged"], slo="cached_kv_mean <= 1GiB", repeats=1)
    with pytest.raises(InputError, match="chooses their number"):
        kvrm.capacity(trace, ["graph-paged"], slo=SLO, find="replicas", cluster=2)
    at_once = written(tmp_path, csv_of((0, 5, 5), (0, 5, 5)))
    with pytest.raises((InputError, TraceError), match="at one instant"):
        kvrm.capacity(at_once, ["graph-paged"], slo=SLO, repeats=1)


def test_the_command_prints_the_table_writes_the_figure_and_refuses_what_it_ignores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ("capacity", "azure-conv-like", "--rows", str(ROWS), "--policy", "graph-paged", "--repeats", "1")
    out = tmp_path / "cap"
    done = command(*usual, "--slo", SLO, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "highest rate with ttft_p90 <= 1 s" in done.stdout
    assert {path.name for path in out.iterdir()} == {"capacity.png", "capacity.svg", "summary.json"}
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert f"{summary['capacities'][0]['capacity']:.3f}" in done.stdout
    for wrong, message in (
        (("--slo", SLO, "--rate", "5"), "the rate is what is searched for"),
        (("--slo", SLO, "--fewest-replicas", "--cluster", "2"), "chooses their number"),
        (("--slo", "ttft_p95 <= 1s"), "'ttft_p95' is no figure of a run; did you mean"),
        (("--slo", "ttft_p90 <= 1"), "1 of what? Write 50ms"),
    ):
        assert run_command([*usual, *wrong]) == 2
        stderr = capsys.readouterr().err
        assert message in stderr
        assert stderr.count("kvrm: ") == 1

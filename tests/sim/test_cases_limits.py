"""Requests over the model's limit, and records whose number does not grow with the steps (cases A, F)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvrm_sim.config import OverLimit, ReplicaConfig
from kvrm_sim.engine import Driver, run
from kvrm_sim.errors import InputError
from kvrm_sim.records import load_run
from kvrm_sim.result import RunResult
from tests.sim.small_replays import S, tiny, trace_of

DRIVERS: tuple[Driver, ...] = ("span", "events")
#: 9000 in and 500 out on a limit of 8192; 8000 in and 500 out; one that fits.
ROWS = [(0, 9000, 500), (S, 8000, 500), (2 * S, 100, 10)]


def limited(over_limit: OverLimit) -> ReplicaConfig:
    return ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm", over_limit=over_limit)


def ended(result: RunResult) -> dict[int, tuple[str, str, int]]:
    table = result.requests.to_pylist()
    return {row["row"]: (row["outcome"], row["reason"], row["delivered_tokens"]) for row in table}


@pytest.mark.parametrize("driver", DRIVERS)
def test_requests_over_the_limit_are_dropped_cut_or_an_error_as_was_said(driver: Driver, tmp_path: Path) -> None:
    """A13: one rule, chosen by name and counted; the run names the model, its limit and the engine that is modelled."""
    trace = trace_of(tmp_path, *ROWS)
    dropped = run(trace, limited("reject"), driver=driver)
    over = ("rejected", "over_limit", 0)
    assert ended(dropped) == {0: over, 1: over, 2: ("completed", "trace_end", 10)}
    assert dropped.summary["counts"] == {
        "injected": 3, "completed": 1, "rejected": 2, "truncated": 0, "unfinished": 0
    }  # fmt: skip
    assert any(line.startswith("rejected: 2 of 3 requests") for line in dropped.warnings)
    cut = run(trace, limited("truncate"), driver=driver)
    assert ended(cut) == {0: over, 1: ("truncated", "context_limit", 192), 2: ("completed", "trace_end", 10)}
    assert any(line.startswith("truncated: 1 of 3 requests") for line in cut.warnings)
    with pytest.raises(InputError, match=r"request 0 .*9500 tokens, over the limit of 8192"):
        run(trace, limited("error"), driver=driver)
    assert cut.config.limit_tokens == 8192
    assert (cut.summary["policy"], cut.summary["model"]) == ("graph-paged", "llama-3-8b")


@pytest.mark.parametrize("driver", DRIVERS)
def test_records_are_summed_as_time_passes_and_their_rate_is_a_setting(driver: Driver, tmp_path: Path) -> None:
    """F06: ten thousand steps leave a record a window, or a step where that is asked for; the pool some two hundred."""
    trace = trace_of(tmp_path, *[(at * S, 10, 101) for at in range(100)])
    found: dict[float, dict[str, Any]] = {}
    for window_s in (0.0, 1.0, 10.0):
        folder = tmp_path / f"{driver}-{window_s:g}"
        summary = run(trace, tiny("dynamic", step_ns=1e7, window_s=window_s), out=folder, driver=driver).summary
        written = load_run(folder)
        assert sum(written.steps["steps"].to_pylist()) == summary["sim"]["steps"]
        found[window_s] = {"steps": written.steps.num_rows, "pool": written.pool.num_rows}
    steps = summary["sim"]["steps"]
    assert found[0.0]["steps"] == steps > 9000
    assert found[1.0]["steps"] <= 102
    assert found[10.0]["steps"] <= 11
    assert {kept["pool"] for kept in found.values()} <= set(range(150, 205))

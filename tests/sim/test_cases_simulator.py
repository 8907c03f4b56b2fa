"""Faults that simulators had themselves: hidden timeouts, lost requests, first lives, short clocks (cases E)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvrm_sim import state as st
from kvrm_sim.engine import Driver, run
from kvrm_sim.result import RunResult
from tests.sim.small_replays import S, core, free_blocks, outcomes, paged, times, tiny, total, trace_of

DRIVERS: tuple[Driver, ...] = ("span", "events")


@pytest.mark.core
def test_no_hidden_timeout_drops_requests_that_wait_long() -> None:
    """E01: 1024 at once on blocks for 68: all complete, however long they wait, and the rate is that of 68 rows."""
    # 16 + 17 tokens: 2 blocks each at their end. A row is admitted with 1 block, so 68 slots hold them back.
    config = paged(pool_blocks=2 * 68, slots=68, prefill="none")
    at_once = 1024 if core_is_compiled() else 68 * 2
    run_ = core(config, *[(0, 16, 17)] * at_once, costs={"host_step_ns": 5.0 * S})
    assert [row.outcome for row in run_.rows] == ["completed"] * at_once
    batches = -(-at_once // 68)
    assert total(run_, "last_finish_ns") == batches * 17 * 5 * S
    assert times(run_, st.H_QUEUE)[3] == (batches - 1) * 17 * 5 * S, "the longest wait: 1275 s for 1024"
    assert total(run_, "delivered_tokens") == at_once * 17


def core_is_compiled() -> bool:
    from kvrm_sim.compiled import MODE

    return MODE != "interpreted"


@pytest.mark.core
def test_requests_that_are_not_finished_at_the_stop_have_their_row() -> None:
    """E02: 10 injected, 6 done at the stop: 10 rows, 4 of them unfinished, with the tokens they had."""
    run_ = core(paged(slots=1), *[(0, 5, 2)] * 10, until_ns=13 * S)
    assert outcomes([row.__dict__ for row in run_.rows]) == {
        "completed": 6, "rejected": 0, "truncated": 0, "unfinished": 4
    }  # fmt: skip
    assert [(row.row, row.delivered, row.finish_ns) for row in run_.rows[6:]] == [
        (6, 1, None), (7, 0, None), (8, 0, None), (9, 0, None)
    ]  # fmt: skip
    assert [row.reason for row in run_.rows[6:]] == ["stopped"] * 4


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_stopped_run_accounts_for_every_request(driver: Driver, tmp_path: Path) -> None:
    """E02, A22: the same through the engine: nothing vanishes, and the audit line says so."""
    trace = trace_of(tmp_path, *[(0, 5, 2)] * 10)
    config = tiny("dynamic", step_ns=S, overrides={"schedule.slots": 1})
    result = run(trace, config, driver=driver, stop_at_s=13)
    assert result.requests.num_rows == 10
    assert result.summary["counts"] == {
        "injected": 10, "completed": 6, "rejected": 0, "truncated": 0, "unfinished": 4
    }  # fmt: skip
    assert result.summary["audit"] == "injected 10 = 6 completed + 0 rejected + 0 truncated + 4 unfinished"
    assert any(line.startswith("unfinished: 4 of 10") for line in result.warnings)


@pytest.mark.core
def test_a_preempted_request_keeps_its_first_token_and_shows_the_gap() -> None:
    """E03: first token at 1, preempted at 2, resumed at 5, end at 10: TTFT 1, E2E 10, and a gap of 4 s in ITL."""
    config = paged(pool_blocks=8, block_size_tokens=1)
    run_ = core(config, (0, 4, 5), (0, 2, 7))
    victim = run_.rows[1]
    assert (victim.arrival_ns, victim.first_token_ns, victim.finish_ns) == (0, 1 * S, 10 * S)
    assert (victim.admitted_ns, victim.preemptions, victim.recomputed_tokens) == (0, 1, 3)
    admissions = [step["start_ns"] for step in run_.steps if step["admitted"]]
    preemptions = [step["start_ns"] for step in run_.steps if step["preempted"]]
    assert (admissions, preemptions) == ([0, 5 * S], [2 * S])
    # The other: 1, 2, 3, 4, 5 s. The victim: 1, 2, then 6, 7, 8, 9, 10 s.
    assert times(run_, st.H_ITL) == (4 + 6, (4 * 1 + 1 + 4 + 4 * 1) * S, 1 * S, 4 * S)
    assert times(run_, st.H_TTFT) == (2, 2 * S, S, S)
    assert times(run_, st.H_E2E) == (2, 15 * S, 5 * S, 10 * S)


@pytest.mark.parametrize("policy", ["static", "dynamic", "graph-paged", "kv-rm", "kv-rm-delta", "orca-oracle"])
def test_time_to_first_token_is_the_prefill_and_nothing_else(policy: str, tmp_path: Path) -> None:
    """E04: one request that waits for nobody: TTFT is its prefill step, whose parts add up, without a transfer."""
    result = run(trace_of(tmp_path, (0, 100, 3)), tiny(policy, window_s=0.0))
    (request,) = result.requests.to_pylist()
    first, *others = result.steps.to_pylist()
    assert request["admitted_ns"] == request["arrival_ns"] == 0
    assert first["prefill_tokens"] == 100
    assert sum(first[f"{part}_exposed_ns"] for part in st.PARTS) == request["first_token_ns"] == first["end_ns"]
    assert first["transport_busy_ns"] == first["transport_exposed_ns"] == 0
    for step in others:
        assert sum(step[f"{part}_exposed_ns"] for part in st.PARTS) == step["end_ns"] - step["start_ns"]
    summary = result.summary
    assert summary["ttft_s"]["max"] * 1e9 == pytest.approx(request["first_token_ns"], abs=1)
    assert summary["queue_s"]["max"] == 0.0


@pytest.mark.parametrize("driver", DRIVERS)
def test_delays_beyond_32_bits(driver: Driver, tmp_path: Path) -> None:
    """E08: a gap of 2,147,483,648 ns, one of hours, and steps of 3 s: exact, and no more steps than tokens."""
    gaps = [0, 2**31, 2**31 + 1, 2**44]
    trace = trace_of(tmp_path, *[(at, 4, 2) for at in gaps])
    result = run(trace, tiny("dynamic", step_ns=3e9), driver=driver)
    rows = {row["row"]: row for row in result.requests.to_pylist()}
    # The second and third arrive in the first one's first step and join at its end.
    assert [rows[row]["admitted_ns"] for row in range(4)] == [0, 3 * S, 3 * S, 2**44]
    assert [rows[row]["finish_ns"] for row in range(4)] == [6 * S, 9 * S, 9 * S, 2**44 + 6 * S]
    assert result.summary["sim"]["steps"] == 5


def requests_in_order(result: RunResult) -> list[dict[str, Any]]:
    return sorted(result.requests.to_pylist(), key=lambda row: row["row"])


@pytest.mark.parametrize("policy", ["static", "graph-paged", "kv-rm", "orca-pow2"])
def test_times_of_a_request_are_in_order_and_blocks_come_back(policy: str, tmp_path: Path) -> None:
    """E09: arrival ≤ admission ≤ first token ≤ finish for each request, the clock never goes back, all is conserved."""
    rows = [(at * 300_000, 1 + at * 37 % 500, 1 + at * 11 % 90) for at in range(80)]
    result = run(trace_of(tmp_path, *rows), tiny(policy, pool_blocks=128, window_s=0.0))
    for row in requests_in_order(result):
        assert row["outcome"] == "completed"
        assert row["arrival_ns"] <= row["admitted_ns"] < row["first_token_ns"] <= row["finish_ns"]
        assert row["delivered_tokens"] == row["output_tokens"]
    steps = result.steps.to_pylist()
    assert all(one["end_ns"] <= two["start_ns"] for one, two in pairwise(steps))
    assert sum(step["delivered_tokens"] for step in steps) == sum(row[2] for row in rows)
    assert result.summary["itl_s"]["n"] == sum(row[2] - 1 for row in rows)
    assert result.pool.to_pylist()[-1]["allocated_blocks"] == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_running_twice_writes_the_same_bytes(driver: Driver, tmp_path: Path) -> None:
    """E09: requests, steps, pool and run.toml are the same bytes; the summary too, but for the machine's own times."""
    trace = trace_of(tmp_path, *[(at * 1_000_000, 30 + at, 20) for at in range(50)])
    for name in ("one", "two"):
        run(trace, tiny("kv-rm", pool_blocks=70), out=tmp_path / name, driver=driver)
    for file in ("requests.parquet", "steps.parquet", "pool.parquet", "run.toml"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    one, two = (json.loads((tmp_path / name / "summary.json").read_text())["runs"][0] for name in ("one", "two"))
    one.pop("sim"), two.pop("sim")
    assert one == two


@pytest.mark.core
def test_time_to_first_token_counts_from_arrival() -> None:
    """E13: service 4 s, one at a time, 10 at once: TTFT 4, 8, …, 40 s."""
    run_ = core(paged(slots=1), *[(0, 10, 1)] * 10, costs={"host_step_ns": 4.0 * S})
    assert [(row.first_token_ns or 0) - row.arrival_ns for row in run_.rows] == [4 * S * n for n in range(1, 11)]
    assert times(run_, st.H_TTFT) == (10, 220 * S, 4 * S, 40 * S)
    assert times(run_, st.H_QUEUE) == (10, 180 * S, 0, 36 * S)
    assert free_blocks(run_) == 100

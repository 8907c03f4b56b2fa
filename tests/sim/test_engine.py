"""`run` and its two drivers: the same bytes from both, each event at its time and in its order, nothing left behind."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvrm_sim import engine
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.derivation import parameters_of
from kvrm_sim.engine import run
from kvrm_sim.memory import plan_memory
from kvrm_traces import open_trace
from tests.sim.small_replays import Row, S, random_rows, tiny, trace_of

Seen = list[tuple[str, int, int]]
DRIVERS = ("span", "events")


def replayed(folder: Path, config: ReplicaConfig, *rows: Row, **kwargs: Any) -> Seen:
    """All that a hook sees of a replay."""
    seen: Seen = []
    hooks = (lambda kind, time_ns, row: seen.append((kind, time_ns, row)),)
    run(trace_of(folder, *rows), config, driver="events", hooks=hooks, **kwargs)
    return seen


FILES = ("requests.parquet", "steps.parquet", "pool.parquet")


POLICIES = (
    "static", "static-batch", "bucketed", "orca-max", "orca-pow2", "orca-oracle", "dynamic", "graph-paged", "kv-rm",
    "kv-rm-delta",
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("window_s", [0.0, 0.05])
def test_both_drivers_write_the_same_bytes(policy: str, window_s: float, tmp_path: Path) -> None:
    rng = random.Random(f"{policy} {window_s}")
    paged_ = policy in ("dynamic", "graph-paged", "kv-rm", "kv-rm-delta")
    for number in range(3):
        trace = trace_of(tmp_path, *random_rows(rng, 40), name=f"trace-{number}")
        config = tiny(
            policy,
            step_ns=rng.choice((None, 1e6)),
            overrides={"schedule.slots": rng.choice((2, 7))},
            pool_blocks=rng.choice((64, 70)) if paged_ else rng.choice((64, 200)),
            over_limit=rng.choice(("reject", "truncate")),
            window_s=window_s,
        )
        stop_at_s = rng.choice((None, None, 0.2))
        for driver in DRIVERS:
            run(trace, config, driver=driver, out=tmp_path / f"{driver}-{number}", stop_at_s=stop_at_s)
        for file in FILES:
            one, two = ((tmp_path / f"{driver}-{number}" / file).read_bytes() for driver in DRIVERS)
            assert one == two, f"{file} of trace {number} with stop {stop_at_s}"


def test_at_one_instant_finishes_come_before_arrivals_and_these_before_the_decision(tmp_path: Path) -> None:
    """F03: step end, free and arrival all at 1 s: finish, then arrival, then admission, into the slot just freed."""
    config = tiny("dynamic", step_ns=S, overrides={"schedule.slots": 1})
    seen = replayed(tmp_path, config, (0, 5, 1), (S, 5, 1), (S, 5, 1))
    assert seen == [
        ("arrive", 0, 0),
        ("admit", 0, 0),
        ("first_token", S, 0),
        ("finish", S, 0),
        ("arrive", S, 1),
        ("arrive", S, 2),
        ("admit", S, 1),
        ("first_token", 2 * S, 1),
        ("finish", 2 * S, 1),
        ("admit", 2 * S, 2),
        ("first_token", 3 * S, 2),
        ("finish", 3 * S, 2),
    ]


def test_every_event_of_a_preempted_request_comes_at_its_time(tmp_path: Path) -> None:
    config = tiny("dynamic", step_ns=S, pool_blocks=20, overrides={"schedule.slots": 2})
    seen = replayed(tmp_path, config, (0, 160, 160), (0, 160, 160), (0, 1000, 100))
    of_the_victim = [(kind, time_ns // S) for kind, time_ns, row in seen if row == 1]
    assert of_the_victim == [
        ("arrive", 0),
        ("admit", 0),
        ("first_token", 1),
        ("preempt", 1),
        ("admit", 160),
        ("finish", 160 + 159),
    ]
    assert [(kind, time_ns) for kind, time_ns, row in seen if row == 2] == [("arrive", 0), ("reject", 0)]
    assert [time_ns for _, time_ns, _ in seen] == sorted(time_ns for _, time_ns, _ in seen)


@pytest.mark.parametrize("at", [0, S // 2, S, 5 * S], ids=["at the start", "in flight", "at a step's end", "idle"])
def test_a_refusal_comes_after_its_arrival(at: int, tmp_path: Path) -> None:
    """F03: whatever the replica does when a request arrives that it cannot serve, the order of events is the same."""
    config = tiny("dynamic", step_ns=S, pool_blocks=20)
    seen = replayed(tmp_path, config, (0, 16, 1), (at, 1000, 10), (at, 16, 1))
    assert [(kind, time_ns) for kind, time_ns, row in seen if row == 1] == [("arrive", at), ("reject", at)]
    kinds = [kind for kind, time_ns, row in seen if time_ns == at and row > 0]
    assert kinds[:3] == ["arrive", "arrive", "reject"], "arrivals first"
    assert [time_ns for _, time_ns, _ in seen] == sorted(time_ns for _, time_ns, _ in seen)


def test_hooks_need_the_events_driver(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="driver='events'"):
        run(trace_of(tmp_path, (0, 5, 2)), tiny("dynamic"), hooks=(lambda kind, time_ns, row: None,))


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interrupt_leaves_nothing(driver: Any, tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *[(n * S, 5, 2) for n in range(50)])
    before = sorted(tmp_path.iterdir())

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(trace, tiny("dynamic", step_ns=S), out=tmp_path / "runs" / "one", driver=driver, progress=interrupt)
    assert sorted(tmp_path.iterdir()) == before


def test_a_hook_that_fails_leaves_nothing(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, (0, 5, 2))

    def hook(kind: str, time_ns: int, row: int) -> None:
        if kind == "finish":
            raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        run(trace, tiny("dynamic"), out=tmp_path / "one", driver="events", hooks=(hook,))
    assert [path.name for path in tmp_path.iterdir()] == ["small.parquet"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_progress_ends_at_one(driver: Any, tmp_path: Path) -> None:
    shares: list[float] = []
    run(trace_of(tmp_path, (0, 5, 2), (S, 5, 2)), tiny("dynamic"), driver=driver, progress=shares.append)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert min(shares) >= 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_stop_before_the_first_arrival_ends_leaves_it_unfinished(driver: Any, tmp_path: Path) -> None:
    """A22: what had not arrived is not reported as a request; a caveat says that it was left out."""
    rows = [(0, 5, 5), (S, 5, 5), (100 * S, 5, 5)]
    result = run(trace_of(tmp_path, *rows), tiny("dynamic", step_ns=S), driver=driver, stop_at_s=3)
    found = [(row["row"], row["outcome"], row["delivered_tokens"]) for row in result.requests.to_pylist()]
    assert sorted(found) == [(0, "unfinished", 3), (1, "unfinished", 2)]
    assert "stopped: 1 of 3 requests of the trace had not arrived" in result.warnings


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_a_stop_during_a_step_counts_who_arrived_before_it(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However arrivals are cut: those at the stop itself too, those after it not."""
    whole = engine.arrival_chunks
    monkeypatch.setattr(engine, "arrival_chunks", lambda trace, with_ids: whole(trace, rows, with_ids=with_ids))
    trace = trace_of(tmp_path, *[(at * S, 5, 3) for at in (0, 1, 2, 5, 6)])
    result = run(trace, tiny("dynamic", step_ns=10 * S), stop_at_s=5)
    assert sorted(result.requests["row"].to_pylist()) == [0, 1, 2, 3]
    assert result.summary["counts"]["unfinished"] == 4


def test_results_read_alike_from_memory_and_from_the_folder(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *[(n * 1_000_000, 20, 9) for n in range(30)])
    kept = run(trace, tiny("kv-rm"))
    written = run(trace, tiny("kv-rm"), out=tmp_path / "run")
    assert kept.requests.equals(written.requests)
    assert kept.steps.equals(written.steps)
    assert kept.pool.equals(written.pool)
    assert ReplicaConfig.from_file(tmp_path / "run" / "run.toml") == tiny("kv-rm")


def test_parameters_of_the_engine_are_those_of_the_plan() -> None:
    config = tiny("kv-rm", pool_blocks=77)
    p = parameters_of(config, plan_memory(config), span_ns=10 * S).record[0]
    assert (p.pool_blocks, p.block_size, p.limit_tokens, p.table_width) == (77, 16, 1024, 64)
    assert (p.steady_from_ns, p.steady_until_ns) == (S, 10 * S)
    assert p.log_events == 0
    assert parameters_of(config, plan_memory(config), span_ns=None).record[0].steady_until_ns == st.NEVER


def test_run_toml_says_what_was_run_and_reads_back_as_the_configuration(tmp_path: Path) -> None:
    """DESIGN section 7: whole configuration, versions, trace hash; also what was done to the trace before the run."""
    trace = open_trace("azure-conv-like", rows=60).limit(30).speedup(2.0)
    run(trace, tiny("kv-rm"), out=tmp_path / "run", stop_at_s=1.0)
    found = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert found["trace"]["sha256"] == trace.info.sha256
    assert found["trace"]["rows"] == 30
    assert found["trace"]["transforms"] == "limit 30, speedup 2"
    assert found["run"]["stop_at_s"] == 1.0
    assert {"driver", "python", "kvrm", "numba", "numpy"} <= set(found["run"])
    assert ReplicaConfig.from_file(tmp_path / "run" / "run.toml") == tiny("kv-rm")

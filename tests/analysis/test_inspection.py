"""A stretch of a run watched again: the same run, the same counts, and nothing of another one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kvrm
from kvrm_analysis.inspection import CACHED, FREE, SHARED, Stretch, gap_counts, inspect
from kvrm_analysis.recorded import recorded
from kvrm_analysis.runs import NamedRun, open_runs
from kvrm_sim.errors import InputError, RunError
from tests.analysis.small_runs import replayed


def watched(run: NamedRun, start_s: float = 20.0, end_s: float = 60.0) -> Stretch:
    return inspect(recorded(run), start_s, end_s, batch=True, pool_samples=40)


@pytest.fixture(scope="module")
def by_step(tmp_path_factory: pytest.TempPathFactory) -> NamedRun:
    return replayed(tmp_path_factory.mktemp("runs") / "paged", "kv-rm", window_s=0.0)


def test_its_steps_and_endings_are_the_recorded_ones(by_step: NamedRun) -> None:
    seen = watched(by_step)
    end_ns = by_step.steps["end_ns"].to_numpy()
    inside = np.flatnonzero((end_ns >= 20e9) & (end_ns <= 60e9))
    assert seen.steps.num_rows > 100
    assert seen.steps.equals(by_step.steps.take(inside))
    ended = seen.requests.to_pandas()
    for kind, outcome, time in (("finish", "completed", "finish_ns"), ("reject", "rejected", "arrival_ns")):
        events = seen.events.to_pandas().query(f"kind == '{kind}'")
        done = ended.query(f"outcome == '{outcome}'")
        assert len(done) > 0
        assert events["row"].tolist() == done["row"].tolist()
        assert events["time_ns"].tolist() == done[time].tolist()


def test_a_batch_is_what_the_step_counts(by_step: NamedRun) -> None:
    seen = watched(by_step)
    assert seen.batch is not None
    of_step = seen.batch["step"]
    for column, chosen in (("decode_rows", seen.batch["slot"] >= 0), ("prefill_tokens", seen.batch["slot"] < 0)):
        weights = seen.batch["tokens"] * chosen
        counted = np.bincount(of_step, weights, minlength=seen.steps.num_rows)[: seen.steps.num_rows]
        assert counted.tolist() == seen.steps[column].to_pylist()


@pytest.mark.parametrize("policy", ["kv-rm", "static", "orca-pow2", "graph-paged"])
def test_the_map_holds_as_many_blocks_as_are_allocated(tmp_path: Path, policy: str) -> None:
    seen = watched(replayed(tmp_path / policy, policy))
    assert seen.pool is not None
    held = (seen.pool.owners >= 0).sum(axis=1)
    at = np.searchsorted(seen.steps["start_ns"].to_numpy(), seen.pool.times_ns)
    known = at < seen.steps.num_rows
    assert held.max() > 0
    assert held[known].tolist() == seen.steps["allocated_blocks"].to_numpy()[at[known]].tolist()
    assert not (seen.pool.written & (seen.pool.owners == FREE)).any()
    unwritten = ((seen.pool.owners >= 0) & ~seen.pool.written).sum() / held.sum()
    assert (unwritten > 0.3) == (policy in ("static", "orca-pow2"))


def test_shared_and_cached_blocks_are_told_apart(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 100 * at, "input_length": 1536, "output_length": 40, "hash_ids": [7, 8, 1000 + at]}
        for at in range(20)
    ]
    file = tmp_path / "turns.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    kvrm.replay(file, "graph-paged", out=tmp_path / "run", overrides={"pager.prefix_sharing": True})
    seen = inspect(recorded(open_runs([tmp_path / "run"])[0]), pool_samples=50)
    assert seen.pool is not None
    assert (seen.pool.owners == CACHED).any()
    assert (seen.pool.owners == SHARED).sum(axis=1).max() == 1024 // 16


def test_one_replica_of_a_cluster_is_watched_alone(tmp_path: Path) -> None:
    run = replayed(tmp_path / "cluster", "graph-paged", cluster=3, router="least-loaded", speedup=3.0)
    seen = inspect(recorded(run, replica=1))
    ended = run.requests.to_pandas().query("replica == 1")
    assert seen.requests["row"].to_pylist() == ended["row"].tolist()
    with pytest.raises(InputError, match="has 3 replicas: name one"):
        recorded(run)


def test_all_gaps_are_counted(by_step: NamedRun) -> None:
    assert gap_counts(recorded(by_step)).sum() == by_step.summary["itl_s"]["n"]


def test_another_run_is_refused(tmp_path: Path) -> None:
    run = replayed(tmp_path / "run", "graph-paged")
    assert run.folder is not None
    path = run.folder / "requests.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index("finish_ns")
    later = pc.add(table["finish_ns"], 1)
    pq.write_table(table.set_column(at, table.schema.field(at), later), path)
    with pytest.raises(RunError, match="simulated again it is another run"):
        watched(open_runs([run.folder])[0])


@pytest.mark.parametrize("stretch", [(50.0, 50.0), (-1.0, 5.0), (1e6, 2e6)])
def test_a_stretch_outside_the_run_is_refused(by_step: NamedRun, stretch: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="should be START < END within the run"):
        inspect(recorded(by_step), *stretch)


def test_the_trace_is_found_again_from_its_words(tmp_path: Path) -> None:
    trace = kvrm.open_trace("azure-conv-like", seed=3).window(10, 200.5).limit(120).replicas(2, 1).speedup(1 / 3)
    kvrm.replay(trace, "graph-paged", out=tmp_path / "run")
    found = recorded(open_runs([tmp_path / "run"])[0])
    assert found.trace.info.sha256 == trace.info.sha256
    assert found.trace.transforms == trace.transforms


def test_a_file_is_found_where_it_was_and_named_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,100,5\n1.5,80,9\n2.25,10,4\n", encoding="utf-8")
    kvrm.replay(file, "graph-paged", out=tmp_path / "run")
    (run,) = open_runs([tmp_path / "run"])
    assert inspect(recorded(run)).requests.num_rows == 3
    moved = file.rename(tmp_path / "moved.csv")
    with pytest.raises(InputError, match="is not there: name it where it is"):
        recorded(run)
    assert inspect(recorded(run, trace=kvrm.open_trace(moved))).requests.num_rows == 3
    with pytest.raises(InputError, match=r"has sha256 = .*: give the trace as it was replayed"):
        recorded(run, trace=kvrm.open_trace("chat-burst"))


def test_runs_of_a_comparison_are_opened_together_and_named(tmp_path: Path) -> None:
    trace = kvrm.open_trace("chat-burst").limit(30)
    kvrm.compare(trace, ["static", "graph-paged"], out=tmp_path / "both")
    assert [run.name for run in open_runs([tmp_path / "both"])] == ["static", "graph-paged"]
    folders = [tmp_path / "both" / name for name in ("static", "graph-paged")]
    assert [run.name for run in open_runs(folders, ["a", "b"])] == ["a", "b"]
    with pytest.raises(
        InputError, match=r"names a, a: should be as many distinct names as runs \(static, graph-paged\)"
    ):
        open_runs(folders, ["a", "a"])
    assert json.loads((tmp_path / "both" / "summary.json").read_text())["runs"][0]["policy"] == "static"

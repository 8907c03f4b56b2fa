"""A timeline is the run's steps, to the nanosecond, in a format that viewers take."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvrm
from kvrm_analysis.inspection import inspect
from kvrm_analysis.recorded import recorded
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.timeline.timeline import Timeline, write_timeline
from kvrm_analysis.timeline.timeline_tracks import ENGINE, EXPOSED, POOL, REQUESTS, STEPS, TRANSFERS
from kvrm_analysis.timeline.trace_events import microsecond, microseconds
from kvrm_sim.errors import InputError, RunError
from kvrm_sim.state import PARTS
from tests.analysis.small_runs import replayed
from tests.analysis.trace_format import nanoseconds, read_events

WINDOW = (20.0, 40.0)
BLOCKS = (0, 63)


@pytest.fixture(scope="module")
def by_step(tmp_path_factory: pytest.TempPathFactory) -> NamedRun:
    return replayed(tmp_path_factory.mktemp("runs") / "single", "kv-rm", window_s=0.0, pool_blocks=1100, stop_at_s=60.0)


@pytest.fixture(scope="module")
def by_second(tmp_path_factory: pytest.TempPathFactory) -> NamedRun:
    return replayed(tmp_path_factory.mktemp("runs") / "seconds", "kv-rm", pool_blocks=1100, stop_at_s=60.0)


def written(run: NamedRun, path: Path, **options: Any) -> Timeline:
    assert run.folder is not None
    return write_timeline(run.folder, path, **options)


def on(events: list[dict[str, Any]], pid: int, tid: int) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == (pid, tid)]


def test_every_step_is_there_with_its_times_and_its_parts_add_up_to_it(by_step: NamedRun, tmp_path: Path) -> None:
    done = written(by_step, tmp_path / "trace.json.gz")
    events, about = read_events(done.path)
    steps = by_step.steps.to_pydict()
    drawn = on(events, ENGINE, STEPS)
    assert done.steps == done.all_steps == about["steps"] == len(drawn) == len(steps["end_ns"])
    assert [nanoseconds(event["ts"]) for event in drawn] == steps["start_ns"]
    ends = [nanoseconds(event["ts"]) + nanoseconds(event["dur"]) for event in drawn]
    assert ends == steps["end_ns"]
    assert [event["args"]["decode_rows"] for event in drawn] == steps["decode_rows"]
    parts = on(events, ENGINE, EXPOSED)
    for name in PARTS:
        total = sum(nanoseconds(event["dur"]) for event in parts if event["name"] == name)
        assert total == sum(steps[f"{name}_exposed_ns"])
    assert sum(nanoseconds(event["dur"]) for event in parts) == sum(nanoseconds(event["dur"]) for event in drawn)
    moved = on(events, ENGINE, TRANSFERS)
    assert sum(event["args"]["groups"] for event in moved) == sum(steps["groups"]) > 0


def test_counters_say_what_the_records_say(by_step: NamedRun, tmp_path: Path) -> None:
    events, _ = read_events(written(by_step, tmp_path / "trace.json.gz").path)
    for name, column in (("requests running", "running"), ("tokens used", "used_tokens")):
        told = {nanoseconds(e["ts"]): e["args"]["value"] for e in events if e["ph"] == "C" and e["name"] == name}
        steps = by_step.steps
        times, values = steps["start_ns"].to_numpy(), steps[column].to_numpy()
        at = np.searchsorted(np.array(list(told)), times, side="right") - 1
        assert np.array(list(told.values()))[at].tolist() == values.tolist()


def test_a_window_from_the_folder_and_one_simulated_again_are_the_same_steps(
    by_step: NamedRun, by_second: NamedRun, tmp_path: Path
) -> None:
    kept = written(by_step, tmp_path / "kept.json.gz", window_s=WINDOW)
    again = written(by_second, tmp_path / "again.json.gz", window_s=WINDOW)
    assert kept.steps == again.steps > 50
    from_folder, simulated = (read_events(done.path)[0] for done in (kept, again))
    for track in (STEPS, EXPOSED, TRANSFERS):
        assert on(from_folder, ENGINE, track) == on(simulated, ENGINE, track)


def test_lives_of_requests_have_their_times_and_their_preemptions(by_second: NamedRun, tmp_path: Path) -> None:
    done = written(by_second, tmp_path / "trace.json.gz", window_s=(0.0, None))
    events, _ = read_events(done.path)
    lives = {event["id"]: event for event in events if event["ph"] == "b" and event["name"].startswith("request ")}
    requests = {record["row"]: record for record in by_second.requests.to_pylist()}
    assert set(lives) == set(requests)
    assert all(nanoseconds(lives[row]["ts"]) == record["arrival_ns"] for row, record in requests.items())
    spans: dict[int, list[tuple[str, int]]] = {}
    for event in events:
        if event["pid"] == REQUESTS and event["ph"] == "b" and event["id"] is not None:
            spans.setdefault(event["id"], []).append((event["name"], nanoseconds(event["ts"])))
    some = next(
        record for record in requests.values() if record["outcome"] == "completed" and not record["preemptions"]
    )
    assert ("decode", some["first_token_ns"]) in spans[some["row"]]
    preempted = [record for record in requests.values() if record["preemptions"]]
    assert preempted
    for record in preempted:
        names = [name for name, _ in spans[record["row"]]]
        assert names.count("preempted") == record["preemptions"]


def test_blocks_show_their_owners(by_second: NamedRun, tmp_path: Path) -> None:
    done = written(by_second, tmp_path / "trace.json.gz", window_s=WINDOW, blocks=BLOCKS)
    events, about = read_events(done.path)
    stretch = inspect(recorded(by_second), *WINDOW, pool_samples=20_000)
    assert stretch.pool is not None
    times = np.append(stretch.pool.times_ns, stretch.end_ns)
    owners = stretch.pool.owners
    assert str(len(stretch.pool.times_ns)) in about["blocks"].replace(",", "")
    held = np.zeros((len(times) - 1, BLOCKS[1] + 1), np.int64)
    for block in range(BLOCKS[1] + 1):
        for event in on(events, POOL, block + 1):
            begun = nanoseconds(event["ts"])
            inside = (times[:-1] >= begun) & (times[:-1] < begun + nanoseconds(event["dur"]))
            assert {f"request {owner}" for owner in owners[inside, block].tolist()} == {event["name"]}
            held[inside, block] += 1
    assert (held == (owners[:, : BLOCKS[1] + 1] >= 0)).all()
    assert held.any()


def test_long_runs_are_cut_and_say_so(by_second: NamedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrm_analysis.timeline.timeline.MOST_STEPS", 500)
    done = written(by_second, tmp_path / "trace.json.gz")
    assert 0 < done.steps <= 500 < done.all_steps
    assert done.end_s < by_second.summary["sim"]["span_s"]


def test_the_same_run_gives_the_same_bytes(by_second: NamedRun, tmp_path: Path) -> None:
    one, two = (written(by_second, tmp_path / name, window_s=WINDOW, blocks=BLOCKS).path for name in ("1.gz", "2.gz"))
    assert one.read_bytes() == two.read_bytes()


def test_one_replica_of_a_cluster(tmp_path: Path) -> None:
    run = replayed(tmp_path / "two", "graph-paged", cluster=2)
    with pytest.raises(InputError, match=r"2 replicas: name one"):
        written(run, tmp_path / "trace.json.gz", window_s=WINDOW)
    done = written(run, tmp_path / "trace.json.gz", window_s=WINDOW, replica=1)
    events, _ = read_events(done.path)
    rows = {record["row"] for record in run.requests.to_pylist() if record["replica"] == 1}
    assert {event["id"] for event in events if event["ph"] == "b"} <= rows
    assert done.steps > 50
    whole = written(run, tmp_path / "whole.json.gz", replica=1)
    assert whole.steps == whole.all_steps < run.summary["sim"]["steps"]


def test_names_that_need_escaping_do_not_break_the_file(by_step: NamedRun, tmp_path: Path) -> None:
    assert by_step.folder is not None
    folder = shutil.copytree(by_step.folder, tmp_path / 'a "quoted"\n\\ name')
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["runs"][0]["policy"] = summary["runs"][0]["trace"]["name"] = '"},{"ph":"\\\u2028'
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    events, about = read_events(write_timeline(folder, tmp_path / "trace.json.gz", window_s=WINDOW).path)
    assert about["policy"] == '"},{"ph":"\\\u2028'
    assert len(on(events, ENGINE, STEPS)) > 50


def test_no_nanosecond_is_lost_by_a_reader_that_cuts() -> None:
    rng = np.random.default_rng(0)
    times = np.concatenate([np.arange(3000), rng.integers(0, 10**15, 20_000)])
    for text, time in zip(microseconds(times), times.tolist(), strict=True):
        assert int(float(text) * 1000.0) == time
        assert round(float(text) * 1000.0) == time
        assert microsecond(time) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_s": (5.0, 5.0)}, "START:END"),
        ({"window_s": (1e6, None)}, "within the run|no step ends"),
        ({"blocks": (0, 1100)}, "among the 1,100 blocks"),
        ({"blocks": (4, 3)}, "FIRST:LAST"),
        ({"replica": 3}, "has one replica"),
    ],
)
def test_wrong_input_is_named(by_step: NamedRun, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        written(by_step, tmp_path / "trace.json.gz", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_the_recorded_one_is_refused(by_second: NamedRun, tmp_path: Path) -> None:
    assert by_second.folder is not None
    folder = shutil.copytree(by_second.folder, tmp_path / "changed")
    toml = (folder / "run.toml").read_text(encoding="utf-8")
    (folder / "run.toml").write_text(toml.replace("token_budget = 2048", "token_budget = 512"), encoding="utf-8")
    with pytest.raises(RunError, match="another run"):
        write_timeline(folder, tmp_path / "trace.json.gz", window_s=WINDOW)


def test_the_command_writes_what_the_function_writes(by_second: NamedRun, tmp_path: Path) -> None:
    assert by_second.folder is not None
    done = kvrm.timeline(by_second.folder, tmp_path / "a.json.gz", window_s=WINDOW)
    assert done.path == tmp_path / "a.json.gz"
    with pytest.raises(InputError, match="exists"):
        kvrm.timeline(by_second.folder, tmp_path / "a.json.gz", window_s=WINDOW)


def test_it_loads_in_perfettos_own_processor(by_second: NamedRun, tmp_path: Path) -> None:
    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if shell is None:
        pytest.skip("no trace_processor_shell of Perfetto on the path")
    done = written(by_second, tmp_path / "trace.json.gz", window_s=WINDOW, blocks=BLOCKS)
    query = tmp_path / "query.sql"
    query.write_text(
        "select count(*) from slice join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) where thread.name = 'steps';"
        "select count(*) from stats where severity = 'error' and value > 0;",
        encoding="utf-8",
    )
    ran = subprocess.run([shell, "-q", str(query), str(done.path)], capture_output=True, text=True, check=True)
    counts = [int(line) for line in ran.stdout.split() if line.isdecimal()]
    assert counts == [done.steps, 0]

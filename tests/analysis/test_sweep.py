"""A sweep: the same bytes whatever runs it, nothing lost by an interruption, no cell wrong for its neighbours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import kvrm
from kvrm_analysis.engines.engine_local import LocalEngine
from kvrm_analysis.engines.engines import Engine, Lost, SerialEngine, Work
from kvrm_analysis.studies import cell_keys, sweep
from kvrm_analysis.studies.cell_rows import METRICS
from kvrm_analysis.studies.journal import FILE, Journal
from kvrm_analysis.studies.study import Study, load_study
from kvrm_analysis.studies.sweep import Sweep, planned, run_plan
from kvrm_analysis.studies.sweep_table import interval
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import run
from kvrm_sim.errors import InputError
from kvrm_sim.records import load_run
from kvrm_traces import TraceError, open_trace
from kvrm_traces.datasets import cached_path, datasets

T = TypeVar("T")
R = TypeVar("R")

BASE = {"trace": "chat-burst", "trace.rows": 40}
#: Cells that are done, that do not fit, whose settings refuse each other, and that fail as they run.
STUDY: dict[str, Any] = {
    "base": BASE,
    "repeats": 2,
    "variants": [
        {"policy": "kv-rm"},
        {"policy": "graph-paged", "pool_blocks": 60},
        {"policy": "static", "hardware.memory_bytes": 2e10},
        {"policy": "kv-rm", "policy.transport.submission": "per_copy"},
        {"policy": "graph-paged", "over_limit": "error", "max_context_tokens": 64},
        {"policy": "graph-paged", "cluster": 2, "router": "least-loaded"},
    ],
}
STATUSES = ["done", "done", "does_not_fit", "refused", "refused", "done"]


class Shuffled(SerialEngine):
    """Runs tasks in this order, and hands over results in the reverse of it."""

    def __init__(self, order: list[int]) -> None:
        self._order = order

    def map(self, work: Work[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R | Lost]]:
        do, every = work.start(), list(tasks)
        order = [at for at in self._order if at < len(every)]
        yield from reversed([(at, do(every[at])) for at in order])


class Dies(SerialEngine):
    """Is interrupted after so many tasks."""

    def __init__(self, after: int) -> None:
        self._after = after

    def map(self, work: Work[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R | Lost]]:
        for count, result in enumerate(super().map(work, tasks)):
            if count == self._after:
                raise KeyboardInterrupt
            yield result


class Loses(SerialEngine):
    """The process of every second task dies."""

    def map(self, work: Work[T, R], tasks: Iterable[T]) -> Iterator[tuple[int, R | Lost]]:
        for at, result in super().map(work, tasks):
            yield at, Lost("its process died 3 times") if at % 2 else result


def swept(study: Study | dict[str, Any], engine: Engine, out: Path | None = None, **how: Any) -> Sweep:
    loaded = study if isinstance(study, Study) else load_study(study)
    with planned(loaded) as plan, engine:
        return run_plan(plan, engine, out=out, **how)


def table_bytes(folder: Path) -> tuple[bytes, ...]:
    return tuple((folder / name).read_bytes() for name in ("cells.parquet", "intervals.parquet"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Path]:
    """The study, run by this process alone."""
    folder = tmp_path_factory.mktemp("sweep") / "out"
    return swept(STUDY, SerialEngine(), folder), folder


def test_every_cell_has_a_row_and_says_what_became_of_it(done: tuple[Sweep, Path]) -> None:
    table = done[0].cells.to_pylist()
    assert [row["status"] for row in table] == [status for status in STATUSES for _ in range(2)]
    assert [(row["configuration"], row["repeat"], row["seed"]) for row in table[:3]] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 0),
    ]
    for row in table:
        assert (row["error"] is None) == (row["status"] == "done") == (row["ttft_n"] is not None)
    assert "does not fit" in table[4]["error"]
    assert "over the limit of 64" in table[8]["error"]
    assert done[0].cells.equals(pq.read_table(done[1] / "cells.parquet"))


@given(some.permutations(range(12)))
@settings(max_examples=5)
def test_any_order_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, done: tuple[Sweep, Path], order: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("order") / "out"
    swept(STUDY, Shuffled(order), folder)
    assert table_bytes(folder) == table_bytes(done[1])


@pytest.mark.parametrize(
    "workers", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)]
)
def test_any_number_of_processes_gives_the_same_bytes(tmp_path: Path, done: tuple[Sweep, Path], workers: int) -> None:
    swept(STUDY, LocalEngine(workers), tmp_path / "out")
    assert table_bytes(tmp_path / "out") == table_bytes(done[1])


def test_a_cell_whose_process_died_runs_again(tmp_path: Path, done: tuple[Sweep, Path]) -> None:
    first = swept(STUDY, Loses(), tmp_path / "out")
    assert first.statuses["failed"] > 0
    again = swept(STUDY, SerialEngine(), tmp_path / "out")
    assert 0 < again.ran < first.ran
    assert table_bytes(tmp_path / "out") == table_bytes(done[1])


PART = """
from kvrm.plugins import Victim


class Oldest(Victim):
    name = "oldest"
    compiled = True

    @staticmethod
    def weight(row):
        return -row.arrival_ns
"""


@pytest.mark.long
def test_a_users_part_is_a_value_of_an_axis(tmp_path: Path) -> None:
    (tmp_path / "oldest.py").write_text(PART, encoding="utf-8")
    text = """
plugins = ["oldest.py"]
[base]
trace = "chat-burst"
"trace.rows" = 200
policy = "graph-paged"
pool_blocks = 200
[axes]
"policy.schedule.victim" = ["last", "oldest"]
"""
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    found = swept(load_study(tmp_path / "study.toml"), LocalEngine(1))
    assert found.without_results() == []
    last, oldest = found.cells.to_pylist()
    assert last["cell_key"] != oldest["cell_key"] if "cell_key" in last else last != oldest


def test_a_row_is_that_of_the_run_alone(done: tuple[Sweep, Path]) -> None:
    config = ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm", pool_blocks=60, seed=1)
    summary = run(open_trace("chat-burst", rows=40, seed=1), config).summary
    row = done[0].cells.to_pylist()[3]
    assert {metric.name: row[metric.name] for metric in METRICS} == {m.name: m.of(summary) for m in METRICS}


@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_interrupted_sweep_goes_on_to_the_same_bytes(tmp_path: Path, done: tuple[Sweep, Path], after: int) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        swept(STUDY, Dies(after), out)
    assert not (out / "cells.parquet").exists()
    again = swept(STUDY, SerialEngine(), out)
    assert (again.kept, again.ran) == (after, done[0].ran - after)
    assert table_bytes(out) == table_bytes(done[1])


def test_a_line_that_a_killed_process_left_is_passed_over(tmp_path: Path, done: tuple[Sweep, Path]) -> None:
    out = tmp_path / "out"
    swept(STUDY, SerialEngine(), out)
    lines = (out / FILE).read_bytes()
    (out / FILE).write_bytes(lines[: len(lines) - 40])
    again = swept(STUDY, SerialEngine(), out)
    assert again.ran == 1
    assert table_bytes(out) == table_bytes(done[1])
    assert [json.loads(line)["schema"] for line in (out / FILE).read_text().splitlines()] == [1] * done[0].ran


def test_a_grown_study_runs_only_what_is_new(tmp_path: Path) -> None:
    small = {"base": BASE, "axes": {"policy": ["kv-rm"], "pool_blocks": [50, 60]}}
    grown = {"base": BASE, "axes": {"pool_blocks": [40, 50, 60], "policy": ["kv-rm", "graph-paged"]}}
    out = tmp_path / "out"
    first = swept(small, SerialEngine(), out)
    second = swept(grown, SerialEngine(), out)
    assert (first.ran, second.kept, second.ran) == (2, 2, 4)
    assert second.cells.equals(swept(grown, SerialEngine()).cells)
    assert swept(small, SerialEngine(), out).ran == 0
    assert swept(small, SerialEngine(), out, resume=False).ran == 2


def test_rows_of_other_code_run_again_or_are_kept_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = {"base": BASE, "axes": {"pool_blocks": [50, 60]}}
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "code_version", lambda: "an earlier one")
        patch.setattr("kvrm_analysis.studies.cell_work.code_version", lambda: "an earlier one")
        swept(study, SerialEngine(), out)
    kept = swept(study, SerialEngine(), out, stale="keep")
    assert (kept.ran, kept.stale, kept.kept) == (0, 2, 2)
    assert kept.notes() == ["2 rows had been made by another version of the code: they were kept"]
    again = swept(study, SerialEngine(), out)
    assert (again.ran, again.stale) == (2, 2)
    assert again.notes() == ["2 rows had been made by another version of the code: they ran again"]
    assert swept(study, SerialEngine(), out).notes() == []


def test_the_code_version_follows_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uncached = cell_keys.code_version.__wrapped__
    assert uncached() == cell_keys.code_version()
    monkeypatch.setattr(cell_keys, "_OURS", ())
    assert uncached() != cell_keys.code_version()


def test_what_a_key_depends_on(tmp_path: Path) -> None:
    def key(**settings: Any) -> str | None:
        with planned(load_study({"base": {**BASE, **settings}, "repeats": 2})) as plan:
            return plan.keys[0]

    trace = tmp_path / "a.csv"
    lines = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1,10,5\n2023-11-16 18:17:04.1,11,5\n"
    trace.write_text(lines)
    alone = key()
    assert key() == alone
    assert key(policy="kv-rm") == alone  # the default, said
    changed = [
        {"trace.rows": 41}, {"trace.speedup": 2.0}, {"pool_blocks": 9}, {"policy": "static"}, {"seed": 5},
        {"cluster": 2}, {"stop_at_s": 1.0}, {"hardware.h2d_bytes_per_s": 1e10}, {"model.layers": 8},
    ]  # fmt: skip
    keys = [key(**change) for change in changed]
    assert len({alone, *keys}) == len(changed) + 1
    of_file: dict[str, Any] = {"trace": str(trace), "trace.rows": None}
    first = key(**of_file)
    moved = trace.rename(tmp_path / "b.csv")
    assert key(**{**of_file, "trace": str(moved)}) == first
    assert key(**{**of_file, "trace": str(moved), "seed": 5}) == first  # nothing is drawn
    moved.write_text(lines.replace(",11,", ",12,"))
    assert key(**{**of_file, "trace": str(moved)}) != first


def test_cells_that_are_one_run_run_once_and_repeats_of_it_are_said(tmp_path: Path) -> None:
    trace = tmp_path / "a.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1,10,5\n")
    found = swept({"base": {"trace": str(trace)}, "repeats": 3}, SerialEngine())
    assert (found.ran, found.cells.num_rows) == (1, 3)
    assert "nothing is drawn in this study" in found.notes()[0]


def test_repeats_of_a_generator_in_a_file_are_other_draws(tmp_path: Path) -> None:
    kvrm.fit_trace(kvrm.open_trace("chat-burst", rows=300), out=tmp_path / "like.toml")
    path = tmp_path / "study.toml"
    base = 'trace = "like.toml"\n"trace.rows" = 40\npolicy = "graph-paged"\n'
    path.write_text(f"repeats = 2\n[base]\n{base}[axes]\npool_blocks = [4000]\n")
    done = swept(load_study(path), SerialEngine())
    assert done.ran == 2
    assert len(set(done.cells["ttft_mean_s"].to_pylist())) == 2
    assert done.notes() == []


def test_a_data_set_that_was_fetched_is_named_in_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = cached_path(datasets()["azure-2023-conv"])
    file.parent.mkdir(parents=True)
    lines = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1,10,5\n2023-11-16 18:17:04.1,11,5\n"
    file.write_text(lines)
    path = tmp_path / "study.toml"
    path.write_text('[base]\ntrace = "azure-2023-conv"\n[axes]\npool_blocks = [4000]\n')
    assert swept(load_study(path), SerialEngine()).statuses == {"done": 1}


def test_intervals_are_those_of_students_t(done: tuple[Sweep, Path]) -> None:
    assert interval([1.0, 2.0, 3.0, 4.0], 0.95) == pytest.approx((4, 2.5, 1.2909944487, 0.4457397, 4.5542603))
    assert interval([7.0], 0.95) == (1, 7.0, None, None, None)
    table = done[0].intervals
    assert table is not None
    rows = [row for row in table.to_pylist() if row["metric"] == "ttft_mean_s"]
    cells = done[0].cells.to_pylist()
    assert [row["configuration"] for row in rows] == [0, 1, 5]
    assert rows[0]["mean"] == pytest.approx((cells[0]["ttft_mean_s"] + cells[1]["ttft_mean_s"]) / 2)
    assert rows[0]["low"] < rows[0]["mean"] < rows[0]["high"]


def test_run_folders_on_demand(tmp_path: Path) -> None:
    study = {"base": BASE, "axes": {"pool_blocks": [50, 60]}}
    out = tmp_path / "out"
    first = swept(study, SerialEngine(), out)
    table = (out / "cells.parquet").read_bytes()
    again = swept(study, SerialEngine(), out, keep_runs=[1])
    assert (again.ran, again.kept) == (1, 1)
    assert (out / "cells.parquet").read_bytes() == table
    (folder,) = (out / "runs").iterdir()
    assert folder.name == first.cells["key"][1].as_py()
    run_of_cell = load_run(folder)
    assert run_of_cell.summary["pool_blocks"] == 60
    assert run_of_cell.requests.num_rows == 40
    assert swept(study, SerialEngine(), out, keep_runs=True).ran == 1
    with pytest.raises(InputError, match="runs = 2: should be the number of a cell, 0 to 1"):
        swept(study, SerialEngine(), out, keep_runs=[2])
    with pytest.raises(InputError, match="pass out = FOLDER"):
        swept(study, SerialEngine(), keep_runs=True)


def test_a_cell_that_raises_anything_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("kvrm_analysis.studies.cells.run_replicas", broken)
    found = swept({"base": BASE, "axes": {"pool_blocks": [50, 60]}}, SerialEngine(), tmp_path / "out")
    assert found.statuses == {"failed": 2}
    assert found.without_results() == ["2 cells (0, 1) failed: MemoryError: no room"]


def test_a_trace_that_is_none_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("words\nand no numbers\n")
    with pytest.raises(TraceError, match=r"none\.csv"):
        swept({"axes": {"trace": ["chat-burst", str(tmp_path / "none.csv")]}}, SerialEngine(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cell_whose_known_names_do_not_go_together_is_a_row() -> None:
    """llama-3-8b has no third of its heads: the study is right, one of its cells is not."""
    done = swept({"base": BASE, "axes": {"tensor_parallel": [1, 3]}}, SerialEngine())
    assert done.statuses == {"done": 1, "refused": 1}


def test_folders_that_no_sweep_wrote_are_left_alone(tmp_path: Path) -> None:
    study = {"base": BASE, "axes": {"pool_blocks": [50]}}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").touch()
    (tmp_path / "file").touch()
    for name, said in (("mine", "no sweep wrote"), ("file", "is a file")):
        with pytest.raises(InputError, match=said):
            swept(study, SerialEngine(), tmp_path / name)
    with Journal(tmp_path / "busy"), pytest.raises(InputError, match="another sweep writes into this folder now"):
        swept(study, SerialEngine(), tmp_path / "busy")
    (tmp_path / "busy" / FILE).write_text("no json\n")
    with pytest.raises(InputError, match="line 1: not a line of a sweep"):
        swept(study, SerialEngine(), tmp_path / "busy")

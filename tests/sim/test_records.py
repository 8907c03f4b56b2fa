"""What a run's folder holds, and that a run that dies leaves none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from kvrm_sim.columns import RUN_COLUMNS, pool_table, request_table, step_table
from kvrm_sim.errors import InputError, RunError
from kvrm_sim.records import REQUEST_ROWS, RunWriter, load_run
from kvrm_sim.state import (
    COMPLETED,
    NONE,
    OUT,
    POOL_SAMPLES,
    R_CONTEXT_LIMIT,
    R_STOPPED,
    R_TRACE_END,
    R_UNSERVABLE,
    REJECTED,
    RUN_CLASSES,
    TRUNCATED,
    UNFINISHED,
    WINDOWS,
    Records,
)

SUMMARY = {"policy": "kv-rm", "counts": {"injected": 1}, "ttft_s": None}


def random_records(dtype: np.dtype[np.void], count: int, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    records = np.zeros(count, dtype)
    for name in dtype.names or ():
        records[name] = rng.integers(0, 1 << 40, count)
    if dtype == OUT:
        records["outcome"] = rng.integers(0, 4, count)
        records["reason"] = rng.integers(0, 6, count)
        for name in ("admitted_ns", "first_token_ns", "finish_ns"):
            records[name][rng.random(count) < 0.1] = NONE
    return records


def write_run(folder: Path, *, chunk: int = 1 << 30, count: int = 300, force: bool = False) -> None:
    out, windows, samples = random_records(OUT, count), random_records(WINDOWS, 40), random_records(POOL_SAMPLES, 5)
    classes = np.arange(5 * RUN_CLASSES).reshape(5, RUN_CLASSES)
    with RunWriter(folder, force) as writer:
        for at in range(0, count, chunk):
            writer.requests(out[at : at + chunk])
        for at in range(0, 40, min(chunk, 7)):
            writer.windows(windows[at : at + min(chunk, 7)])
        writer.pool(samples, classes)
        writer.document(SUMMARY, "seed = 0\n")
        writer.commit()


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.summary == SUMMARY
    assert run.requests.equals(request_table(random_records(OUT, 300)))
    assert run.steps.equals(step_table(random_records(WINDOWS, 40)))
    assert run.pool.equals(
        pool_table(random_records(POOL_SAMPLES, 5), np.arange(5 * RUN_CLASSES).reshape(5, RUN_CLASSES))
    )
    assert run.pool["runs_2_3_blocks"].to_pylist() == [1, 17, 33, 49, 65]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "pool.parquet",
        "requests.parquet",
        "run.toml",
        "steps.parquet",
        "summary.json",
    ]
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"schema": 1, "runs": [SUMMARY]}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_bytes_do_not_depend_on_how_rows_are_cut(tmp_path: Path) -> None:
    count = REQUEST_ROWS + 1000
    write_run(tmp_path / "whole", count=count)
    write_run(tmp_path / "cut", count=count, chunk=977)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "cut" / path.name).read_bytes(), path.name
    meta = pq.ParquetFile(tmp_path / "cut" / "requests.parquet").metadata
    assert [meta.row_group(at).num_rows for at in range(meta.num_row_groups)] == [REQUEST_ROWS, 1000]


def test_every_outcome_has_its_row_and_absent_times_are_null(tmp_path: Path) -> None:
    """A15, E02, A17: a request cut by the limit delivers 24 of 100 tokens; the unfinished one is there, marked."""
    out = np.zeros(4, OUT)
    out["row"] = range(4)
    out["outcome"] = [COMPLETED, TRUNCATED, REJECTED, UNFINISHED]
    out["reason"] = [R_TRACE_END, R_CONTEXT_LIMIT, R_UNSERVABLE, R_STOPPED]
    out["admitted_ns"] = [0, 5, NONE, 7]
    out["first_token_ns"] = [3, 6, NONE, NONE]
    out["finish_ns"] = [9, 8, NONE, NONE]
    out["output_tokens"] = [20, 100, 5, 5]
    out["delivered"] = [20, 24, 0, 0]
    with RunWriter(tmp_path / "run") as writer:
        writer.requests(out)
        writer.document(SUMMARY, "")
        writer.commit()
    frame = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    assert list(frame["outcome"]) == ["completed", "truncated", "rejected", "unfinished"]
    assert list(frame["reason"]) == ["trace_end", "context_limit", "unservable", "stopped"]
    assert list(frame["output_tokens"]) == [20, 100, 5, 5]
    assert list(frame["delivered_tokens"]) == [20, 24, 0, 0]
    assert frame["admitted_ns"].isna().tolist() == [False, False, True, False]
    assert frame["finish_ns"].isna().tolist() == [False, False, True, True]
    assert frame["arrival_ns"].dtype == np.int64


def test_records_are_copied_so_the_core_may_reuse_its_buffers(tmp_path: Path) -> None:
    buffer = random_records(OUT, 10)
    expected = request_table(buffer.copy())
    table = request_table(buffer)
    with RunWriter(tmp_path / "run") as writer:
        writer.requests(buffer)
        buffer[:] = 0
        writer.document(SUMMARY, "")
        writer.commit()
    assert load_run(tmp_path / "run").requests.equals(expected)
    assert table.equals(expected)


@pytest.mark.parametrize("death", [RuntimeError("the work failed"), KeyboardInterrupt()])
def test_a_run_that_dies_leaves_nothing(tmp_path: Path, death: BaseException) -> None:
    def die() -> None:
        with RunWriter(tmp_path / "new" / "parent" / "run") as writer:
            writer.requests(random_records(OUT, REQUEST_ROWS + 5))
            raise death

    with pytest.raises(type(death)):
        die()
    assert list(tmp_path.iterdir()) == []


def test_without_a_commit_nothing_is_left_and_the_old_run_stays(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    before = (tmp_path / "run" / "requests.parquet").read_bytes()
    with RunWriter(tmp_path / "run", force=True) as writer:
        writer.requests(random_records(OUT, 3))
    assert (tmp_path / "run" / "requests.parquet").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_force_replaces_a_run_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"run exists.*--force"):
        RunWriter(tmp_path / "run")
    write_run(tmp_path / "run", count=7, force=True)
    assert load_run(tmp_path / "run").requests.num_rows == 7
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not written by kvrm"):
        RunWriter(tmp_path / "mine", force=True)
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "report.json").write_text("{}")
    with pytest.raises(InputError, match="holds a validation"):
        RunWriter(tmp_path / "validation", force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not written by kvrm"):
        RunWriter(tmp_path / "file", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine", "run", "validation"]


def test_an_unwritable_place_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        RunWriter(tmp_path / "file" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_a_named_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(RunError, match=r"run: writing the run failed: No space left"):
        write_run(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_no_folder_writes_nothing_but_takes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RunWriter(None) as writer:
        writer.requests(random_records(OUT, 3))
        writer.windows(random_records(WINDOWS, 3))
        writer.pool(random_records(POOL_SAMPLES, 1), np.zeros((1, RUN_CLASSES), np.int64))
        writer.document(SUMMARY, "")
        writer.commit()
    assert list(tmp_path.iterdir()) == []


def test_a_summary_with_nan_is_refused(tmp_path: Path) -> None:
    """G04: absent is null; NaN never reaches JSON."""
    with RunWriter(tmp_path / "run") as writer, pytest.raises(ValueError, match="not JSON compliant"):
        writer.document({"itl_s": float("nan")}, "")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the folder of a run"):
        load_run(tmp_path / "absent")
    for text, problem in (
        ("{", "not JSON"),
        ('{"schema": 99, "runs": []}', "schema = 1"),
        ('{"schema": 1, "runs": [{}, {}]}', "one run"),
    ):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(InputError, match=problem):
            load_run(tmp_path)
    (tmp_path / "summary.json").write_text('{"schema": 1, "runs": [{}]}')
    (tmp_path / "steps.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"steps\.parquet: cannot be read"):
        _ = load_run(tmp_path).steps
    with pytest.raises(InputError, match=r"pool\.parquet: cannot be read"):
        _ = load_run(tmp_path).pool


def test_run_length_columns_name_their_classes() -> None:
    assert RUN_COLUMNS[:3] == ("runs_1_blocks", "runs_2_3_blocks", "runs_4_7_blocks")
    assert RUN_COLUMNS[-1] == "runs_32768_up_blocks"
    assert len(RUN_COLUMNS) == RUN_CLASSES

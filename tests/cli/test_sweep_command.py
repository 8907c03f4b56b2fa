"""`kvrm sweep` as a user runs it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import kvrm
from kvrm.main import run_command
from kvrm_analysis.engines.engines import SerialEngine
from kvrm_traces.errors import InputError
from tests.cli.cli_process import interruptible
from tests.cli.cli_process import kvrm as command

STUDY = """
name = "small"
[base]
trace = "chat-burst"
"trace.rows" = 40
[axes]
policy = ["kv-rm", "static"]
"hardware.memory_bytes" = [2e10, 8e10]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(STUDY)
    return path


def test_a_sweep_leaves_a_table_and_names_what_does_not_fit(study: Path) -> None:
    done = command("sweep", study.name, "--workers", "1", cwd=study.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "4 cells: 3 done, 1 do not fit",
        "3 simulated now, 0 kept from before",
        "table: runs/sweep-small/cells.parquet",
    ]
    assert done.stderr.startswith("kvrm: cell 2 not fitting: model 'llama-3-8b' with policy 'static' does not fit")
    table = pq.read_table(study.parent / "runs" / "sweep-small" / "cells.parquet")
    assert table.equals(kvrm.sweep(study, engine=SerialEngine()).cells)


def here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    """(exit code, lines of stdout, stderr) of a command in this process, which is quicker."""
    code = run_command(["sweep", *arguments])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def test_a_dry_run_prints_cells_and_an_estimate_and_writes_nothing(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(study.parent)
    code, lines, err = here(capsys, study.name, "--dry-run", "--workers", "2")
    assert code == 0, err
    assert lines[0].split() == ["cell", "policy", "hardware.memory_bytes", "status"]
    assert lines[3].split() == ["2", "static", "2e+10", "does_not_fit"]
    assert lines[-3] == "4 cells: 3 to run, 1 do not fit"
    assert lines[-2].startswith("  cell 2 not fitting: model 'llama-3-8b' with policy 'static' does not fit")
    assert lines[-1].startswith("estimate: about ")
    assert "on 2 workers" in lines[-1]
    assert list(study.parent.iterdir()) == [study]


def test_a_dry_run_of_what_has_run_says_so(study: Path) -> None:
    kvrm.sweep(study, out=study.parent / "out", engine=SerialEngine())
    found = kvrm.sweep_dry_run(study, out=study.parent / "out", workers=2)
    about = found.to_dict()["dry_run"]
    assert (about["cells"], about["to_run"], len(about["rows"]), about["estimate_s"]) == (4, 0, 4, 0.0)
    assert found.to_text(2).splitlines()[3] == "... and 2 more (--json has all of them)"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('polcy = ["static"]', "axes.polcy: unknown key; did you mean 'policy'?"),
        ('pool_blocks = ["many"]', "axes.pool_blocks: pool_blocks = 'many': should be a whole number, 1 or more"),
        ("pool_blocks = []", "axes.pool_blocks = []: an axis needs at least one value"),
        (
            "pool_blocks = { range = [1, 1_000_000], step = 1 }\nseed = { range = [0, 999_999], step = 1 }",
            "1,000,000,000,000 cells: ",
        ),
    ],
)
def test_a_wrong_study_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str, said: str
) -> None:
    (tmp_path / "a.toml").write_text(f"[base]\ntrace = 'chat-burst'\n[axes]\n{wrong}\n")
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--dry-run"]):
        code, lines, err = here(capsys, "a.toml", *more)
        assert (code, lines) == (2, [])
        assert err.startswith(f"kvrm: a.toml: {said}")
        assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_a_dry_run_says_how_many_cells_each_constraint_excludes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rules = ["policy != 'static'", "hardware.memory_bytes > 1e9"]
    Path("small.toml").write_text(f"constraints = {rules}\n{STUDY}")
    code, lines, err = here(capsys, "small.toml", "--dry-run", "--workers", "2")
    assert code == 0, err
    assert lines[-4:-1] == [
        "2 cells (2 more are excluded by constraints): 2 to run",
        "  2 cells excluded by the constraint policy != 'static'",
        "  0 cells excluded by the constraint hardware.memory_bytes > 1e9",
    ]
    assert kvrm.sweep_dry_run("small.toml").to_dict()["dry_run"]["constraints"] == [
        {"constraint": rules[0], "excluded": 2},
        {"constraint": rules[1], "excluded": 0},
    ]


@pytest.mark.parametrize("verb", [["sweep"], ["sweep", "--dry-run"], ["tune"], ["sensitivity"]])
def test_a_name_that_stands_for_nothing_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tables = "[tune]\nobjective = 'minimize itl_p99'\n[sensitivity]\noutputs = ['itl_p99']\n"
    Path("a.toml").write_text(f"[base]\ntrace = 'chat-burst'\n[axes]\npolicy = ['kv-rm', 'statik']\n{tables}")
    code = run_command([*verb, "a.toml"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("kvrm: a.toml: axes.policy = 'statik': unknown; did you mean 'static'?")
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_wrong_options_are_refused(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = here(capsys, str(study), "--runs", "first")
    assert (code, "neither 'all' nor cell numbers" in err) == (2, True)
    with pytest.raises(InputError, match="only engine 'ray' has one"):
        kvrm.sweep(study, address="auto")
    with pytest.raises(InputError, match="runs = 9: should be the number of a cell, 0 to 3"):
        kvrm.sweep(study, runs=[9], out=study.parent / "out")
    with pytest.raises(InputError, match="engine = 'dask': should be 'local' or 'ray'"):
        kvrm.sweep(study, engine="dask")  # type: ignore[arg-type]  # a wrong one


@pytest.mark.parametrize(
    "kill",
    ["interrupt", pytest.param("worker", marks=pytest.mark.long), pytest.param("parent", marks=pytest.mark.long)],
)
def test_a_killed_worker_an_interrupt_and_a_killed_sweep_end_in_the_same_table(tmp_path: Path, kill: str) -> None:
    axes = "[axes]\npolicy = ['graph-paged', 'kv-rm']\npool_blocks = [800, 900, 1000, 1100, 1200, 1300]\n"
    (tmp_path / "a.toml").write_text(f"[base]\ntrace = 'azure-conv-like'\n'trace.rows' = 4000\n{axes}")
    journal = tmp_path / "out" / "journal.jsonl"
    with interruptible("sweep", "a.toml", "--workers", "2", "--out", "out", cwd=tmp_path) as process:
        until = time.monotonic() + 120
        while not (journal.exists() and journal.stat().st_size) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if kill == "worker":
            os.kill(children(process.pid)[0], signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT if kill == "interrupt" else signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    if kill == "worker":
        assert process.returncode == 0, err
    elif process.returncode != 0:  # else it was quicker than the signal
        assert not (tmp_path / "out" / "cells.parquet").exists()
        if kill == "interrupt":
            assert err.splitlines()[-1] == (
                "kvrm: interrupted: what has run is in out; the same command goes on from there"
            )
    assert kvrm.sweep(tmp_path / "a.toml", out=tmp_path / "out", engine=SerialEngine()).kept > 0
    whole = kvrm.sweep(tmp_path / "a.toml", out=tmp_path / "whole", engine=SerialEngine())
    assert whole.ran == 12
    assert (tmp_path / "out" / "cells.parquet").read_bytes() == (tmp_path / "whole" / "cells.parquet").read_bytes()


def children(pid: int) -> list[int]:
    """The processes that this one started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

"""``kvrm report`` and ``kvrm timeline`` as a user runs them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.cli.cli_process import kvrm, refusal


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    done = kvrm("replay", "chat-burst", "--rows", "60", "--policy", "kv-rm", "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_report_is_one_file_and_what_is_printed_names_it(run: Path, tmp_path: Path) -> None:
    done = kvrm("report", run, "--name", "mine", "-o", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("report: page.html (")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<strong>mine</strong>" in text


def test_a_timeline_is_gzipped_json_and_says_what_it_shows(run: Path, tmp_path: Path) -> None:
    done = kvrm("timeline", run, "--window", "5:20", "--blocks", "0:3", "-o", "trace.json.gz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("timeline: trace.json.gz (")
    assert "from 5 to 20 s" in done.stdout
    with gzip.open(tmp_path / "trace.json.gz", "rt", encoding="utf-8") as file:
        document = json.load(file)
    assert f"{document['otherData']['steps']:,} steps" in done.stdout
    assert f"{len(document['traceEvents']):,} events" in done.stdout


def test_a_trace_that_moved_is_named(run: Path, tmp_path: Path) -> None:
    trace = tmp_path / "before.parquet"
    assert kvrm("trace", "synth", "chat-burst", "--rows", "60", "--out", trace).returncode == 0
    folder = tmp_path / "run"
    assert kvrm("replay", trace, "--speedup", "0.5", "--policy", "kv-rm", "--out", folder).returncode == 0
    trace.rename(tmp_path / "after.parquet")
    assert "is not there" in refusal("timeline", folder, "-o", tmp_path / "trace.json.gz")
    named = ("--trace", tmp_path / "after.parquet", "-o", tmp_path / "trace.json.gz")
    done = kvrm("timeline", folder, *named)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_written_or_read_is_refused_before_the_work(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine", encoding="utf-8")
    for command in ("report", "timeline"):
        assert "exists" in refusal(command, run, "-o", tmp_path / "there")
        assert "not the folder of a run" in refusal(command, tmp_path / "nowhere", "-o", tmp_path / "new")
    assert "FIRST:LAST" in refusal("timeline", run, "--blocks", "x", "-o", tmp_path / "new")
    assert "START:END" in refusal("timeline", run, "--window", "9:3", "-o", tmp_path / "new")
    assert "--trace" in refusal("timeline", run, "--unit", "s", "-o", tmp_path / "new")
    assert "distinct names" in refusal("report", run, run, "--name", "a", "--name", "a", "-o", tmp_path / "new")
    assert (tmp_path / "there").read_text(encoding="utf-8") == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]

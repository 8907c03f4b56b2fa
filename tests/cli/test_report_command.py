"""``kvrm report`` and ``kvrm timeline`` as a user runs them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import kvrm
from kvrm.main import run_command
from tests.cli import cli_process


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    kvrm.replay(kvrm.open_trace("chat-burst", rows=60), "kv-rm", out=folder)
    return folder


def test_a_report_is_one_file_and_what_is_printed_names_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert run_command(["report", str(run), "--name", "mine", "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"report: {out} (")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    text = out.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<strong>mine</strong>" in text


def test_a_timeline_is_gzipped_json_and_says_what_it_shows(run: Path, tmp_path: Path) -> None:
    done = cli_process.kvrm("timeline", run, "--window", "5:20", "--blocks", "0:3", "-o", "trace.json.gz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("timeline: trace.json.gz (")
    assert "from 5 to 20 s" in done.stdout
    with gzip.open(tmp_path / "trace.json.gz", "rt", encoding="utf-8") as file:
        document = json.load(file)
    assert f"{document['otherData']['steps']:,} steps" in done.stdout
    assert f"{len(document['traceEvents']):,} events" in done.stdout


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a wrong input is told, in this process. Asserts exit code 2, one line, and a clean stdout."""
    assert run_command([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kvrm: ")
    assert "Traceback" not in said.err
    return said.err


def test_a_trace_that_moved_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, folder = tmp_path / "before.parquet", tmp_path / "run"
    kvrm.convert_trace(kvrm.open_trace("chat-burst", rows=60), trace)
    kvrm.replay(kvrm.open_trace(trace).speedup(0.5), "kv-rm", out=folder)
    trace.rename(tmp_path / "after.parquet")
    out = tmp_path / "trace.json.gz"
    assert "is not there" in refused(capsys, "timeline", folder, "-o", out)
    assert run_command(["timeline", str(folder), "--trace", str(tmp_path / "after.parquet"), "-o", str(out)]) == 0
    assert "timeline: " in capsys.readouterr().out


def test_a_report_finds_a_trace_that_moved_or_does_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "\n".join(f"{at},100,{20 + at}" for at in range(50))
    trace, folder, out = tmp_path / "before.csv", tmp_path / "run", tmp_path / "report.html"
    trace.write_text(f"when,in,out\n{rows}\n", encoding="utf-8")
    columns = {"arrival": "when", "prompt_tokens": "in", "output_tokens": "out"}
    kvrm.replay(kvrm.open_trace(trace, columns=columns, unit="s").limit(40), "kv-rm", out=folder)
    trace.rename(tmp_path / "after.csv")
    for more, said in (([], "is not there"), (["--no-inspect"], "was not to be opened")):
        assert run_command(["report", str(folder), "-o", str(out), "--force", *more]) == 0
        assert said in out.read_text(encoding="utf-8")
    named = ["--trace", str(tmp_path / "after.csv"), "--unit", "s"]
    named += [word for pair in columns.items() for word in ("--column", "=".join(pair))]
    assert run_command(["report", str(folder), "-o", str(out), "--force", *named]) == 0
    text = out.read_text(encoding="utf-8")
    assert "not of the trace itself" not in text
    assert "<dt>rejected rows</dt>" in text
    capsys.readouterr()
    assert run_command(["report", str(folder), "--trace", "chat-burst", "-o", str(tmp_path / "x")]) == 2
    assert "give one that they replayed" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_written_or_read_is_refused_before_the_work(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").write_text("mine", encoding="utf-8")
    for command in ("report", "timeline"):
        assert "exists" in refused(capsys, command, run, "-o", tmp_path / "there")
        assert "not the folder of a run" in refused(capsys, command, tmp_path / "nowhere", "-o", tmp_path / "new")
    assert "FIRST:LAST" in refused(capsys, "timeline", run, "--blocks", "x", "-o", tmp_path / "new")
    assert "START:END" in refused(capsys, "timeline", run, "--window", "9:3", "-o", tmp_path / "new")
    for command in ("report", "timeline"):
        assert "--trace" in refused(capsys, command, run, "--unit", "s", "-o", tmp_path / "new")
    assert "should be as many distinct names as runs (kv-rm)" in refused(
        capsys, "report", run, "--name", "a", "--name", "a", "-o", tmp_path / "new"
    )
    assert (tmp_path / "there").read_text(encoding="utf-8") == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("command", ["report", "timeline"])
def test_force_replaces_only_what_the_same_command_wrote(
    command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    assert run_command([command, str(run), "-o", str(out)]) == 0
    assert run_command([command, str(run), "-o", str(out), "--force"]) == 0
    other = tmp_path / "other"
    assert run_command([{"report": "timeline", "timeline": "report"}[command], str(run), "-o", str(other)]) == 0
    page, packed, broken = tmp_path / "mine.html", tmp_path / "mine.gz", tmp_path / "broken.gz"
    page.write_text("<!doctype html>\n<p>kvrm", encoding="utf-8")
    packed.write_bytes(gzip.compress(b'{"traceEvents":[]}'))
    broken.write_bytes(out.read_bytes()[:12])
    capsys.readouterr()
    for foreign in (run / "run.toml", run / "steps.parquet", other, page, packed, broken):
        before = foreign.read_bytes()
        said = refused(capsys, command, run, "-o", foreign, "--force")
        assert f"{foreign} is not a {command} that kvrm wrote" in said
        assert foreign.read_bytes() == before


def test_force_of_plot_replaces_figures_of_ours_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    formats = ("png", "svg", "pdf")
    asked = ["plot", str(run), "--kind", "memory", *(word for name in formats for word in ("--format", name))]
    assert run_command([*asked, "-o", str(tmp_path)]) == 0
    assert run_command([*asked, "-o", str(tmp_path), "--force"]) == 0
    capsys.readouterr()
    for name in formats:
        figure = tmp_path / f"memory.{name}"
        drawn = figure.read_bytes()
        foreign = drawn.replace(b"kvrm", b"other")
        figure.write_bytes(foreign)
        said = refused(capsys, *asked, "-o", tmp_path, "--force")
        assert f"{figure} is not a figure that kvrm wrote" in said
        assert figure.read_bytes() == foreign
        figure.write_bytes(drawn)


@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_run_that_is_given_twice_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    out = tmp_path / "out"
    said = refused(capsys, command, run, run, "-o", out)
    assert said == f"kvrm: {run} is given twice: name each run once\n"
    again = run.parent / ".." / run.parent.name
    assert refused(capsys, command, run, again, "-o", out) == (
        f"kvrm: {again / run.name} is given twice, as {run} too: name each run once\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_every_command_makes_the_folders_above_what_it_writes_and_only_when_it_does(run: Path, tmp_path: Path) -> None:
    commands = {
        "page.html": ["report", run],
        "trace.json.gz": ["timeline", run],
        "figures": ["plot", run, "--kind", "time", "--format", "png"],
        "trace.parquet": ["trace", "convert", "chat-burst", "--rows", "20"],
        "run": ["replay", "chat-burst", "--rows", "20"],
    }
    for name, command in commands.items():
        out = tmp_path / name.partition(".")[0] / "new" / name
        assert run_command([*map(str, command), "--out", str(out)]) == 0
        assert out.exists()
    assert run_command(["report", str(tmp_path), "-o", str(tmp_path / "none" / "page.html")]) == 2
    assert not (tmp_path / "none").exists()

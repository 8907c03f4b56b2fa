"""`kvrm plot`, `kvrm diff` and `kvrm explain` end to end: what they print, where they write, and when they fail.

Most run within this process, through the function that the command is: matplotlib is imported once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import kvrm
from kvrm.main import run_command
from tests.cli.cli_process import kvrm as process


@dataclass
class Terminal:
    """Runs a command line and keeps what it wrote."""

    capsys: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    def run(self, *arguments: str | Path) -> int:
        self.capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        self.out, self.err = self.capsys.readouterr()
        return code

    def refused(self, *arguments: str | Path) -> str:
        assert self.run(*arguments) == 2
        assert self.out == ""
        return self.err


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "both"
    kvrm.compare(kvrm.open_trace("azure-conv-like", rows=60), ["graph-paged", "kv-rm"], out=folder)
    return folder


def test_plot_writes_figures_and_prints_where(both: Path, tmp_path: Path, terminal: Terminal) -> None:
    asked = ("--kind", "memory", "--kind", "pool", "--format", "png", "--format", "pdf", "--width", "column")
    assert terminal.run("plot", both, *asked, "-o", tmp_path / "figures", "--window", "0:20") == 0
    files = [Path(line) for line in terminal.out.split()]
    assert [file.name for file in files] == ["memory.png", "memory.pdf", "pool.png", "pool.pdf"]
    assert all(file.stat().st_size > 1000 for file in files)
    again = terminal.refused("plot", both, *asked, "-o", tmp_path / "figures")
    assert "exists: choose another name, or pass --force" in again


def test_plot_goes_to_a_new_folder_and_says_what_is_left_out(tmp_path: Path) -> None:
    kvrm.replay(kvrm.open_trace("azure-conv-like", rows=20), "dynamic", out=tmp_path / "run")
    done = process("plot", "run", "--format", "png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runs/plots-1/latency.png" in done.stdout
    assert "bytes: not drawn: nothing was copied into staging" in done.stderr


def test_plot_lists_its_kinds(terminal: Terminal) -> None:
    assert terminal.run("plot", "--list-kinds") == 0
    assert set(kvrm.plot_kinds()) <= {line.split()[0] for line in terminal.out.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "heat"), "kind 'heat' is unknown; did you mean 'heatmap'?; of runs there are latency"),
        (("--kind", "tornado"), "kind 'tornado' is drawn of a study; of runs there are latency"),
        (("--window", "5:6"), "window: only kind pool takes it; drawn here: latency, time, memory"),
        (("--kind", "time", "--slo", "ttft_p99 <= 2s"), "slo: only kind latency and gaps takes it; drawn here: time"),
        (("--kind", "latency", "--metric", "ttft_p99"), "metric: only kind heatmap and tornado takes it"),
        (("--kind", "latency", "--colour-by", "owner"), "colour-by: only kind pool takes it"),
        (("--format", "jpg"), "format 'jpg': should be one of png, svg, pdf"),
        (("--slo", "ttft=fast"), "--slo: 'ttft=fast' is not FIGURE <= AMOUNT"),
        (("--slo", "preemptions <= 5"), "no distribution shows it"),
        (("--kind", "pool", "--window", "9000:9001"), "window 9000:9001 s: should be START < END within the run"),
        (("--kind", "pool", "--replica", "3"), "has one replica, number 0"),
        (("--name", "a"), "names a: should be as many distinct names as runs ("),
    ],
)
def test_plot_refuses_what_cannot_be_drawn(
    both: Path, tmp_path: Path, terminal: Terminal, arguments: tuple[str, ...], message: str
) -> None:
    assert message in terminal.refused("plot", both, "-o", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


def test_diff_fails_when_a_condition_holds(both: Path, terminal: Terminal) -> None:
    pair = (both / "graph-paged", both / "kv-rm")
    done = process("diff", *pair, "--fail-if", "itl_p50 > +5%", "--fail-if", "itl_p50 < +5%")
    assert done.returncode == 1
    assert "policy.read.what" in done.stdout
    assert "kvrm: itl_p50 > +5%: itl_p50_s +" in done.stderr
    assert "itl_p50 < +5%" not in done.stderr
    assert terminal.run("diff", *pair, "--fail-if", "itl_p50 < +5%") == 0
    assert terminal.run("diff", *pair, "--json") == 0
    found = json.loads(terminal.out)
    assert found["settings"]["policy.name"] == {"a": "graph-paged", "b": "kv-rm"}
    assert found["metrics"]["itl_p50_s"]["change"] > 0.05


def test_diff_refuses_what_it_cannot_read(both: Path, terminal: Terminal) -> None:
    same = (both / "kv-rm", both / "kv-rm")
    assert "'itl_p9' is no figure of a run" in terminal.refused("diff", *same, "--fail-if", "itl_p9 > 1")
    assert "no repeats of one configuration" in terminal.refused("diff", both, both / "kv-rm")


def test_explain_tells_a_life(both: Path, terminal: Terminal) -> None:
    done = process("explain", both / "kv-rm", "--request", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("request 7 of kv-rm: ")
    for word in ("its time", "its life", "its steps, by what each part adds", "waiting", "decode", "attention"):
        assert word in done.stdout
    assert terminal.run("explain", both / "kv-rm", "--slowest", "ttft", "--json") == 0
    assert json.loads(terminal.out)["slower_than_share"]["ttft"] == pytest.approx(59 / 60)


def test_a_file_that_was_moved_is_named_and_cut_as_it_was(tmp_path: Path, terminal: Terminal) -> None:
    rows = "".join(f"{at / 2},{50 + at},{5 + at % 7}\n" for at in range(40))
    file = tmp_path / "trace.csv"
    file.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    run = tmp_path / "run"
    kvrm.replay(kvrm.open_trace(file).limit(30).speedup(3.0), "graph-paged", out=run)
    moved = file.rename(tmp_path / "moved.csv")
    assert "is not there: name it where it is (--trace)" in terminal.refused("explain", run)
    assert terminal.run("explain", run, "--trace", moved) == 0
    asked = ("--kind", "pool", "--format", "png", "-o", tmp_path / "out", "--trace", moved)
    assert terminal.run("plot", run, *asked) == 0


def test_explain_refuses_what_has_no_life(both: Path, terminal: Terminal) -> None:
    run = both / "kv-rm"
    assert "request 60: run 'kv-rm' has 0 to 59" in terminal.refused("explain", run, "--request", "60")
    assert "holds 2 runs: name the folder of one" in terminal.refused("explain", both)
    assert "has one replica, number 0" in terminal.refused("explain", run, "--replica", "2")
    assert "leave out --slowest" in terminal.refused("explain", run, "--request", "1", "--slowest", "ttft")

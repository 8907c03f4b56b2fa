"""The page of a trace in a report: from the trace when it is there and the same, else from the run's requests, with
the reason.
"""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import kvrm
from kvrm_analysis.report import inspecting, write_report
from kvrm_analysis.runs import open_runs
from kvrm_sim.errors import InputError
from kvrm_traces import inspect_trace, open_trace
from tests.analysis.small_traces import REQUESTS, conversations

CHARTS = ("rate", "gaps", "lengths", "reuse", "turns")


class Page:
    """The trace's part of a report."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        data = json.loads(data)
        self.axes: dict[str, Any] = data["axes"]
        self.charts: dict[str, Any] = {each["id"]: each for each in data["charts"] if each["id"].startswith("trace")}
        self.whole = unescape(text)
        self.text = text[text.index('<section id="trace"') : text.index('<section id="provenance"')]
        self.places = re.findall(r'<figure class="[^"]*" id="chart-(trace[^"]*)"', self.text)
        self.facts = {
            unescape(name): unescape(value) for name, value in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", self.text)
        }
        self.notice = unescape("".join(re.findall(r'<p class="notice">(.*?)</p>', self.text)))

    def line(self, chart: str, name: str) -> list[float | None]:
        (measure,) = self.charts[chart]["measures"]
        (found,) = [line["y"] for line in measure["lines"] if line["name"] == name]
        values: list[float | None] = found
        return values


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trace with sessions and hashes, and the folder of its replay."""
    folder = tmp_path_factory.mktemp("made")
    trace = conversations(folder / "talks.jsonl")
    kvrm.replay(trace, "graph-paged", out=folder / "run", max_context_tokens=400)
    return trace, folder / "run"


def page_of(folder: Path, target: Path, **how: Any) -> Page:
    return Page(write_report([folder], target / "report.html", **how))


def test_the_page_shows_what_inspect_finds(made: tuple[Path, Path], tmp_path: Path) -> None:
    trace, run = made
    page = page_of(run, tmp_path)
    report = inspect_trace(open_trace(trace), limit_tokens=400)
    assert page.places == list(page.charts) == [f"trace1-{name}" for name in CHARTS]
    assert page.notice == ""
    assert page.line("trace1-rate", "arrivals") == pytest.approx(list(report.rates_per_s), rel=1e-3)
    assert report.ramp is not None
    assert report.steady is not None
    (ramp, steady) = page.charts["trace1-rate"]["shaded"]
    assert (ramp[2], steady[2]) == ("ramp", "steady")
    assert ramp[:2] == [0, pytest.approx(report.steady.start_s / 60)]
    assert f"Ramp: {report.ramp.rate_per_s:.4g} requests/s" in page.charts["trace1-rate"]["note"]
    assert report.prefix_reuse is not None
    found = page.line("trace1-reuse", "LRU")
    assert found == pytest.approx([100 * rate for rate in report.prefix_reuse.lru_blocks.values()], rel=1e-3)
    assert page.line("trace1-turns", "sessions") == [100, 98.75, 1.25]  # the row that is there twice is a fourth turn
    assert page.axes["trace1-turns"]["values"] == [2, 3, 4]
    assert page.axes["trace1-lengths"]["count"] == len(page.line("trace1-lengths", "prompts"))
    assert page.charts["trace1-lengths"]["marks"] == [[400, "context"]]


def test_facts_of_the_source_are_there(made: tuple[Path, Path], tmp_path: Path) -> None:
    page = page_of(made[1], tmp_path)
    assert page.facts["requests"].startswith(f"{REQUESTS} over ")
    assert page.facts["rejected rows"] == "2 output_tokens below 1"
    assert page.facts["duplicate rows"] == "1"
    assert page.facts["order"] == "by arrival"
    assert "the clock ticks in" in page.facts["ties"]
    assert re.match(r"[1-9]\d* requests have more than 400 tokens", page.facts["over the limit"])
    assert page.facts["sessions"].startswith("80 with 240 requests, 160 of them follow-ups")
    assert "arrival to arrival" in page.facts["turn to turn"]
    assert "repeat the whole conversation" in page.facts["cumulative"]
    assert page.facts["prefix hashes"].endswith("one id, one prefix, throughout")
    assert page.facts["prefix reuse"].startswith("0.")
    assert page.facts["source"] == str(made[0])
    assert "expected a whole number" not in page.whole  # rejected rows are counted, and not quoted


def test_a_trace_that_is_gone_is_told_by_the_requests_of_the_run(made: tuple[Path, Path], tmp_path: Path) -> None:
    trace, run = made
    moved = trace.rename(tmp_path / "moved.jsonl")
    try:
        page = page_of(run, tmp_path)
        again = page_of(run, tmp_path, trace=open_trace(moved))
    finally:
        moved.rename(trace)
    assert list(page.charts) == ["trace1-rate", "trace1-gaps", "trace1-lengths"]
    assert "Of the requests that run graph-paged recorded, not of the trace itself" in page.notice
    assert f"the trace {trace} is not there: name it where it is (--trace)" in page.notice
    assert not {"order", "rejected rows", "sessions", "prefix hashes"} & set(page.facts)
    assert {"rate", "CV of gaps", "ties", "steady window", "prompt tokens"} <= set(page.facts)
    assert list(again.charts) == [f"trace1-{name}" for name in CHARTS]
    assert again.facts["source"] == str(moved)
    assert again.notice == ""


def test_both_sources_tell_the_same_of_arrivals_and_lengths(made: tuple[Path, Path], tmp_path: Path) -> None:
    whole, recorded = page_of(made[1], tmp_path), page_of(made[1], tmp_path, reopen=False)
    assert "the trace itself was not to be opened" in recorded.notice
    for chart in ("trace1-rate", "trace1-gaps", "trace1-lengths"):
        assert whole.charts[chart] == recorded.charts[chart]
    for fact in (
        "rate",
        "CV of gaps",
        "Fano",
        "ties",
        "longest gap",
        "steady window",
        "prompt tokens",
        "over the limit",
    ):
        assert whole.facts[fact] == recorded.facts[fact]


@pytest.mark.parametrize(
    ("text", "said"), [("a secret of somebody else,1\n", "has sha256 = "), ("", "is empty")], ids=["another", "empty"]
)
def test_another_file_of_that_name_is_not_even_parsed(
    text: str, said: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    trace, run = made
    kept = trace.read_bytes()
    try:
        trace.write_text(text, encoding="utf-8")
        page = page_of(run, tmp_path)
    finally:
        trace.write_bytes(kept)
    assert "secret" not in page.whole
    assert said in page.notice
    assert "trace1-rate" in page.charts


@pytest.mark.parametrize(("bound", "said"), [("MOST_BYTES", "are read only"), ("MOST_BLOCKS", "are looked at only")])
def test_a_trace_beyond_a_bound_is_inspected_when_it_is_named(
    bound: str, said: str, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, run = made
    monkeypatch.setattr(inspecting, bound, 1000)
    page = page_of(run, tmp_path)
    assert f"{said} when the trace is named (--trace)" in page.notice
    assert "trace1-reuse" not in page.charts
    assert "trace1-reuse" in page_of(run, tmp_path, trace=open_trace(trace)).charts


def test_curves_of_many_blocks_are_of_a_sample_and_say_so(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "MOST_TOUCHES", 1000)
    page = page_of(made[1], tmp_path)
    assert re.search(r"From a sample of \d+(\.\d+)?% of them", page.charts["trace1-reuse"]["note"])
    assert re.search(r"from a sample of \d+", page.facts["LRU cache"])


def test_a_trace_that_no_run_replayed_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give one that they replayed"):
        page_of(made[1], tmp_path, trace=open_trace("chat-burst", rows=50))
    assert not (tmp_path / "report.html").exists()


def test_every_trace_has_a_page_as_it_was_replayed(made: tuple[Path, Path], tmp_path: Path) -> None:
    trace, run = made
    kvrm.replay(kvrm.open_trace(trace).window(100, 600).speedup(2), "static", out=tmp_path / "cut")
    kvrm.replay(kvrm.open_trace("azure-conv-like", rows=100), "static", out=tmp_path / "like")
    page = Page(write_report([run, tmp_path / "cut", tmp_path / "like"], tmp_path / "report.html"))
    assert {name.partition("-")[0] for name in page.charts} == {"trace1", "trace2", "trace3"}
    assert "trace2-reuse" in page.charts
    assert "trace3-reuse" not in page.charts
    assert page.notice == ""
    assert page.text.count("in seconds of the replay") >= 2
    assert "2 output_tokens below 1, in the whole source" in page.text
    assert len(page.charts["trace3-rate"]["shaded"]) <= 2


def test_runs_in_memory_tell_what_they_recorded(tmp_path: Path) -> None:
    done = kvrm.replay(kvrm.open_trace("chat-burst", rows=60), "kv-rm")
    page = Page(write_report(done.results, tmp_path / "report.html"))
    assert "the run was not written to a folder" in page.notice
    assert list(page.charts) == ["trace1-rate", "trace1-gaps", "trace1-lengths"]


def test_a_closed_loop_says_whose_arrivals_are_shown(tmp_path: Path) -> None:
    names = "arrival_s,prompt_tokens,output_tokens,session_id,turn,think_ms"
    lines = [f"{2 * at + 3 * turn},100,20,s{at},{turn},{500 if turn else ''}" for at in range(20) for turn in range(3)]
    (tmp_path / "t.csv").write_text("\n".join([names, *lines]) + "\n", encoding="utf-8")
    kvrm.replay(tmp_path / "t.csv", "graph-paged", out=tmp_path / "run", driver="closed-loop")
    whole, sent = page_of(tmp_path / "run", tmp_path), page_of(tmp_path / "run", tmp_path, reopen=False)
    assert whole.facts["arrivals"].startswith("closed loop, as the trace has them")
    assert whole.facts["sessions"].startswith("20 with 60 requests")
    assert sent.facts["arrivals"].startswith("closed loop, as the run sent them")
    assert whole.line("trace1-lengths", "prompts") == sent.line("trace1-lengths", "prompts")
    assert whole.facts["rate"] != sent.facts["rate"]


def test_a_file_read_with_options_says_which_are_missing(tmp_path: Path) -> None:
    rows = "\n".join(f"{at},100,20" for at in range(30))
    (tmp_path / "t.csv").write_text(f"when,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    trace = kvrm.open_trace(tmp_path / "t.csv", columns={"arrival": "when"}, unit="s")
    kvrm.replay(trace, "static", out=tmp_path / "run")
    page = page_of(tmp_path / "run", tmp_path)
    assert "(--trace names it, with the options that read it)" in page.notice
    assert "trace1-rate" in page.charts


def test_a_generator_of_too_many_requests_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "MOST_GENERATED", 50)
    kvrm.replay(kvrm.open_trace("sharegpt-like", rows=60), "static", out=tmp_path / "run")
    assert "more than 50 requests are generated again only" in page_of(tmp_path / "run", tmp_path).notice


def test_requests_that_are_no_trace_are_said_to_be_none(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "run")
    (run,) = open_runs([tmp_path / "run"])
    assert run.requests is not None
    pq.write_table(run.requests.slice(1), tmp_path / "run" / "requests.parquet")
    page = page_of(tmp_path / "run", tmp_path, reopen=False)
    assert "its requests are not those of a trace" in page.notice
    assert page.charts == {}

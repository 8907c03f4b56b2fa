"""A run's trace is made again from the words that say how it was cut and scaled."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvrm
from kvrm_analysis.recorded import as_replayed, recorded
from kvrm_analysis.runs import open_runs
from kvrm_traces import Trace
from kvrm_traces.errors import InputError


@pytest.mark.parametrize(
    "cut",
    [
        lambda trace: trace.window(10.0, 200.5),
        lambda trace: trace.idle_cap(0.3),
        lambda trace: trace.sample(0.37, 5).limit(100),
        lambda trace: trace.replicas(3, 1),
        lambda trace: trace.speedup(2.0).time_stretch(1 / 3),
        lambda trace: trace.idle_cap(1.0).sample(0.5).at_rate(7.1),
    ],
    ids=["window", "idle cap", "sample, limit", "replica", "factors", "rate"],
)
def test_the_same_arrivals_come_back(tmp_path: Path, cut: object) -> None:
    assert callable(cut)
    trace: Trace = cut(kvrm.open_trace("azure-conv-like"))
    kvrm.replay(trace, "dynamic", out=tmp_path / "run")
    (run,) = open_runs([tmp_path / "run"])
    again = recorded(run).trace
    assert (again.info.sha256, again.info.rows, again.info.span_ns) == (
        trace.info.sha256,
        trace.info.rows,
        trace.info.span_ns,
    )


def chats(folder: Path) -> Path:
    lines = [f"{at}.0,{5 + at},{1 + at % 4},s{at % 3}" for at in range(60)]
    path = folder / "chats.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,session_id", *lines, ""]), encoding="utf-8")
    return path


def test_whole_prompts_and_times_to_think_come_back(tmp_path: Path) -> None:
    path = chats(tmp_path)
    trace = kvrm.open_trace(path, turns="delta").with_think("exponential:3", seed=4).window(5.0)
    assert trace.transforms == "turns delta, think exponential:3 seed 4, window 5: s"
    kvrm.replay(trace, "dynamic", out=tmp_path / "run")
    (run,) = open_runs([tmp_path / "run"])
    rows = [row for batch in trace.batches() for row in batch.to_pylist()]
    # As run.toml says it; from the file as it is; from what was done to it in part, or in full.
    given = (
        recorded(run).trace,
        as_replayed(run, kvrm.open_trace(path)),
        as_replayed(run, kvrm.open_trace(path, turns="delta")),
        as_replayed(run, trace),
    )
    for again in given:
        assert again.info.sha256 == trace.info.sha256
        assert [row for batch in again.batches() for row in batch.to_pylist()] == rows


def test_words_that_are_not_known_are_refused(tmp_path: Path) -> None:
    kvrm.replay(kvrm.open_trace("azure-conv-like", rows=20).speedup(2.0), "dynamic", out=tmp_path / "run")
    toml = tmp_path / "run" / "run.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace("speedup 2", "mirrored"), encoding="utf-8")
    (run,) = open_runs([tmp_path / "run"])
    with pytest.raises(InputError, match="'mirrored'"):
        recorded(run)

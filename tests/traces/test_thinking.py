"""Times to think: stated, drawn or recorded; one for each request that continues another, whatever is cut later."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from kvrm_traces import Trace, TraceError, merge_traces, open_trace
from kvrm_traces.numbers import LARGEST
from kvrm_traces.thinking import ThinkTimes, parse_think
from tests.traces.conversations import TURNS, Turn, by_arrival, continued, written_turns
from tests.traces.rows import csv_of, rows_of, written

DRAWN = ("exponential:3", "lognormal:4:0.5")


def thinks(trace: Trace, rows: int = 65536) -> list[int | None]:
    return [row["think_ms"] for row in rows_of(trace, rows)]


def long_chats(folder: Path, rows: int = 3000) -> Trace:
    """Ten conversations of so many requests together, a second apart."""
    return open_trace(written_turns(folder, [(at * 1_000_000, 5, 5, f"s{at % 10}", None) for at in range(rows)]))


@given(turns=TURNS, seconds=some.integers(0, 5_000), rows=some.integers(1, 30))
def test_a_constant_is_before_every_turn_but_the_first(
    tmp_path_factory: pytest.TempPathFactory, turns: list[Turn], seconds: int, rows: int
) -> None:
    trace = open_trace(written_turns(tmp_path_factory.mktemp("c"), turns)).with_think(f"constant:{seconds / 8}")
    expected = [None if before is None else seconds * 125 for before in continued(by_arrival(turns))]
    assert thinks(trace, rows) == expected


@given(turns=TURNS, us_per_token=some.integers(0, 20_000), rows=some.integers(1, 30))
def test_a_recorded_time_is_the_gap_less_the_answer_and_never_below_0(
    tmp_path_factory: pytest.TempPathFactory, turns: list[Turn], us_per_token: int, rows: int
) -> None:
    plain = open_trace(written_turns(tmp_path_factory.mktemp("r"), turns))
    trace = plain.with_think(f"recorded:{us_per_token / 1000}")
    ordered, expected, cut = by_arrival(turns), list[int | None](), 0
    for (arrival_us, *_), before in zip(ordered, continued(ordered), strict=True):
        if before is None:
            expected.append(None)
            continue
        left_ms = Fraction(arrival_us - ordered[before][0] - ordered[before][2] * us_per_token, 1000)
        nearest = math.floor(left_ms + Fraction(1, 2))
        cut += nearest < 0
        expected.append(max(0, nearest))
    assert thinks(trace, rows) == expected
    assert (f"{cut} cut at 0" in trace.info.notes[-1]) == (cut > 0)


def test_recorded_0_is_the_whole_gap(tmp_path: Path) -> None:
    turns: list[Turn] = [(0, 5, 400, "a", None), (2_500_000, 5, 9, "a", None), (2_500_000, 5, 9, "a", None)]
    trace = open_trace(written_turns(tmp_path, turns))
    assert thinks(trace.with_think("recorded:0")) == [None, 2500, 0]
    assert "cut" not in trace.with_think("recorded:0").info.notes[-1]
    assert thinks(trace.with_think("recorded:5")) == [None, 500, 0]
    assert trace.with_think("recorded:5").info.notes[-1] == (
        "think recorded:5: 2 of 3 requests continue another, after 0.25 s on average; 1 cut at 0, which came before "
        "the answer at 5 ms a token would have ended (a closed loop reads it)"
    )


@pytest.mark.parametrize("spec", DRAWN)
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_a_draw_is_of_its_row_however_the_rows_are_read(tmp_path: Path, spec: str, rows: int) -> None:
    trace = long_chats(tmp_path, 300)
    times = ThinkTimes(trace.info, parse_think(spec), seed=5)
    pieces = [batch.column(0).to_pylist() for batch in times.batches(trace.batches(rows, times.reads))]
    assert list(itertools.chain(*pieces)) == thinks(trace.with_think(spec, seed=5))


@pytest.mark.parametrize("spec", DRAWN)
def test_what_is_cut_afterwards_keeps_its_times(tmp_path: Path, spec: str) -> None:
    trace = long_chats(tmp_path, 200).with_think(spec, seed=1)
    whole = thinks(trace)
    assert thinks(trace.window(50, 150)) == whole[50:150]
    assert thinks(trace.limit(30).replicas(3, 1)) == whole[1:30:3]
    assert thinks(trace.speedup(4)) == whole
    assert whole != thinks(long_chats(tmp_path, 200).with_think(spec, seed=2))
    # A row more does not move those before it.
    assert thinks(long_chats(tmp_path, 201).with_think(spec, seed=1))[:200] == whole


def test_draws_have_the_stated_distribution(tmp_path: Path) -> None:
    trace = long_chats(tmp_path)
    exponential, lognormal = (
        np.array([value for value in thinks(trace.with_think(spec, seed=3)) if value is not None]) / 1e3
        for spec in ("exponential:3", "lognormal:4:0.5")
    )
    assert exponential.size == 2990
    # Five standard errors of 2990 draws.
    assert exponential.mean() == pytest.approx(3, abs=5 * 3 / math.sqrt(2990))
    assert np.log(lognormal).mean() == pytest.approx(math.log(4), abs=5 * 0.5 / math.sqrt(2990))
    assert np.log(lognormal).std() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(2 * 2990))


def test_no_time_is_longer_than_a_file_may_have(tmp_path: Path) -> None:
    trace = long_chats(tmp_path, 200).with_think("lognormal:2000000:10", seed=1)
    assert max(filter(None, thinks(trace))) == LARGEST
    assert f"cut at {LARGEST / 1000} s" in trace.info.notes[-1]


def test_other_times_are_another_trace_and_a_seed_counts_where_something_is_drawn(tmp_path: Path) -> None:
    trace = long_chats(tmp_path, 40)
    shas = {
        trace.with_think(spec, seed=seed).info.sha256
        for spec in (*DRAWN, "constant:1", "constant:2", "recorded:1")
        for seed in (0, 1)
    }
    assert len(shas | {trace.info.sha256}) == 2 * len(DRAWN) + 3 + 1
    # The same, however it is written.
    assert trace.with_think("constant:1.0").info.sha256 == trace.with_think("constant:1").info.sha256
    assert trace.with_think("lognormal:4:0.50", seed=3).window(5).transforms == (
        "think lognormal:4:0.5 seed 3, window 5: s"
    )


def test_spread_stamps_are_what_recorded_times_are_of(tmp_path: Path) -> None:
    turns: list[Turn] = [(at // 2 * 1_000_000, 5, 5, "a", None) for at in range(20)]
    spread = open_trace(written_turns(tmp_path, turns)).spread_ties(seed=1)
    arrivals_ms = [row["arrival_ns"] / 1e6 for row in rows_of(spread)]
    gaps_ms = [math.floor(after - before + 0.5) for before, after in itertools.pairwise(arrivals_ms)]
    assert thinks(spread.with_think("recorded:0")) == [None, *gaps_ms]


def test_times_are_kept_by_a_converted_trace_and_a_merge(tmp_path: Path) -> None:
    trace = long_chats(tmp_path, 40).with_think("exponential:3", seed=1)
    trace.to_parquet(tmp_path / "kept.parquet")
    kept = open_trace(tmp_path / "kept.parquet")
    assert rows_of(kept) == rows_of(trace)
    assert kept.transforms is None
    plain = open_trace(written(tmp_path, csv_of((0, 9, 9))))
    merged = merge_traces([trace, plain])
    assert [row["think_ms"] for row in rows_of(merged) if row["session_id"]] == thinks(trace)
    with pytest.raises(TraceError, match="has times to think already"):
        kept.with_think("constant:1")


@pytest.mark.parametrize(
    "spec",
    [
        "", "constant", "constant:", "constant:-1", "constant:nan", "constant:inf", "constant:1:2", "uniform:1",
        "exponential:0", "exponential:3000000", "lognormal:4", "lognormal:0:1", "lognormal:4:11", "lognormal:4:-1",
        "recorded:", "recorded:-1", "recorded:fast",
    ],
)  # fmt: skip
def test_a_malformed_specification_names_the_forms(tmp_path: Path, spec: str) -> None:
    with pytest.raises(TraceError, match="must be constant:SECONDS, exponential:MEAN_S, lognormal:MEDIAN_S:SIGMA or"):
        long_chats(tmp_path, 2).with_think(spec)


def test_a_trace_in_which_nobody_waits_is_refused(tmp_path: Path) -> None:
    plain = open_trace(written(tmp_path, csv_of((0, 5, 5), (1, 5, 5))))
    with pytest.raises(TraceError, match="has no column session_id, so nobody in it waits"):
        plain.with_think("constant:1")
    with pytest.raises(TraceError, match="think: comes before window"):
        long_chats(tmp_path, 9).limit(3).with_think("constant:1")
    with pytest.raises(TraceError, match="seed -1"):
        long_chats(tmp_path, 9).with_think("constant:1", seed=-1)
    alone = open_trace(written_turns(tmp_path, [(0, 5, 5, "a", None), (1, 5, 5, "b", "nobody")]))
    assert alone.with_think("constant:1").info.notes[-1] == "think constant:1: none of 2 requests continues another"

"""Transforms: which rows they keep, what they do to the clock, in which order, and what TraceInfo then says."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import Trace, TraceError, open_trace
from tests.traces.rows import arrivals_s, column, csv_of, rows_of, written


@pytest.fixture
def seconds(tmp_path: Path) -> Trace:
    """Ten requests, one a second, whose prompt is 1, 2, 3 …"""
    return open_trace(written(tmp_path, csv_of(*((1000 * i, i + 1, 5) for i in range(10)))))


def test_speedup_divides_gaps_and_time_stretch_multiplies_them(tmp_path: Path) -> None:
    """A07: t = [100, 102, 106]: stretch 2 gives [0, 4, 12], speed-up 2 gives [0, 1, 3], and the span is told."""
    trace = open_trace(written(tmp_path, csv_of((100, 1, 1), (102, 1, 1), (106, 1, 1))), columns=None)
    seconds = open_trace(
        written(tmp_path, "t,p,o\n100,1,1\n102,1,1\n106,1,1\n", "abs.csv"),
        unit="s",
        columns={"arrival": "t", "prompt_tokens": "p", "output_tokens": "o"},
    )
    assert arrivals_s(seconds) == [0, 2, 6]
    assert arrivals_s(seconds.time_stretch(2)) == [0, 4, 12]
    assert arrivals_s(seconds.speedup(2)) == [0, 1, 3]
    assert seconds.speedup(2).info.span_ns == 3 * 10**9
    assert seconds.speedup(2).info.notes[-1] == "speedup 2: 3 requests over 3 s, 0.667 requests/s"
    assert seconds.time_stretch(2).info.notes[-1].startswith("time_stretch 2: 3 requests over 12 s")
    assert trace.info.span_ns == 6 * 10**6


def test_window_keeps_the_half_open_interval_and_restarts_the_clock(seconds: Trace) -> None:
    part = seconds.window(2, 5)
    assert list(column(part, "prompt_tokens")) == [3, 4, 5]
    assert arrivals_s(part) == [0, 1, 2]
    assert (part.info.rows, part.info.span_ns) == (3, 2 * 10**9)
    assert list(column(seconds.window(7), "prompt_tokens")) == [8, 9, 10]
    assert list(column(seconds.window(8.5, 1e9), "prompt_tokens")) == [10]


def test_replicas_share_every_request_exactly_once(seconds: Trace) -> None:
    shares = [list(column(seconds.replicas(3, index), "prompt_tokens", rows=4)) for index in range(3)]
    assert shares == [[1, 4, 7, 10], [2, 5, 8], [3, 6, 9]]
    assert [seconds.replicas(3, index).info.rows for index in range(3)] == [4, 3, 3]


def test_the_order_of_application_is_window_limit_replicas_speed_whatever_the_calls(seconds: Trace) -> None:
    one = seconds.window(2, 9).limit(6).replicas(2).speedup(2)
    other = seconds.speedup(2).replicas(2).limit(6).window(2, 9)
    assert rows_of(one) == rows_of(other)
    assert list(column(one, "prompt_tokens")) == [3, 5, 7]
    assert arrivals_s(one) == [0, 1, 2]
    assert one.info.notes[-1].startswith("window 2:9 s, limit 6, replica 0 of 2, speedup 2: 3 requests")


def test_columns_choose_what_is_read_and_in_which_order(seconds: Trace) -> None:
    batch = next(seconds.speedup(4).batches(columns=("output_tokens", "arrival_ns")))
    assert batch.schema.names == ["output_tokens", "arrival_ns"]
    with pytest.raises(TraceError, match="no column 'prefix_hashes'; it has arrival_ns, prompt_tokens, output_tokens"):
        next(seconds.batches(columns=("prefix_hashes",)))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda trace: trace.speedup(0), "speedup 0: must be a finite number above 0"),
        (lambda trace: trace.time_stretch(float("nan")), "time_stretch nan: must be"),
        (lambda trace: trace.time_stretch(1e12), "span would be beyond"),
        (lambda trace: trace.limit(0), "limit 0: must be a whole number, 1 or more"),
        (lambda trace: trace.replicas(0), "replicas 0: must be"),
        (lambda trace: trace.replicas(2, 2), "replica index 2: must be from 0 to 1"),
        (lambda trace: trace.replicas(2).replicas(2), "already shared"),
        (lambda trace: trace.replicas(20, 15), "keeps none of 10 requests"),
        (lambda trace: trace.window(5, 5), "must be START < END"),
        (lambda trace: trace.window(-1, 5), "START 0 or more"),
        (lambda trace: trace.window(3.2, 3.4), "window 3.2:3.4 s keeps none of 10 requests over 9 s"),
        (lambda trace: trace.window(100), "keeps none"),
        (lambda trace: trace.window(1).window(1), "already has one"),
        (lambda trace: trace.limit(5).spread_ties(1.0), "comes before"),
        (lambda trace: trace.spread_ties(0.0), "state a time above 0"),
        (lambda trace: next(trace.batches(0)), "rows 0: must be"),
    ],
)
def test_a_transform_that_cannot_be_says_what_would_be_right(seconds: Trace, transform: object, message: str) -> None:
    assert callable(transform)
    with pytest.raises(TraceError, match=message):
        transform(seconds)


@given(
    window=st.tuples(st.integers(0, 200), st.integers(1, 400)),
    limit=st.integers(1, 300),
    replicas=st.integers(1, 5),
    rows=st.integers(1, 97),
    speedup=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_transforms_agree_with_doing_it_to_a_list(
    window: tuple[int, int], limit: int, replicas: int, rows: int, speedup: float
) -> None:
    trace = open_trace("chat-burst", rows=700, seed=3)
    start_s, end_s = window[0], sum(window)
    whole = list(zip(column(trace, "arrival_ns").tolist(), column(trace, "prompt_tokens").tolist(), strict=True))
    kept = [row for row in whole if start_s * 10**9 <= row[0] < end_s * 10**9][:limit][replicas - 1 :: replicas]
    expected = [(int(np.rint((at - kept[0][0]) / speedup)), tokens) for at, tokens in kept]
    try:
        part = trace.window(start_s, end_s).limit(limit).replicas(replicas, replicas - 1).speedup(speedup)
    except TraceError:
        assert expected == []
        return
    arrival_ns, prompt = column(part, "arrival_ns", rows), column(part, "prompt_tokens", rows)
    assert list(zip(arrival_ns.tolist(), prompt.tolist(), strict=True)) == expected
    assert (part.info.rows, part.info.span_ns) == (len(expected), expected[-1][0])
    assert part.info.ties == sum(a == b for (a, _), (b, _) in itertools.pairwise(expected))
    assert all(batch.num_rows <= rows for batch in part.batches(rows))

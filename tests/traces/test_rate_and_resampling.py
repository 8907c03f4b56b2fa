"""A trace set to a mean rate, and other traces drawn from one."""

from __future__ import annotations

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


@given(rate=st.floats(1e-4, 1e4), limit=st.integers(2, 200), replicas=st.integers(1, 3))
def test_the_rate_is_that_of_the_rows_that_are_left(rate: float, limit: int, replicas: int) -> None:
    trace = open_trace("chat-burst", rows=300, seed=1)
    part = trace.limit(limit).replicas(replicas)
    if part.info.rows < 2:
        return
    scaled, other = part.at_rate(rate), trace.at_rate(1.0).replicas(replicas).limit(limit)
    own = column(part, "arrival_ns")
    arrival_ns = column(scaled, "arrival_ns", 17)
    assert arrival_ns[-1] == scaled.info.span_ns == round((own.size - 1) / rate * 1e9)
    assert scaled.info.rate_per_s == pytest.approx(rate, rel=1e-5), "the span is of whole nanoseconds"
    assert np.all(np.diff(arrival_ns) >= 0)
    assert np.abs(arrival_ns - own * (arrival_ns[-1] / own[-1])).max() <= 1
    assert other.info.rate_per_s == pytest.approx(1.0, rel=1e-6), "the order of the calls does not matter"


def test_ties_stay_ties_and_rows_keep_their_order(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, csv_of((0, 1, 1), (1000, 2, 1), (1000, 3, 1), (3000, 4, 1))))
    scaled = trace.at_rate(0.5)
    assert arrivals_s(scaled) == [0, 2, 2, 6]
    assert list(column(scaled, "prompt_tokens")) == [1, 2, 3, 4]
    assert scaled.transforms == "rate 0.5"


def test_a_rate_is_chosen_once_and_needs_a_span(seconds: Trace, tmp_path: Path) -> None:
    at_once = open_trace(written(tmp_path, csv_of((0, 1, 1), (0, 2, 1)), "once.csv"))
    for change, message in (
        (lambda: seconds.at_rate(0), "rate 0: must be a finite number of requests/s above 0"),
        (lambda: seconds.at_rate(float("inf")), "finite"),
        (lambda: seconds.speedup(2).at_rate(1), "has speedup 2; choose speed or rate"),
        (lambda: seconds.at_rate(1).speedup(2), "already has a rate"),
        (lambda: seconds.at_rate(1).at_rate(2), "already has a rate"),
        (lambda: seconds.at_rate(1e-12), "the span would be beyond"),
        (lambda: seconds.limit(1).at_rate(1), "has one request, and so no rate"),
        (lambda: at_once.at_rate(1), "all its requests at one instant"),
    ):
        with pytest.raises(TraceError, match=message):
            change()


def test_a_resampled_trace_is_made_of_stretches_of_the_trace(seconds: Trace) -> None:
    """Five stretches of two: each pair of prompts follows in the trace (the first follows the last), with its gap."""
    drawn = seconds.resampled(seed=4, pieces=5)
    prompts = column(drawn, "prompt_tokens").tolist()
    assert len(prompts) == 10
    assert all(second == first % 10 + 1 for first, second in zip(prompts[::2], prompts[1::2], strict=True))
    assert arrivals_s(drawn) == list(range(10)), "every gap of this trace is a second"
    assert rows_of(drawn) == rows_of(seconds.resampled(seed=4, pieces=5))
    assert rows_of(drawn) != rows_of(seconds.resampled(seed=5, pieces=5))
    assert len({trace.info.sha256 for trace in (seconds, drawn, seconds.resampled(5, 5), seconds.resampled(4, 2))}) == 4


def test_resampling_keeps_lengths_and_rate_in_the_mean_and_bursts_within_stretches() -> None:
    trace = open_trace("chat-burst", rows=2000, seed=2)
    drawn = [trace.resampled(seed) for seed in range(40)]
    rates = [1 / each.info.rate_per_s for each in drawn if each.info.rate_per_s]
    prompts = [column(each, "prompt_tokens").mean() for each in drawn]
    assert trace.info.rate_per_s is not None
    assert np.mean(rates) == pytest.approx(1 / trace.info.rate_per_s, rel=0.05)
    assert np.mean(prompts) == pytest.approx(column(trace, "prompt_tokens").mean(), rel=0.02)
    spread = [np.diff(column(each, "arrival_ns")).std() for each in drawn]
    assert np.mean(spread) == pytest.approx(np.diff(column(trace, "arrival_ns")).std(), rel=0.1)


def test_resampling_is_of_what_other_transforms_left(seconds: Trace) -> None:
    drawn = seconds.window(2, 6).resampled(seed=0, pieces=2)
    assert set(column(drawn, "prompt_tokens").tolist()) <= {3, 4, 5, 6}
    assert drawn.at_rate(2).info.rate_per_s == pytest.approx(2)


def test_a_trace_of_conversations_is_not_torn_apart(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'
    path = tmp_path / "mooncake.jsonl"
    path.write_text(line + line.replace('"timestamp": 0', '"timestamp": 3000'), encoding="utf-8")
    with pytest.raises(TraceError, match=r"cannot be resampled: its requests belong together \(prefix_hashes\)"):
        open_trace(path).resampled(1)

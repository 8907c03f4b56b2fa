"""Idle caps, samples, jitter and merged traces: what they keep, what they do to the clock, and in which order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import Trace, TraceError, inspect_trace, merge_traces, open_trace
from tests.traces.rows import arrivals_s, column, csv_of, rows_of, written


@pytest.fixture
def gapped(tmp_path: Path) -> Trace:
    """Requests at 0, 1, 101, 102 and 1102 s."""
    return open_trace(
        written(tmp_path, csv_of(*((at * 1000, i + 1, 5) for i, at in enumerate((0, 1, 101, 102, 1102)))))
    )


def test_an_idle_cap_is_in_trace_time_whatever_the_speed(gapped: Trace) -> None:
    """The cases' third choice: the cap comes before any speed-up."""
    assert arrivals_s(gapped.idle_cap(10)) == [0, 1, 11, 12, 22]
    assert arrivals_s(gapped.speedup(2).idle_cap(10)) == [0, 0.5, 5.5, 6, 11]
    assert arrivals_s(gapped.idle_cap(10).speedup(2)) == [0, 0.5, 5.5, 6, 11]
    assert arrivals_s(gapped.idle_cap(5000)) == arrivals_s(gapped)
    assert gapped.idle_cap(10).speedup(2).info.notes[-1].startswith("idle cap 10 s, speedup 2: 5 requests over 11 s")


def test_an_idle_cap_shortens_silence_of_the_trace_not_what_thinning_makes(gapped: Trace) -> None:
    # Every second request: 0, 101, 1102 s. Capped before they are taken, gaps are 1 + 10 and 1 + 10.
    assert arrivals_s(gapped.replicas(2).idle_cap(10)) == [0, 11, 22]


def test_a_window_is_in_uncapped_seconds(gapped: Trace) -> None:
    assert arrivals_s(gapped.idle_cap(10).window(100)) == [0, 1, 11]


@given(
    share=st.sampled_from([0.05, 0.5, 1.0]), seed=st.integers(0, 5), rows=st.integers(1, 700), start=st.integers(0, 200)
)
def test_a_sample_depends_on_the_seed_and_the_place_of_a_row_alone(
    share: float, seed: int, rows: int, start: int
) -> None:
    trace = open_trace("chat-burst", rows=700, seed=3)
    whole = rows_of(trace)
    draws = np.concatenate([np.full(0, 0.0), _draws(seed, 700)])
    kept = [row for row, draw in zip(whole, draws, strict=True) if draw < share and row["arrival_ns"] >= start * 10**9]
    if not kept:
        return
    part = trace.window(start).sample(share, seed)
    expected = [row | {"arrival_ns": row["arrival_ns"] - kept[0]["arrival_ns"]} for row in kept]
    assert rows_of(part, rows) == expected
    assert part.info.rows == len(kept)
    # The limit counts what was sampled, and the replicas share that.
    few = part.limit(9).replicas(2)
    assert [row["prompt_tokens"] for row in rows_of(few, rows)] == [row["prompt_tokens"] for row in kept[:9][::2]]
    assert few.info.rows == len(kept[:9][::2])


def _draws(seed: int, rows: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1,)))).random(rows)


def test_a_rate_is_that_of_what_is_left(gapped: Trace) -> None:
    assert gapped.at_rate(2).idle_cap(10).info.rate_per_s == pytest.approx(2)
    trace = open_trace("chat-burst", rows=700).at_rate(3).sample(0.3, seed=1)
    assert trace.info.rate_per_s == pytest.approx(3)


def test_jitter_moves_every_stamp_inside_the_tick_and_keeps_the_order(tmp_path: Path) -> None:
    """A05: a clock in whole seconds; spreading ties leaves stamps alone that stand alone."""
    text = csv_of(
        *((at // 3, at + 1, 5) for at in range(300)), (500, 999, 5), header="arrival_s,prompt_tokens,output_tokens"
    )
    trace = open_trace(written(tmp_path, text))
    moved = trace.jitter(seed=4)
    arrivals, before = column(moved, "arrival_ns"), column(trace, "arrival_ns")
    assert column(moved, "prompt_tokens").tolist() == column(trace, "prompt_tokens").tolist()
    assert np.all(np.diff(arrivals) >= 0)
    # On its own clock the first is 0 again, so every one is within a tick of where it was.
    assert np.all(np.abs(arrivals - before) < 10**9)
    assert (moved.info.ties, trace.info.ties) == (0, 200)
    assert arrivals.tolist() == column(trace.jitter(seed=4), "arrival_ns", rows=7).tolist()
    assert arrivals.tolist() != column(trace.jitter(seed=5), "arrival_ns").tolist()
    assert len({one.info.sha256 for one in (trace, moved, trace.jitter(seed=5), trace.spread_ties(seed=4))}) == 4
    assert moved.info.notes[-1].startswith("jitter within 1 s, seed 4: 301 requests")
    with pytest.raises(TraceError, match="jitter: comes before window"):
        trace.limit(5).jitter()


@given(
    streams=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=30), min_size=2, max_size=4
    ),
    rows=st.integers(1, 11),
)
def test_a_merge_is_a_stable_sort_of_the_traces_put_together(
    tmp_path_factory: pytest.TempPathFactory, streams: list[list[tuple[int, int]]], rows: int
) -> None:
    folder = tmp_path_factory.mktemp("m")
    traces = [
        open_trace(written(folder, csv_of(*((at, tokens, number + 1) for at, tokens in stream)), f"{number}.csv"))
        for number, stream in enumerate(streams)
    ]
    together = sorted(itertools.chain(*map(rows_of, traces)), key=lambda row: row["arrival_ns"])
    merged = merge_traces(traces)
    assert rows_of(merged, rows) == together
    assert (merged.info.rows, merged.info.ties) == (
        len(together),
        sum(a["arrival_ns"] == b["arrival_ns"] for a, b in itertools.pairwise(together)),
    )
    if len(together) > 3:
        assert rows_of(merged.limit(3), rows) == together[:3]


def test_merged_traces_share_neither_hashes_nor_sessions(tmp_path: Path) -> None:
    line = '{"arrival_s": %d, "prompt_tokens": 4, "output_tokens": 1, "session_id": "a", "prefix_hashes": [7, 8]}\n'
    with_hashes = [
        open_trace(written(tmp_path, line % 0 + line % at, f"{at}.jsonl"), hash_block_tokens=2) for at in (3, 5)
    ]
    plain = open_trace(written(tmp_path, csv_of((0, 9, 9)), "plain.csv"))
    merged = merge_traces([*with_hashes, plain])
    rows = rows_of(merged)
    assert [row["prefix_hashes"] for row in rows] == [[0, 1], [2, 3], None, [0, 1], [2, 3]]
    assert [row["session_id"] for row in rows] == ["1/a", "2/a", None, "1/a", "2/a"]
    report = inspect_trace(merged)
    assert report.sessions is not None
    assert report.prefix_reuse is not None
    assert (report.sessions.sessions, report.prefix_reuse.unique_blocks) == (2, 4)
    merged.to_parquet(tmp_path / "merged.parquet")
    assert rows_of(open_trace(tmp_path / "merged.parquet")) == rows
    assert merged.info.sha256 != merge_traces([*with_hashes[::-1], plain]).info.sha256
    other = open_trace(tmp_path / "3.jsonl", hash_block_tokens=4, hash_tolerance_blocks=1)
    with pytest.raises(TraceError, match="blocks of different sizes"):
        merge_traces([with_hashes[0], other])


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda trace: trace.idle_cap(0), "idle_cap 0: must be seconds, a nanosecond or more"),
        (lambda trace: trace.idle_cap(float("nan")), "idle_cap nan: must be"),
        (lambda trace: trace.sample(0), "sample 0: must be a share above 0"),
        (lambda trace: trace.sample(1.5), "sample 1.5: must be"),
        (lambda trace: trace.sample(0.5).sample(0.5), "already sampled"),
        (lambda trace: trace.sample(1e-9), "sample 1e-09 seed 0 keeps none of 5 requests"),
        (lambda trace: trace.sample(0.5, seed=-1), "seed -1: must be"),
        (lambda _: merge_traces([]), "no trace was given"),
    ],
)
def test_what_cannot_be_is_said(gapped: Trace, transform: object, message: str) -> None:
    assert callable(transform)
    with pytest.raises(TraceError, match=message):
        transform(gapped)


def test_the_order_is_fixed_and_printed(gapped: Trace) -> None:
    one = gapped.window(0, 5000).idle_cap(50).sample(0.9, seed=1).limit(4).replicas(2).time_stretch(2)
    other = gapped.time_stretch(2).replicas(2).limit(4).sample(0.9, seed=1).idle_cap(50).window(0, 5000)
    assert rows_of(one) == rows_of(other)
    assert one.transforms == other.transforms
    assert one.transforms == (
        "window 0:5000 s, idle cap 50 s, sample 0.9 seed 1, limit 4, replica 0 of 2, time_stretch 2"
    )
    json.dumps(inspect_trace(one).to_dict(), allow_nan=False)

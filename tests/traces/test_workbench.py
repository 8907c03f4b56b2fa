"""What an inspection finds odd: order, copies, rows beyond a model, hashes, sessions; and the windows it proposes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import TraceError, TraceReport, inspect_trace, open_trace
from kvrm_traces.burstiness import Gaps
from kvrm_traces.duplicates import Duplicates
from kvrm_traces.order import Order
from kvrm_traces.steady import Stretch, ramp_before, steady_stretch
from kvrm_traces.tokens import TokenCounter
from tests.traces.rows import csv_of, written


def report_of(folder: Path, *rows: tuple[object, object, object], **options: int) -> TraceReport:
    return inspect_trace(open_trace(written(folder, csv_of(*rows))), **options)


def test_two_streams_end_to_end_are_named_and_so_are_rows_out_of_order(tmp_path: Path) -> None:
    """A stream of 300 s behind another; then one whose neighbours changed places; then one stray stamp."""
    stream = [(1000 * i, i + 1, 5) for i in range(300)]
    both = open_trace(written(tmp_path, csv_of(*stream, *stream)))
    assert (both.info.streams, both.info.descents) == (2, 1)
    assert any("2 streams, one after another: at request 301 the clock goes back from 299 s to 0 s" in n
               for n in both.info.notes)  # fmt: skip
    report = inspect_trace(both)
    assert "order           2 streams, one after another; sorted" in report.to_text()
    assert report.duplicates == 300

    swapped = [row for i in range(0, 300, 2) for row in (stream[i + 1], stream[i])]
    mixed = report_of(tmp_path, *swapped)
    assert (mixed.info.streams, mixed.info.descents) == (1, 150)
    assert "out of order: 150 requests earlier than the one before, by up to 1 s; sorted" in mixed.to_text()

    for at, stamp in ((150, 299_500), (150, 0)):
        stray = report_of(tmp_path, *stream[:at], (stamp, 9, 9), *stream[at:])
        assert (stray.info.streams, stray.info.descents) == (1, 1)
    assert "order           by arrival" in report_of(tmp_path, *stream).to_text()


@given(
    arrivals=st.lists(st.integers(0, 60), min_size=3, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_order_and_gaps_do_not_depend_on_how_the_source_is_cut(arrivals: list[int], cuts: list[int]) -> None:
    values = np.array(arrivals, np.int64)
    whole, parts = Order(), Order()
    whole.see(values)
    for piece in np.split(values, sorted(cut % values.size for cut in cuts)):
        if piece.size:
            parts.see(piece)
    for order in (whole, parts):
        assert order.descents == np.count_nonzero(np.diff(values) < 0)
        assert order.most_back_ns == max(0, -int(np.diff(values).min()))
    span = int(np.ptp(values))
    assert whole.restarts(values.size, span) == parts.restarts(values.size, span)
    ascending, gaps = np.sort(values), Gaps()
    for piece in np.split(ascending, sorted(cut % values.size for cut in cuts)):
        if piece.size:
            gaps.see(piece)
    steps = np.diff(ascending)
    assert gaps.longest_ns == steps.max()
    if steps.max():
        at = ascending.tolist().index(gaps.longest_from_ns)
        assert steps.max() in np.diff(ascending[at:])[: np.count_nonzero(ascending == gaps.longest_from_ns)]
    histogram = gaps.histogram_s()
    assert sum(histogram.counts) == steps.size
    for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        assert count == np.count_nonzero((steps / 1e9 >= low) & (steps / 1e9 < high))


@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=60),
    size=st.integers(1, 20),
)
def test_duplicates_are_rows_that_repeat_an_earlier_one(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], size: int
) -> None:
    trace = open_trace(written(tmp_path_factory.mktemp("d"), csv_of(*rows)))
    duplicates = Duplicates()
    for batch in trace.batches(size):
        duplicates.see(batch)
    assert duplicates.count() == len(rows) - len(set(rows))


def test_rows_alike_but_for_an_optional_column_are_no_duplicates(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [%d, %d]}\n'
    text = line % (1, 2) + line % (1, 3) + line % (1, 2)
    assert inspect_trace(open_trace(written(tmp_path, text, "m.jsonl"))).duplicates == 1


def test_rows_over_a_models_limit_and_rows_without_tokens_are_counted(tmp_path: Path) -> None:
    """A13, A15: a limit of 1,024. 1,000 in and 100 out is over it by 76; a prompt of 1,024 has no room at all."""
    rows = [(0, 1000, 100), (1, 1000, 24), (2, 1024, 1), (3, 0, 10), (4, 10, 0), (5, -1, 5)]
    over = report_of(tmp_path, *rows, limit_tokens=1024)
    assert over.over_limit is not None
    assert dataclasses.asdict(over.over_limit) == {
        "limit_tokens": 1024,
        "rows": 2,
        "prompt_rows": 1,
        "output_tokens_beyond": 76,
    }
    assert over.zero_rows == {"prompt_tokens": 2, "output_tokens": 1}
    assert report_of(tmp_path, *rows).over_limit is None
    with pytest.raises(TraceError, match="limit_tokens 0: must be a context of 1 token or more"):
        report_of(tmp_path, *rows, limit_tokens=0)


def test_hashes_that_change_their_prefix_or_their_fill_are_counted(tmp_path: Path) -> None:
    """Blocks of 512: id 2 is behind 1, then behind 3; id 4 has 88 tokens, then 100."""
    line = '{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": %s}'
    rows = [(0, 1024, [1, 2]), (1, 1024, [3, 2]), (2, 600, [1, 4]), (3, 612, [1, 4])]
    path = written(tmp_path, "\n".join(line % row for row in rows), "m.jsonl")
    found = inspect_trace(open_trace(path)).hash_consistency
    assert found is not None
    assert (found.touched_blocks, found.other_prefix, found.other_fill, found.rows_without) == (8, 1, 1, 0)
    again = inspect_trace(open_trace(written(tmp_path, "\n".join(line % row for row in rows[:1] * 2), "n.jsonl")))
    assert again.hash_consistency is not None
    assert (again.hash_consistency.other_prefix, again.hash_consistency.other_fill) == (0, 0)
    assert "one id, one prefix, throughout" in again.to_text()


def session_lines(*turns: tuple[str, str | None, int, int, int]) -> str:
    names = ("session_id", "parent", "arrival_s", "prompt_tokens", "output_tokens")
    return "\n".join(json.dumps(dict(zip(names, turn, strict=True))) for turn in turns)


def test_sessions_by_one_name_or_by_a_chain_of_parents_are_the_same(tmp_path: Path) -> None:
    """Three turns and one alone; the second turn repeats what was said (10 + 5 tokens), the third does not."""
    named = [("a", None, 0, 10, 5), ("b", None, 1, 10, 5), ("a", None, 4, 20, 5), ("a", None, 10, 3, 5)]
    chained = [("1", "-1", 0, 10, 5), ("2", "-1", 1, 10, 5), ("3", "1", 4, 20, 5), ("4", "3", 10, 3, 5)]
    found = [
        inspect_trace(open_trace(written(tmp_path, session_lines(*turns), f"{at}.jsonl"))).sessions
        for at, turns in enumerate((named, chained))
    ]
    assert found[0] == found[1]
    sessions = found[0]
    assert sessions is not None
    assert (sessions.sessions, sessions.requests, sessions.follow_ups, sessions.unknown_parents) == (2, 4, 2, 0)
    assert (sessions.turns.max, sessions.cumulative_share) == (3, 0.5)
    assert sessions.turn_gap_ms is not None
    assert (sessions.turn_gap_ms.mean, sessions.turn_gap_ms.max) == (5000, 6000)


def test_a_parent_that_is_not_there_is_counted(tmp_path: Path) -> None:
    report = inspect_trace(open_trace(written(tmp_path, session_lines(("b", "gone", 0, 9, 9)), "s.jsonl")))
    assert report.sessions is not None
    assert (report.sessions.sessions, report.sessions.unknown_parents, report.sessions.turn_gap_ms) == (1, 1, None)
    assert "1 continue one that is not here" in report.to_text()


def test_a_quiet_ramp_and_the_steady_window_behind_it_are_proposed(tmp_path: Path) -> None:
    """A06: the head has 0.05 requests/s for 2,000 s, the steady window 3; the head is steady too, but holds less."""
    head, steady = [(t * 20, 1, 1) for t in range(100)], [(2000 + t // 3, 1, 1) for t in range(3000)]
    text = csv_of(*head, *steady, header="arrival_s,prompt_tokens,output_tokens")
    trace = open_trace(written(tmp_path, text))
    report = inspect_trace(trace)
    assert report.steady is not None
    assert report.ramp is not None
    assert report.steady.start_s == pytest.approx(2000, abs=13)
    assert report.steady.end_s is None
    assert report.steady.rate_per_s == pytest.approx(3, rel=0.02)
    assert (report.ramp.start_s, report.ramp.end_s) == (0, report.steady.start_s)
    assert report.ramp.rate_per_s == pytest.approx(0.05, rel=0.15)
    assert f"--window {report.steady.option}" in report.to_text()
    # What is proposed is whole once it is cut out.
    inside = inspect_trace(trace.window(report.steady.start_s))
    assert (inside.steady is not None, inside.ramp) == (True, None)


def test_no_window_is_proposed_where_none_is_steady() -> None:
    growing = (1.15 ** np.arange(240)).astype(np.int64)
    assert steady_stretch(growing, 1.0) is None
    assert steady_stretch(np.zeros(240, np.int64), 1.0) is None
    constant = np.full(240, 50, np.int64)
    assert steady_stretch(constant, 1.0) == Stretch(start_s=0, end_s=None, rate_per_s=50)
    assert ramp_before(steady_stretch(constant, 1.0), constant, 1.0) is None


@given(st.lists(st.one_of(st.integers(0, 60), st.integers(0, 1 << 22)), min_size=1, max_size=60))
def test_a_histogram_holds_every_count_once(values: list[int]) -> None:
    counter = TokenCounter()
    counter.see(np.array(values, np.int64))
    histogram = counter.histogram()
    for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        # A power of two that rounds to either side of an edge may be in either part.
        assert count == sum(low * (1 - 1e-9) <= value < high * (1 - 1e-9) for value in values)
    assert sum(histogram.counts) == len(values)


def test_the_longest_gap_is_told_with_its_place(tmp_path: Path) -> None:
    report = report_of(tmp_path, (0, 1, 1), (1000, 1, 1), (9000, 1, 1), (9500, 1, 1))
    assert report.longest_gap is not None
    assert (report.longest_gap.gap_s, report.longest_gap.from_s) == (8, 1)
    assert "8 s from 1 s on (84.2% of the span)" in report.to_text()
    assert report_of(tmp_path, (0, 1, 1)).longest_gap is None

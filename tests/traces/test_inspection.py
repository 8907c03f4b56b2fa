"""Statistics against values worked out by hand and against numpy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import inspect_trace, open_trace
from kvrm_traces.burstiness import Gaps, WindowCounts
from kvrm_traces.tokens import TokenCounter
from tests.traces.rows import csv_of, written


def pieces(values: np.ndarray, cuts: list[int]) -> list[np.ndarray]:
    """The values cut at these places, without empty pieces."""
    return [piece for piece in np.split(values, sorted(cut % (values.size + 1) for cut in cuts)) if piece.size]


@given(
    steps=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 400)), min_size=1, max_size=200),
    cuts=st.lists(st.integers(0, 200), max_size=5),
    window=st.integers(1, 30),
)
def test_burstiness_agrees_with_numpy_however_it_is_cut(steps: list[int], cuts: list[int], window: int) -> None:
    arrival_ns = np.cumsum([0, *steps]) * 10**9
    gaps, counts = Gaps(), WindowCounts(window * 10**9, int(arrival_ns[-1]))
    for piece in pieces(arrival_ns, cuts):
        gaps.see(piece)
        counts.see(piece)
    whole = int(arrival_ns[-1]) // (window * 10**9)
    expected = np.bincount(arrival_ns // (window * 10**9), minlength=whole)[:whole]
    assert gaps.cv() == (pytest.approx(np.std(steps) / np.mean(steps)) if any(steps) else None)
    assert counts.fano() == (pytest.approx(expected.var() / expected.mean(), abs=1e-9) if whole >= 2 else None)


@given(values=st.lists(st.integers(1, 50), min_size=1, max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_token_quantiles_are_numpys(values: list[int], cuts: list[int]) -> None:
    counter = TokenCounter()
    for piece in pieces(np.array(values), cuts):
        counter.see(piece)
    stats = counter.stats()
    quantiles = np.percentile(values, [50, 90, 99])
    assert [stats.p50, stats.p90, stats.p99] == pytest.approx(quantiles.tolist())
    assert (stats.mean, stats.max, stats.total) == (pytest.approx(np.mean(values)), max(values), sum(values))


def test_prefix_reuse_by_hand(tmp_path: Path) -> None:
    """Blocks of 4 tokens: A B | A C | A B D, the last of each partly filled."""
    line = '{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": %s}'
    rows = [(0, 6, [1, 2]), (1, 8, [1, 3]), (2, 9, [1, 2, 4])]
    path = written(tmp_path, "\n".join(line % row for row in rows), "m.jsonl")
    reuse = inspect_trace(open_trace(path, hash_block_tokens=4)).prefix_reuse
    assert reuse is not None
    assert (reuse.touched_blocks, reuse.unique_blocks, reuse.rows) == (7, 4, 3)
    assert reuse.infinite_blocks == pytest.approx(3 / 7)
    # Hit: 4 tokens of the second prompt, 4 and 4 of the third, of 6 + 8 + 9.
    assert reuse.infinite_tokens == pytest.approx(12 / 23)
    # Two blocks fit at 50%: A hits twice, B was pushed out by C.
    assert reuse.lru_blocks[50] == pytest.approx(2 / 7)
    assert reuse.lru_blocks[1] == 0
    # Who knows that C never comes again does not keep it: B hits as well.
    assert reuse.belady_blocks[50] == pytest.approx(3 / 7)
    assert reuse.belady_blocks[1] == 0


def test_a_ramp_shows_in_the_rate_profile(tmp_path: Path) -> None:
    """A06: a long quiet head before the steady load is visible, and the window cuts it off."""
    head, steady = [(t * 20, 1, 1) for t in range(100)], [(2000 + t // 3, 1, 1) for t in range(3000)]
    text = csv_of(*head, *steady, header="arrival_s,prompt_tokens,output_tokens")
    trace = open_trace(written(tmp_path, text))
    rates = inspect_trace(trace).rates_per_s
    assert rates[0] == pytest.approx(0.05, rel=0.3)
    assert rates[-2] == pytest.approx(3, rel=0.05)
    assert inspect_trace(trace.window(2000)).rates_per_s[0] == pytest.approx(3, rel=0.05)
    assert "rate over time" in inspect_trace(trace).to_text()


def test_what_a_short_trace_cannot_tell_is_absent_not_zero_nor_nan(tmp_path: Path) -> None:
    """G06: one request has no gaps, no rate and no windows: null in JSON."""
    report = inspect_trace(open_trace(written(tmp_path, csv_of((0, 10, 20)))))
    fields = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert fields["rate_per_s"] is fields["gap_cv"] is fields["fano"]["60s"] is fields["prefix_reuse"] is None
    assert fields["prompt_tokens"] == {"mean": 10, "p50": 10, "p90": 10, "p99": 10, "max": 10, "total": 10}
    assert fields["info"]["rows"] == 1
    assert "rate            - requests/s" in report.to_text()

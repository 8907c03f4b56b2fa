"""What pages of traces draw: shares at edges, classes of whole numbers, the exponential beside the gaps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvrm_analysis import trace_series
from kvrm_traces import TraceReport, inspect_trace, open_trace
from kvrm_traces.tokens import Histogram


def report_of(folder: Path, rows: list[tuple[float, int, int]]) -> TraceReport:
    lines = "\n".join(f"{arrival_s},{prompt},{output}" for arrival_s, prompt, output in rows)
    (folder / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{lines}\n")
    return inspect_trace(open_trace(folder / "t.csv"))


def test_shares_are_of_the_values_at_or_above_an_edge() -> None:
    curve = trace_series.at_least(Histogram(edges=(0.0, 1.0, 2.0, 4.0), counts=(5, 3, 2)))
    assert curve.x.tolist() == [1, 2, 4]
    assert curve.y.tolist() == pytest.approx([50, 20, 0])


def test_edges_between_whole_numbers_are_the_next_one() -> None:
    quarter = 2**0.25
    edges = (1.0, quarter, quarter**2, quarter**3, 2.0, 2 * quarter)
    curve = trace_series.at_least(Histogram(edges=edges, counts=(6, 0, 0, 0, 4)), whole=True)
    assert curve.x.tolist() == [1, 2, 3]
    assert curve.y.tolist() == pytest.approx([100, 40, 0])


def test_prompts_and_outputs_share_classes_that_hold_whole_numbers(tmp_path: Path) -> None:
    report = report_of(tmp_path, [(0, 1, 40), (1, 2, 40), (2, 3, 40), (3, 3, 41)])
    lengths = trace_series.lengths(report)
    assert lengths.edges[:4].tolist() == [1, 2, 3, 4]
    assert lengths.prompts[:3].tolist() == [25, 25, 50]
    assert np.isnan(lengths.prompts[3:]).all()
    held = lengths.edges[:-1][lengths.outputs > 0].tolist()
    assert held == [39]  # of 39 to 45
    assert np.nansum(lengths.outputs) == 100
    assert (np.diff(lengths.edges) >= 1).all()


def test_the_exponential_has_the_rate_of_the_trace_and_a_poisson_process_follows_it() -> None:
    report = inspect_trace(open_trace("sharegpt-like", rows=20_000))
    gaps = trace_series.gaps(report)
    assert gaps is not None
    assert report.rate_per_s is not None
    seen = ~np.isnan(gaps.exponential)
    assert gaps.exponential[seen].tolist() == pytest.approx((100 * np.exp(-gaps.x[seen] * report.rate_per_s)).tolist())
    assert gaps.exponential[0] > 98
    assert np.abs(gaps.trace - np.nan_to_num(gaps.exponential)).max() < 2
    assert (np.diff(gaps.trace) <= 0).all()


def test_gaps_of_a_coarse_clock_stand_beside_the_whole_exponential(tmp_path: Path) -> None:
    report = report_of(tmp_path, [(10.0 * (at // 5), 10, 10) for at in range(100)])
    gaps = trace_series.gaps(report)
    assert gaps is not None
    assert gaps.trace[0] == pytest.approx(100 * 19 / 99)
    assert gaps.exponential[0] > 98
    assert np.nanmin(gaps.exponential) < 2
    assert gaps.trace[-1] == 0


def test_one_instant_has_no_gaps_and_one_request_has_lengths(tmp_path: Path) -> None:
    report = report_of(tmp_path, [(0, 7, 9)])
    assert trace_series.gaps(report) is None
    assert trace_series.turns(report) is None
    assert trace_series.reuse(report) is None
    assert trace_series.rate_edges_s(report)[-1] == 1
    assert np.nansum(trace_series.lengths(report).prompts) == 100


def test_a_ramp_and_the_steady_window_have_names_and_ends(tmp_path: Path) -> None:
    quiet, busy = np.arange(0, 1000, 10.0), np.arange(1000, 4000, 0.5)
    report = report_of(tmp_path, [(float(at), 10, 10) for at in np.concatenate((quiet, busy))])
    ramp, steady = trace_series.windows(report)
    assert (ramp.name, steady.name) == ("ramp", "steady")
    assert ramp.start_s == 0
    assert ramp.end_s == steady.start_s == pytest.approx(1000, abs=20)
    assert steady.end_s == report.info.span_s

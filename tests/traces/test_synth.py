"""Built-in traces: deterministic, independent of how they are read, and of the burstiness and lengths that they
claim.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import BUILTINS, TraceError, inspect_trace, open_trace
from kvrm_traces.synth.arrivals import ModulatedPoisson, Renewal, parse_arrivals
from kvrm_traces.synth.lengths import Quantiles
from tests.traces.rows import column, rows_of


def test_the_built_in_traces_are_those_that_the_documentation_lists() -> None:
    listed = {"azure-conv-like", "azure-code-like", "chat-burst", "chat-sessions", "long-context", "sharegpt-like"}
    assert set(BUILTINS) == listed
    assert all(BUILTINS.values())


@given(
    name=st.sampled_from(sorted(BUILTINS)), rows=st.integers(1, 900), piece=st.integers(1, 1000), seed=st.integers(0, 9)
)
def test_rows_do_not_depend_on_the_pieces_in_which_they_are_read(name: str, rows: int, piece: int, seed: int) -> None:
    trace = open_trace(name, rows=rows, seed=seed)
    read = rows_of(trace, piece)
    assert read == rows_of(open_trace(name, rows=rows, seed=seed))
    assert trace.info.rows == len(read) == rows
    assert trace.info.span_ns == read[-1]["arrival_ns"]
    assert read[0]["arrival_ns"] == 0
    assert all(a["arrival_ns"] <= b["arrival_ns"] for a, b in itertools.pairwise(read))
    assert all(row["prompt_tokens"] >= 1 and row["output_tokens"] >= 1 for row in read)


def test_a_longer_trace_begins_with_the_shorter_one_across_blocks() -> None:
    long = column(open_trace("azure-conv-like", rows=150_000), "arrival_ns", rows=70_000)
    short = column(open_trace("azure-conv-like", rows=100_000), "arrival_ns")
    assert np.array_equal(long[:100_000], short)


def test_seeds_and_lengths_are_part_of_the_hash_and_of_the_rows() -> None:
    first, second = (open_trace("chat-burst", rows=50, seed=seed) for seed in (0, 1))
    assert first.info.sha256 == open_trace("chat-burst", rows=50).info.sha256
    assert len({first.info.sha256, second.info.sha256, open_trace("chat-burst", rows=51).info.sha256}) == 3
    assert rows_of(first) != rows_of(second)


@pytest.mark.parametrize(
    ("name", "rate", "cv", "prompt", "output"),
    [
        ("azure-conv-like", 5.530, 1.09, 1154.7, 211.1),
        ("azure-code-like", 2.566, 13.15, 2047.9, 27.9),
        ("sharegpt-like", 2.0, 1.0, 161.3, 338.0),
        ("long-context", 0.25, 2.0, 12035, 342.6),
    ],
)
def test_a_long_trace_has_the_statistics_it_was_fitted_to(
    name: str, rate: float, cv: float, prompt: float, output: float
) -> None:
    report = inspect_trace(open_trace(name, rows=400_000))
    assert report.rate_per_s == pytest.approx(rate, rel=0.03)
    assert report.gap_cv == pytest.approx(cv, rel=0.04)
    assert report.prompt_tokens.mean == pytest.approx(prompt, rel=0.01)
    assert report.output_tokens.mean == pytest.approx(output, rel=0.015)


def test_chat_burst_is_quiet_most_of_the_time_and_bursts_twentyfold() -> None:
    trace = open_trace("chat-burst", rows=20_000)
    counts = np.bincount(column(trace, "arrival_ns") // 10**10)
    assert np.median(counts) < 30
    assert counts.max() > 250


def test_renewal_processes_have_the_stated_mean_and_cv() -> None:
    for process in (Renewal(rate_per_s=4.0), Renewal(rate_per_s=4.0, cv=3.0)):
        gaps_s = np.diff(next(process.blocks(np.random.default_rng(0)))) / 1e9
        assert gaps_s.mean() == pytest.approx(0.25, rel=0.05)
        assert gaps_s.std() / gaps_s.mean() == pytest.approx(process.cv, rel=0.05)


def test_a_modulated_process_spends_its_time_as_its_sojourns_say() -> None:
    process = ModulatedPoisson(rates_per_s=(50.0, 0.5), sojourns_s=(2.0, 8.0))
    blocks = list(itertools.islice(process.blocks(np.random.default_rng(1)), 3))
    times_s = np.concatenate(blocks) / 1e9
    assert np.all(np.diff(times_s) >= 0)
    assert times_s.size / times_s[-1] == pytest.approx(process.rate_per_s, rel=0.05)
    assert process.rate_per_s == pytest.approx(10.4)


def test_quantiles_are_hit_and_never_passed() -> None:
    drawn = Quantiles(probabilities=(0, 0.5, 1), values=(10, 100, 5000)).draw(np.random.default_rng(0), 100_000)
    assert np.median(drawn) == pytest.approx(100, rel=0.02)
    assert 10 <= drawn.min() <= drawn.max() <= 5000


@pytest.mark.parametrize("text", ["", "poisson", "poisson:0", "poisson:x", "gamma:1", "uniform:3", "poisson:nan"])
def test_an_arrival_process_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(TraceError, match="must be poisson:RATE or gamma:RATE:CV"):
        parse_arrivals(text)


@pytest.mark.parametrize("text", ["gamma:1:1e-200", "gamma:1:1e7", "poisson:1e-300", "gamma:1e-10:2"])
def test_a_process_that_no_clock_holds_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match=r"RATE from 1e-09 to 1e\+09, CV from 1e-06 to 1e\+06$"):
        parse_arrivals(text)


def test_arrivals_end_in_an_error_before_the_clock_overflows() -> None:
    """9.2 billion seconds are all that int64 nanoseconds hold; half of them may be used."""
    for process in (
        parse_arrivals("poisson:1e-7"),
        parse_arrivals("gamma:1e-7:3"),
        ModulatedPoisson(rates_per_s=(1e-7, 2e-7), sojourns_s=(1e6, 1e6)),
    ):
        blocks = process.blocks(np.random.default_rng(1))
        seen = []
        with pytest.raises(TraceError, match=r"requests/s go beyond 4\.61e\+09 s; state a higher rate"):
            seen.extend(blocks)
        times_ns = np.concatenate(seen)
        assert times_ns.size > 100
        assert (np.diff(times_ns) >= 0).all()
        assert times_ns[-1] < 2**62


def test_a_built_in_trace_needs_a_positive_length_and_seed() -> None:
    with pytest.raises(TraceError, match="rows 0: must be a whole number, 1 or more"):
        open_trace("chat-burst", rows=0)
    with pytest.raises(TraceError, match="seed -1: must be"):
        open_trace("chat-burst", seed=-1)


def test_a_length_beyond_any_use_is_refused_at_once() -> None:
    with pytest.raises(TraceError, match="at most 10,000,000,000 requests"):
        open_trace("chat-burst", rows=10**19)

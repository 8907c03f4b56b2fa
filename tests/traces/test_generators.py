"""Generators: days, tails and mixtures in a TOML file, and what is fitted to a trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvrm_traces import TraceError, fit_trace, inspect_trace, open_trace
from kvrm_traces.synth.arrivals import ModulatedPoisson
from kvrm_traces.synth.mmpp import fano, fitted_mmpp, gap_cv
from kvrm_traces.synth.preset import load_presets
from tests.traces.rows import column, rows_of

TOML = """
rows = 129600
[arrivals]
process = "poisson"
rate_per_s = 0.5
day_shares = [1, 1, 4, 2]
[prompt_tokens]
distribution = "mixture"
parts = [
    { weight = 9, distribution = "lognormal", mu = 5, sigma = 0.5, least_tokens = 1, most_tokens = 1000 },
    { weight = 1, distribution = "pareto", alpha = 1.2, least_tokens = 2000, most_tokens = 100000 },
]
[output_tokens]
distribution = "pareto"
alpha = 2.0
least_tokens = 10
most_tokens = 100000
"""


@pytest.fixture
def generator(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(TOML)
    return tmp_path / "mine.toml"


def test_a_generator_of_ones_own_follows_its_day_and_its_tails(generator: Path) -> None:
    trace = open_trace(generator, seed=4)
    assert (trace.info.name, trace.info.rows) == ("mine", 129_600)
    # Quarters of a day have 1, 1, 4 and 2 eighths of the requests.
    quarter = column(trace, "arrival_ns") // (21_600 * 10**9) % 4
    assert np.bincount(quarter, minlength=4) / 129_600 == pytest.approx([0.125, 0.125, 0.5, 0.25], rel=0.1)
    assert trace.info.rate_per_s == pytest.approx(0.5, rel=0.05)
    prompt = column(trace, "prompt_tokens")
    assert np.mean(prompt >= 2000) == pytest.approx(0.1, rel=0.1)
    output = column(trace, "output_tokens")
    # Twice as long is a quarter as likely.
    assert np.mean(output >= 80) / np.mean(output >= 40) == pytest.approx(0.25, rel=0.2)
    assert output.min() == 10


def test_a_generator_is_the_same_for_a_seed_however_it_is_read(generator: Path) -> None:
    whole = rows_of(open_trace(generator, rows=3000, seed=1))
    assert rows_of(open_trace(generator, rows=3000, seed=1), rows=7) == whole
    assert rows_of(open_trace(generator, rows=3000, seed=2)) != whole


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('process = "poisson"', 'process = "poison"', "arrivals.process = 'poison': did you mean 'poisson'"),
        ("rate_per_s = 0.5", "rate_per_s = 0", "arrivals.rate_per_s = 0: must be a finite number from 1e-09 to"),
        ("rate_per_s = 0.5", "rate_per_s = nan", "arrivals.rate_per_s = nan: must be"),
        ("rate_per_s = 0.5", "rate_per_s = 1e-5", "take longer than int64 nanoseconds hold"),
        ("rate_per_s", "rate", "arrivals.rate_per_s: is missing; there is a key rate$"),
        ("mu = 5", "mu = 800", r"prompt_tokens.parts\[0\].mu = 800: must be a finite number from -100 to 100"),
        ("sigma = 0.5", "sigma = 1e308", r"sigma = 1e\+308: must be a finite number above 0 and up to 50"),
        ("[1, 1, 4, 2]", "[1, 0]", r"arrivals.day_shares = \[1, 0\]: must be a list of numbers above 0"),
        ("alpha = 2.0", "alpha = 2.0\nalhpa = 3", "output_tokens.alhpa = 3: no such key; did you mean alpha"),
        ("weight = 9, ", "", r"prompt_tokens.parts\[0\].weight: is missing"),
        ("least_tokens = 10\n", "least_tokens = 100000\n", "must be above least_tokens = 100000"),
        ("rows = 129600", "rows = 0", "rows = 0: must be a whole number from 1"),
        ("[arrivals]", "[arrivals", "is not TOML"),
    ],
)
def test_a_wrong_generator_names_the_key(generator: Path, old: str, new: str, message: str) -> None:
    assert old in TOML
    generator.write_text(TOML.replace(old, new, 1))
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(generator)
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ('process = "gamma"\nrate_per_s = 1\ncv = 1e200', r"arrivals.cv = 1e\+200: must be .* to 1e\+06"),
        ('process = "gamma"\nrate_per_s = 1\ncv = 1e-200', "arrivals.cv = 1e-200: must be .* from 1e-06"),
        ('process = "poisson"\nrate_per_s = 1e300', r"arrivals.rate_per_s = 1e\+300: must be .* to 1e\+09"),
        (
            'process = "mmpp"\nrates_per_s = [1, 2]\nmean_sojourns_s = [1e9, 1e9]',
            r"have 3e\+09 requests .* to 4,000,000",
        ),
        ('process = "mmpp"\nrates_per_s = [1e30, 1]\nmean_sojourns_s = [10, 10]', r"two stays have 1e\+31 requests"),
        ('process = "mmpp"\nrates_per_s = [1, 2]\nmean_sojourns_s = [1e-300, 1e-300]', "must be 0.0001 to"),
        ('process = "mmpp"\nrates_per_s = [1e300, 2]\nmean_sojourns_s = [1e300, 1]', "two stays have inf requests"),
    ],
)
def test_numbers_that_no_memory_or_float_holds_are_refused_by_their_key(
    generator: Path, arrivals: str, message: str
) -> None:
    generator.write_text(TOML.replace('process = "poisson"\nrate_per_s = 0.5', arrivals))
    with pytest.raises(TraceError, match=message):
        open_trace(generator)


def test_a_modulated_process_of_rare_requests_is_drawn_in_small_memory(generator: Path) -> None:
    """Two stays of 0.01 s have 0.0003 requests: a block of 65,536 would be 200 million pairs of stays."""
    rare = 'process = "mmpp"\nrates_per_s = [0.02, 0.01]\nmean_sojourns_s = [0.01, 0.01]'
    generator.write_text(TOML.replace('process = "poisson"\nrate_per_s = 0.5', rare))
    assert open_trace(generator, rows=1500).info.rate_per_s == pytest.approx(0.015, rel=0.1)


def test_a_table_is_not_quoted_in_an_error_and_a_long_value_is_cut(tmp_path: Path) -> None:
    talk = (
        "[sessions]\nanswer_ms_per_token = 1e30\nmost_context_tokens = 8192\nhash_block_tokens = 16\n"
        'turns = { distribution = "constant", turns = 4 }\nthink_ms = { distribution = "constant", ms = 5 }\n'
    )
    (tmp_path / "t.toml").write_text(TOML + talk)
    with pytest.raises(TraceError, match=r"t\.toml: sessions\.turns: 4 of them may take 3\.28e\+31 s, more than"):
        open_trace(tmp_path / "t.toml")
    (tmp_path / "t.toml").write_text(TOML.replace("[1, 1, 4, 2]", str([0] * 100)))
    with pytest.raises(TraceError, match=r"day_shares = \[0, 0, [0, ]*\.\.\.: must be"):
        open_trace(tmp_path / "t.toml")
    with pytest.raises(TraceError, match=r"none\.toml: no such file"):
        open_trace(tmp_path / "none.toml")


@pytest.mark.parametrize("tokens", ["[1, 1e300]", "[1, 3000000000]"])
def test_a_quantile_beyond_what_a_request_may_have_is_refused(generator: Path, tokens: str) -> None:
    quantiles = f'distribution = "quantiles"\nprobabilities = [0, 1]\ntokens = {tokens}\n'
    generator.write_text(TOML[: TOML.index("[output_tokens]")] + "[output_tokens]\n" + quantiles)
    with pytest.raises(TraceError, match=r"output_tokens\.tokens = .*: must be whole numbers up to 2147483647"):
        open_trace(generator)


@pytest.mark.parametrize("name", ["azure-conv-like", "azure-code-like"])
def test_closed_formulas_of_the_modulated_process_agree_with_what_it_generates(name: str) -> None:
    process = load_presets()[name].arrivals
    assert isinstance(process, ModulatedPoisson)
    report = inspect_trace(open_trace(name, rows=400_000))
    assert report.gap_cv == pytest.approx(gap_cv(process), rel=0.05)
    for window_s, value in report.fano.items():
        assert value == pytest.approx(fano(process, window_s), rel=0.2)


def test_a_modulated_process_is_found_again_by_its_own_statistics() -> None:
    given = ModulatedPoisson(rates_per_s=(20.0, 1.0), sojourns_s=(6.0, 30.0))
    fanos = {window_s: fano(given, window_s) for window_s in (1, 10, 60)}
    found = fitted_mmpp(given.rate_per_s, gap_cv(given), fanos)
    assert found is not None
    assert found.rate_per_s == pytest.approx(given.rate_per_s)
    assert gap_cv(found) == pytest.approx(gap_cv(given), rel=0.01)
    assert {w: fano(found, w) for w in fanos} == pytest.approx(fanos, rel=0.01)
    assert fitted_mmpp(5.0, 1.0, {1: 1.0}) is None, "no burstier than Poisson"


def test_fitting_what_was_generated_finds_its_process_and_no_distance(tmp_path: Path) -> None:
    for name, process in (("sharegpt-like", "poisson"), ("long-context", "gamma"), ("chat-burst", "mmpp")):
        trace = open_trace(name, rows=30_000, seed=9)
        fit = fit_trace(trace, seed=2)
        assert fit.process == process
        for what in ("prompt_tokens", "output_tokens"):
            assert fit.distances[what].distance < 3 * fit.distances[what].chance, (name, what)
        assert fit.distances["gaps"].distance < 0.1, name
        (tmp_path / "fit.toml").write_text(fit.toml)
        again = open_trace(tmp_path / "fit.toml", rows=30_000)
        assert again.info.rate_per_s == pytest.approx(trace.info.rate_per_s, rel=0.1)
        json.dumps(fit.to_dict(), allow_nan=False)


def test_a_trace_of_days_is_fitted_under_its_hours(generator: Path) -> None:
    trace = open_trace(generator, rows=129_600, seed=1)
    assert trace.info.span_s > 2.5 * 86_400
    fit = fit_trace(trace)
    assert fit.process == "poisson under the hours of the day"
    generator.with_name("fit.toml").write_text(fit.toml)
    quarter = column(open_trace(generator.with_name("fit.toml")), "arrival_ns") // (21_600 * 10**9) % 4
    assert np.bincount(quarter, minlength=4) / quarter.size == pytest.approx([0.125, 0.125, 0.5, 0.25], rel=0.1)


def test_a_distance_shows_what_a_generator_cannot_be(tmp_path: Path) -> None:
    """Arrivals at one per second sharp: no candidate is regular, and the distance says so."""
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at},{at % 50 + 1},7\n" for at in range(500))
    (tmp_path / "t.csv").write_text(text)
    fit = fit_trace(open_trace(tmp_path / "t.csv"))
    assert fit.distances["gaps"].distance > 0.3 > fit.distances["gaps"].chance
    assert "gaps" in fit.to_text()
    with pytest.raises(TraceError, match="has 50 requests over 49 s; 100 or more can be fitted"):
        fit_trace(open_trace(tmp_path / "t.csv").limit(50))


@pytest.mark.real
def test_fitting_azure_finds_the_presets_that_stand_for_it(shared_traces: Path) -> None:
    fit = fit_trace(open_trace(shared_traces / "azure2023/AzureLLMInferenceTrace_conv.csv"))
    assert fit.process == "mmpp"
    assert {name: round(one.distance, 2) for name, one in fit.distances.items()} == {
        "gaps": 0.02,
        "prompt_tokens": 0.03,
        "output_tokens": 0.03,
        "arrivals_a_s": 0.04,
    }

"""Generators: days, tails and mixtures in a TOML file, clients of a service, and what is fitted to a trace."""

from __future__ import annotations

import json
import shutil
import tarfile
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


def clients(folder: Path, **replaced: str) -> Path:
    """Two clients over half an hour: one steady, one that begins in the second window and is bursty."""
    files = {
        "chunk-0-trace.csv": "0,2.0,1.0,Gamma,1,0.5\n600,2.0,1.0,Gamma,1,0.5\n1200,2.0,1.0,,0,0\n",
        "chunk-1-trace.csv": "0,0,0,,0,0\n600,4.0,3.0,Weibull,1,1\n1200,4.0,3.0,Gamma,1,1\n",
        "chunk-0-dataset.json": json.dumps(
            {"0": {"text_tokens": "{100: 1.0}", "image_tokens": "{7: 0.5, 9: 0.5}", "output_tokens": "{5: 1.0}"}}
        ),
        "chunk-1-dataset.json": json.dumps(
            {
                "0": {"text_tokens": "{1000: 1.0}", "output_tokens": "{50: 1.0}"},
                "1200": {"text_tokens": "{2000: 1.0}", "output_tokens": "{0: 1.0}"},
            }
        ),
    }
    folder.mkdir(exist_ok=True)
    for name, text in {**files, **{key.replace("__", "."): value for key, value in replaced.items()}}.items():
        (folder / name).write_text(text)
    return folder


def test_clients_have_their_own_rates_bursts_and_lengths_over_the_day(tmp_path: Path) -> None:
    counts = np.zeros((3, 2))
    for seed in range(30):
        rows = rows_of(open_trace(clients(tmp_path / "c"), seed=seed))
        for row in rows:
            window, own = int(row["arrival_ns"] // (600 * 10**9)), row["prompt_tokens"] >= 1000
            counts[min(window, 2), int(own)] += 1 / 30
            expected = ({107, 109}, {5}) if not own else ({1000, 2000}, {50, 1})
            assert row["prompt_tokens"] in expected[0]
            assert row["output_tokens"] in expected[1]
    assert counts[:, 0] == pytest.approx([1200, 1200, 1200], rel=0.05)
    assert counts[1:, 1] == pytest.approx([2400, 2400], rel=0.1)
    assert counts[0, 1] < 60, "the first window is of the first request's clock"


def test_clients_are_the_same_for_a_seed_however_they_are_read(tmp_path: Path) -> None:
    folder = clients(tmp_path / "c")
    trace = open_trace(folder, seed=3)
    whole = rows_of(trace)
    assert trace.info.rows == len(whole)
    assert rows_of(trace, rows=11) == whole
    assert rows_of(trace.window(400, 900), rows=5) == rows_of(trace.window(400, 900))
    assert [row["arrival_ns"] for row in whole] == column(trace, "arrival_ns").tolist()
    assert rows_of(open_trace(folder, seed=4)) != whole
    assert open_trace(folder, rows=20).info.rows == 20
    assert open_trace(folder, seed=4).info.sha256 != trace.info.sha256


def archive(path: Path, *folders: str) -> Path:
    """A tar.gz of clients in each of these folders, and of a file that belongs to none."""
    files = clients(path.with_name("unpacked"))
    (files / "README.md").write_text("about")
    with tarfile.open(path, "w:gz") as made:
        for folder in folders:
            for file in sorted(files.iterdir()):
                made.add(file, f"{folder}/{file.name}")
    return path


def test_clients_in_an_archive_are_those_of_the_folder(tmp_path: Path) -> None:
    path = archive(tmp_path / "all.tar.gz", "Main/data/text/small", "Main/data/text/large", "Main/data/image/small")
    inside = open_trace(path / "text" / "small", seed=3)
    unpacked = open_trace(tmp_path / "unpacked", seed=3)
    assert (inside.info.name, inside.info.sha256) == ("small", unpacked.info.sha256)
    assert rows_of(inside.limit(200)) == rows_of(unpacked.limit(200))
    for folder, message in (
        ("tiny", "no clients in a folder tiny; there are Main/data/text/small, Main/data/text/large"),
        ("small", "several folders end in small: name one of Main/data/text/small, Main/data/image/small"),
    ):
        with pytest.raises(TraceError, match=message):
            open_trace(path / folder)
    with pytest.raises(TraceError, match=r"all\.tar\.gz/FOLDER"):
        open_trace(path)
    with pytest.raises(TraceError, match="is a file, and no archive"):
        open_trace(tmp_path / "unpacked" / "README.md" / "x")
    with pytest.raises(
        TraceError, match="servegen is a public data set that is not here yet; kvrm trace fetch servegen"
    ):
        open_trace("servegen/text/small")


def test_a_client_in_an_archive_has_both_files(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "half.tar", "w") as made:
        made.add(clients(tmp_path / "c") / "chunk-0-trace.csv", "d/chunk-0-trace.csv")
    with pytest.raises(TraceError, match=r"chunk-0-dataset\.json: is not in the archive; a client has both files"):
        open_trace(tmp_path / "half.tar" / "d")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("chunk-0-trace.csv", "0,1,1\n0,1,1\n", "row 2: '0,1,1': expected second,rate,cv with seconds that ascend"),
        ("chunk-0-trace.csv", "0,nan,1\n", "row 1: '0,nan,1'"),
        ("chunk-0-trace.csv", "0,-1,1\n", "row 1: '0,-1,1'"),
        ("chunk-0-trace.csv", "zero,1\n", "row 1: 'zero,1'"),
        ("chunk-0-dataset.json", "{", "is not JSON"),
        ("chunk-0-dataset.json", "{}", "expected an object of stretches"),
        ("chunk-0-dataset.json", '{"5": {"text_tokens": "{1: 1}", "output_tokens": "{1: 1}"}}', "begins at second 5"),
        ("chunk-0-dataset.json", '{"0": {"text_tokens": "{1: 1}"}}', "expected text_tokens and output_tokens"),
        ("chunk-0-dataset.json", '{"0": {"text_tokens": "__import__(1)", "output_tokens": "{}"}}', "is no dictionary"),
        ("chunk-0-dataset.json", '{"0": {"text_tokens": "{1: 0}", "output_tokens": "{1: 1}"}}', "add up to 0"),
        ("chunk-0-dataset.json", '{"0": {"text_tokens": "{-1: 1}", "output_tokens": "{1: 1}"}}', "-1: 1: expected"),
    ],
)
def test_a_wrong_file_of_a_client_is_named(tmp_path: Path, file: str, text: str, message: str) -> None:
    folder = clients(tmp_path / "c")
    (folder / file).write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(folder)
    assert file in str(caught.value)


def test_a_client_without_its_lengths_or_a_folder_that_asks_for_nothing_is_refused(tmp_path: Path) -> None:
    folder = clients(tmp_path / "c")
    (folder / "chunk-1-dataset.json").unlink()
    with pytest.raises(TraceError, match=r"chunk-1-dataset\.json: cannot be read .* a client has both files"):
        open_trace(folder)
    shutil.rmtree(folder)
    silent = clients(tmp_path / "c")
    for number in range(2):
        (silent / f"chunk-{number}-trace.csv").write_text("0,0,0\n600,0,0\n")
    with pytest.raises(TraceError, match="its clients ask for nothing"):
        open_trace(silent)


@pytest.mark.real
def test_the_public_clients_come_at_the_rates_of_their_files(shared_traces: Path) -> None:
    folder = shared_traces / "servegen/multimodal/mm-image"
    rates = np.array(
        [
            [float(line.split(",")[1]) for line in path.read_text().splitlines()]
            for path in sorted(folder.glob("chunk-*-trace.csv"))
        ]
    )
    trace = open_trace(folder)
    counts = np.bincount(column(trace, "arrival_ns") // (3600 * 10**9), minlength=24)[:24]
    hours = rates.sum(axis=0).reshape(24, 6).sum(axis=1) * 600
    assert counts == pytest.approx(hours, rel=0.1)
    assert trace.info.rows == pytest.approx(rates.sum() * 600, rel=0.02)

"""The public traces: the statistics published beside them, to the digits given, and the presets fitted to them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from kvrm_traces import Trace, inspect_trace, open_trace
from kvrm_traces.synth.lengths import Quantiles
from kvrm_traces.synth.preset import load_presets
from tests.traces.rows import column, rows_of

pytestmark = pytest.mark.real

CONV = "azure2023/AzureLLMInferenceTrace_conv.csv"
CODE = "azure2023/AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
WINDOW = "azure2024_window/azure_llm_code_v3_1024.csv"


def agrees(value: float | None, given: str) -> bool:
    """Equal to the digits given, which may have been rounded twice (2047.848, 2047.85, 2047.9)."""
    decimals = len(given.partition(".")[2])
    return value is not None and abs(value - float(given)) <= 0.55 * 10**-decimals


@pytest.mark.parametrize(
    ("path", "rows", "span", "rate", "cv", "fano", "prompt", "output"),
    [
        (
            CONV,
            19_366,
            "3501.7",
            "5.530",
            "1.09",
            "1.39/3.86/16.1",
            "1154.7/1020/2734.5/4142/14050",
            "211.1/129/424/601/1000",
        ),
        (CODE, 8_819, "3435.9", "2.566", "13.15", "13.2/71.6/164", "2047.9/1469/5188/7436/7437", "27.9/13/55/251/1899"),
        (
            MOONCAKE,
            12_031,
            "3537",
            "3.401",
            "3.03",
            "7.90/2.10/2.90",
            "12035/6909/27367/85400/126195",
            "342.6/350/597/1118/2000",
        ),
        (
            WINDOW,
            1_024,
            "350.8",
            "2.916",
            "1.12",
            "1.38/3.41/0.49",
            "3053/2104/7650/7684/7686",
            "23.7/9.5/46.7/265/1175",
        ),
    ],
)
def test_the_published_statistics(
    shared_traces: Path, path: str, rows: int, span: str, rate: str, cv: str, fano: str, prompt: str, output: str
) -> None:
    report = inspect_trace(open_trace(shared_traces / path, strict=True))
    assert report.info.rows == rows
    assert (report.info.streams, report.info.descents, report.zero_rows) == (1, 0, {})
    assert report.duplicates == (1 if path == MOONCAKE else 0)
    assert agrees(report.info.span_s, span)
    assert agrees(report.rate_per_s, rate)
    assert agrees(report.gap_cv, cv)
    assert all(agrees(*pair) for pair in zip(report.fano.values(), fano.split("/"), strict=True))
    for stats, given in ((report.prompt_tokens, prompt), (report.output_tokens, output)):
        values = (stats.mean, stats.p50, stats.p90, stats.p99, stats.max)
        assert all(agrees(*pair) for pair in zip(values, given.split("/"), strict=True)), (values, given)


def test_prefix_reuse_of_the_mooncake_conversation(shared_traces: Path) -> None:
    report = inspect_trace(open_trace(shared_traces / MOONCAKE))
    reuse, consistency = report.prefix_reuse, report.hash_consistency
    assert reuse is not None
    assert consistency is not None
    assert (consistency.rows_without, consistency.other_prefix, consistency.other_fill) == (0, 0, 0)
    assert reuse.unique_blocks == 182_790
    assert (agrees(reuse.infinite_blocks, "0.3664"), agrees(reuse.infinite_tokens, "0.3736")) == (True, True)
    lru = {percent: round(rate, 4) for percent, rate in reuse.lru_blocks.items()}
    assert lru == {1: 0.0523, 5: 0.1954, 10: 0.2784, 25: 0.3535, 50: 0.3631}
    assert all(rate <= reuse.belady_blocks[percent] <= reuse.infinite_blocks for percent, rate in lru.items())
    assert round(reuse.belady_blocks[1], 3) == 0.246, "ours: the table has no such column"


def test_mooncake_ties_are_told_and_keep_the_order_of_the_file(shared_traces: Path) -> None:
    """A05: 10,851 of 12,030 gaps are zero, in steps of about 3 s."""
    trace = open_trace(shared_traces / MOONCAKE)
    assert trace.info.ties == 10_851
    assert any("10851 requests arrive with the one before" in n and "3 s apart" in n for n in trace.info.notes)
    assert column(trace, "prompt_tokens")[:5].tolist() == [6758, 7322, 7236, 2290, 6760]


def test_burstgpt_and_vidur_samples(shared_traces: Path) -> None:
    """A10: the sample's row without tokens is rejected by reason."""
    burst = open_trace(shared_traces / "burstgpt_sample/BurstGPT_1_head30_rows_crosschecked.csv")
    assert (burst.info.rows, burst.info.rejected) == (29, {"prompt_tokens below 1": 1})
    lengths = open_trace(
        shared_traces / "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", arrivals="poisson:3"
    )
    assert lengths.info.rows == 28_257


@pytest.mark.parametrize("path", [CONV, CODE, MOONCAKE, WINDOW])
def test_round_trips_concatenations_and_compressions_of_real_files(
    shared_traces: Path, tmp_path: Path, path: str
) -> None:
    """A20: converting is identity; a rotated file is sorted back, stable."""
    trace = open_trace(shared_traces / path)
    trace.to_parquet(tmp_path / "t.parquet")
    again = open_trace(tmp_path / "t.parquet")
    assert rows_of(again) == rows_of(trace)
    same = {"source": "", "sha256": "", "name": "", "notes": ()}
    assert dataclasses.replace(again.info, **same) == dataclasses.replace(trace.info, **same)

    lines = (shared_traces / path).read_text().splitlines()
    header = [] if path.endswith(".jsonl") else [lines.pop(0)]
    cut = next(at for at in range(len(lines) // 3, len(lines)) if _stamp(lines[at]) != _stamp(lines[at - 1]))
    rotated = tmp_path / f"rotated{Path(path).suffix}"
    rotated.write_text("\n".join([*header, *lines[cut:], *lines[:cut]]))
    turned = open_trace(rotated)
    assert without_hashes(turned) == without_hashes(trace)
    assert turned.info.ties == trace.info.ties
    assert any(note.startswith("1 request was earlier") for note in turned.info.notes)
    assert turned.info.streams == 2
    shutil.copy(rotated, tmp_path / "named.any")
    assert open_trace(tmp_path / "named.any").info.rows == trace.info.rows


def _stamp(line: str) -> str:
    return line.split(",")[0] if not line.startswith("azure-code") else line.split(",")[1]


def without_hashes(trace: Trace) -> list[dict[str, object]]:
    """Rows but for their dense ids, which are numbered in the order of the file."""
    return [{key: value for key, value in row.items() if key != "prefix_hashes"} for row in rows_of(trace)]


@pytest.mark.parametrize(
    ("preset", "path"), [("azure-conv-like", CONV), ("azure-code-like", CODE), ("long-context", MOONCAKE)]
)
def test_presets_hold_the_quantiles_of_the_traces_that_they_name(shared_traces: Path, preset: str, path: str) -> None:
    trace = open_trace(shared_traces / path)
    fitted = load_presets()[preset]
    for lengths, name in ((fitted.prompt, "prompt_tokens"), (fitted.output, "output_tokens")):
        assert isinstance(lengths, Quantiles)
        expected = np.rint(np.quantile(column(trace, name), lengths.probabilities)).astype(int)
        assert list(lengths.values) == expected.tolist()


@pytest.mark.parametrize(("preset", "path"), [("azure-conv-like", CONV), ("azure-code-like", CODE)])
def test_presets_have_the_burstiness_of_the_traces_that_they_name(shared_traces: Path, preset: str, path: str) -> None:
    real = inspect_trace(open_trace(shared_traces / path))
    ours = inspect_trace(open_trace(preset, rows=400_000))
    assert ours.rate_per_s == pytest.approx(real.rate_per_s, rel=0.03)
    assert ours.gap_cv == pytest.approx(real.gap_cv, rel=0.05)
    for window_s, fano in real.fano.items():
        assert ours.fano[window_s] == pytest.approx(fano, rel=0.2)

"""`replay` and `compare` end to end, on a short built-in trace."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_process import kvrm

SHORT = ("azure-conv-like", "--rows", "60")
RUN_KEYS = [
    "policy",
    "model",
    "hardware",
    "calibrated",
    "trace",
    "counts",
    "ttft_s",
    "itl_s",
    "tpot_exclusive_s",
    "tpot_inclusive_s",
    "e2e_s",
    "queue_s",
    "output_tokens_per_s",
    "requests_per_s",
    "reserved_kv_bytes",
    "allocated_kv_bytes",
    "used_kv_bytes",
    "kv_footprint_bytes",
    "pool_blocks",
    "block_fill",
    "transfer",
    "padding_waste",
    "captures",
    "preemptions",
    "recomputed_tokens",
    "prefix_hit_tokens",
    "spikes",
    "warnings",
    "sim",
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one comparison of two policies."""
    folder = tmp_path_factory.mktemp("compare") / "out"
    done = kvrm("compare", *SHORT, "--policy", "graph-paged", "--policy", "kv-rm", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "kv-rm" in done.stdout
    assert f"figure: {folder / 'comparison.png'}" in done.stdout
    return folder


def runs(text: str) -> list[dict[str, Any]]:
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert document["schema"] == 1
    found = document["runs"]
    assert isinstance(found, list)
    return found


def test_a_comparison_writes_a_folder_a_run_the_tables_and_the_figure(compared: Path) -> None:
    assert {path.name for path in compared.iterdir()} == {
        "graph-paged",
        "kv-rm",
        "comparison.md",
        "comparison.csv",
        "comparison.png",
        "comparison.svg",
        "summary.json",
    }
    assert {path.name for path in (compared / "kv-rm").iterdir()} == {
        "run.toml",
        "requests.parquet",
        "steps.parquet",
        "pool.parquet",
        "summary.json",
    }
    assert (compared / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert [run["policy"] for run in runs((compared / "summary.json").read_text())] == ["graph-paged", "kv-rm"]


def test_the_audit_holds_in_every_run(compared: Path) -> None:
    for run in runs((compared / "summary.json").read_text()):
        counts = run["counts"]
        parts = ("completed", "rejected", "truncated", "unfinished")
        assert counts["injected"] == 60 == sum(counts[part] for part in parts)


def test_json_is_alone_on_stdout_has_every_key_and_writes_nothing(tmp_path: Path) -> None:
    done = kvrm("compare", *SHORT, "--policy", "static", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(done.stdout)
    assert [key for key in RUN_KEYS if key not in run] == []
    assert list(tmp_path.iterdir()) == []


def test_without_out_a_comparison_goes_to_a_numbered_folder(tmp_path: Path) -> None:
    for number in (1, 2):
        assert kvrm("compare", *SHORT, "--policy", "dynamic", cwd=tmp_path).returncode == 0
        assert (tmp_path / "runs" / f"compare-azure-conv-like-{number}" / "summary.json").is_file()


def test_the_trace_is_echoed_before_the_run(tmp_path: Path) -> None:
    """A01: unit, span and rate are said, on stderr, so that stdout holds the result alone."""
    done = kvrm("replay", *SHORT, "--table", "csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "azure-conv-like" in done.stderr
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert "kv-rm" in row.values()


def test_markdown_is_a_table_and_uncalibrated_is_said_beside_the_figures(compared: Path) -> None:
    text = (compared / "comparison.md").read_text()
    assert "| | graph-paged | kv-rm |" in text
    assert "uncalibrated" in text


def test_force_replaces_and_the_result_is_the_same(tmp_path: Path) -> None:
    """E09: two runs with the same inputs write the same records."""
    target = tmp_path / "a"
    arguments = ("replay", *SHORT, "--policy", "kv-rm-delta", "--out", target)
    assert kvrm(*arguments).returncode == 0
    first = (target / "requests.parquet").read_bytes()
    assert kvrm(*arguments).returncode == 2
    assert kvrm(*arguments, "--force").returncode == 0
    assert (target / "requests.parquet").read_bytes() == first


def test_both_drivers_give_the_same_summary() -> None:
    def summary(driver: str) -> dict[str, Any]:
        done = kvrm("replay", *SHORT, "--driver", driver, "--check", "--json")
        assert done.returncode == 0, done.stderr
        (run,) = runs(done.stdout)
        del run["sim"]  # holds wall times
        return run

    assert summary("span") == summary("events")


def test_load_and_replica_options_reach_the_run() -> None:
    done = kvrm(
        *("replay", *SHORT, "--limit", "40", "--replicas", "2", "--speedup", "2", "--policy", "graph-paged"),
        *("--pool-blocks", "2000", "--set", "pager.block_size_tokens=32", "--prefill", "separate", "--json"),
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs(done.stdout)
    assert run["counts"]["injected"] == 20
    assert run["pool_blocks"] == 2000


def test_stopping_early_keeps_the_unfinished_in_the_counts() -> None:
    """A22, E02: requests that were not done at the stop are rows marked unfinished."""
    done = kvrm("replay", *SHORT, "--stop-at", "5", "--json")
    (run,) = runs(done.stdout)
    assert run["counts"]["injected"] > run["counts"]["completed"]
    assert run["counts"]["unfinished"] > 0

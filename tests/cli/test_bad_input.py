"""Wrong input of every kind: exit code 2, one line that names the file, row or key, and nothing half-written."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.cli.cli_process import kvrm, refusal

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = HEADER + "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n"


def trace(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "empty"),
        (bytes(range(256)) * 8, "trace.csv"),
        ("when,in,out\n1,2,3\n", "when"),
        (HEADER, "trace.csv"),
        (gzip.compress(GOOD.encode())[:40], "trace.csv"),
    ],
    ids=["empty", "binary", "wrong header", "header only", "truncated gzip"],
)
def test_a_file_that_is_no_trace(tmp_path: Path, content: str | bytes, expected: str) -> None:
    message = refusal("replay", trace(tmp_path, content), "--out", tmp_path / "out")
    assert "trace.csv" in message
    assert expected in message
    assert not (tmp_path / "out").exists()


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "nowhere.csv" in refusal("replay", tmp_path / "nowhere.csv")
    assert str(tmp_path) in refusal("replay", tmp_path)


@pytest.mark.parametrize("value", ["nan", "-5", "1e30", "99999999999999999999", "many"])
def test_a_wrong_number_is_refused_with_its_row_under_strict(tmp_path: Path, value: str) -> None:
    path = trace(tmp_path, GOOD + f"2023-11-16 18:17:05.0319600,{value},7\n")
    message = refusal("replay", path, "--strict")
    assert value in message
    assert "row 3" in message or "row 4" in message


def test_a_row_without_an_arrival_is_refused_with_its_number(tmp_path: Path) -> None:
    """A03: missing timestamps are refused by default; reading them as zero must be asked for by name."""
    path = trace(tmp_path, GOOD + ",10,7\n")
    assert "row" in refusal("replay", path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--policy", "kv-mr"], "'kv-rm'"),
        (["--model", "llama-3-8"], "'llama-3-8b'"),
        (["--hardware", "a100-80gb-smx"], "'a100-80gb-sxm'"),
        (["--set", "pager.block_size=16"], "block_size_tokens"),
        (["--set", "pager.placement=lfio"], "'lifo'"),
        (["--set", "reserve.mode=max_len"], "kv-rm"),
        (
            ["--policy", "graph-paged", "--set", "launch.mode=eager"],
            "itself sets launch.batch_sizes, launch.mixed: unset with --set launch.batch_sizes= --set launch.mixed=",
        ),
        (["--model", "llama-3-70b"], "does not fit"),
        (["--tp", "3"], "3"),
        (["--max-context", "9000"], "8192"),
        (["--memory-utilisation", "1.5"], "memory_utilisation"),
        (["--policy", "no/such/policy.toml"], "no/such/policy.toml"),
    ],
)
def test_a_wrong_replica_is_named_before_the_trace_is_read(arguments: list[str], expected: str) -> None:
    """E10: settings are checked at the boundary, with the key, the value and what would be right."""
    assert expected in refusal("replay", "no-such-trace.csv", *arguments)


def test_what_a_preset_sets_is_unset_as_the_refusal_says() -> None:
    unset = ["--set", "launch.batch_sizes=", "--set", "launch.mixed="]
    arguments = ["replay", "azure-conv-like", "--rows", "5", "--policy", "graph-paged", "--set", "launch.mode=eager"]
    done = kvrm(*arguments, *unset)
    assert done.returncode == 0, done.stderr
    own = [*arguments, "--set", "launch.batch_sizes=[4]", "--set", "launch.mixed="]
    assert "itself sets" not in refusal(*own), "that one was given, not the preset's"


def test_an_unknown_built_in_trace_suggests_the_nearest() -> None:
    assert "azure-conv-like" in refusal("replay", "azure-con-like")


@pytest.mark.parametrize("command", ["replay", "compare"])
def test_output_is_refused_before_the_work(tmp_path: Path, command: str) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (tmp_path / "file").write_text("")
    assert "taken exists" in refusal(command, "azure-conv-like", "--out", taken)
    assert "cannot be written" in refusal(command, "azure-conv-like", "--out", tmp_path / "file" / "out")
    assert list(taken.iterdir()) == []


def test_a_row_that_fits_no_empty_pool_is_rejected_and_serving_nothing_is_a_failure(tmp_path: Path) -> None:
    """A09, B02: requests that no empty pool can hold are rejected and counted; a run that served none exits with 1."""
    done = kvrm("replay", trace(tmp_path, GOOD), "--policy", "graph-paged", "--pool-blocks", "2")
    assert done.returncode == 1
    assert "none of 2 requests completed (2 rejected, 0 unfinished)" in done.stderr

"""Files that are no trace: one line that names the file and says what would be right, never another exception."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import InputError, KvrmError, TraceError, open_trace
from tests.traces.rows import csv_of, written

GOOD = csv_of(*((i, 1, 1) for i in range(3000)))


def test_a_trace_error_is_an_input_error_of_exit_code_2() -> None:
    assert issubclass(TraceError, InputError)
    assert issubclass(InputError, KvrmError)
    assert (TraceError.exit_code, KvrmError.exit_code) == (2, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty; expected a header or a first record"),
        (b"\n \r\n\n", "holds only blank lines"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00", r"is binary \(a zero byte at 7\); expected CSV, JSONL or Parquet"),
        (b"arrival_ms,prompt\xff\xfe\n1,2\n", "is not UTF-8 text"),
        (b"a,b,c\n1,2,3\n", "unknown csv columns a, b, c; known are azure .*TIMESTAMP"),
        (b'{"a": 1}\n', "unknown jsonl columns a; known are bailian"),
        (b'{"a": 1,\n', "row 1 is not JSON"),
        (b'[{"a": 1}]\n', "is a JSON array; expected JSONL"),
        (b"arrival_ms,prompt_tokens,output_tokens\n", "holds no usable request: a header but no rows"),
        (
            b"arrival_ms,prompt_tokens,output_tokens\n1,0,1\n",
            "holds no usable request: 1 row rejected: .*row 1: prompt",
        ),
        (b"arrival_ms,prompt_tokens,prompt_tokens\n1,0,1\n", "the header names column 'prompt_tokens' twice"),
        (b"PAR1 and then nothing of the kind", "begins as Parquet but cannot be read as it"),
        (b"\x1f\x8b and then nothing of the kind", "damaged or cut short, gzip"),
        (b"\x28\xb5\x2f\xfd and then nothing", "damaged or cut short, zstd"),
        (gzip.compress(GOOD.encode())[:-500], "damaged or cut short, gzip"),
        (GOOD.encode() + b"5,\xff,1\n", "is not UTF-8 text"),
        (GOOD.encode() * 60 + b"5,\xff,1\n", "at row [0-9]+ or later: not readable as CSV .*invalid UTF8"),
        (b"arrival_ms,prompt_tokens,output_tokens\n" + b"7" * (1 << 23), "not readable as CSV"),
        (b"\xff" * 100, "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_what_would_be_right(tmp_path: Path, data: bytes, message: str) -> None:
    path = written(tmp_path, data, "bad.bin")
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory; name one trace file"):
        open_trace(tmp_path)
    with pytest.raises(TraceError, match=r"missing\.csv: no such file"):
        open_trace(tmp_path / "missing.csv")
    with pytest.raises(
        TraceError, match="no such file, and no built-in trace of this name; did you mean 'azure-conv-like'"
    ):
        open_trace("azure-conv-lik")
    with pytest.raises(TraceError, match="built-in are azure-code-like, azure-conv-like"):
        open_trace("zzz")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="is not a regular file"):
        open_trace(tmp_path / "pipe")


def test_options_that_say_nothing_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    with pytest.raises(TraceError, match="rows is the length of a built-in trace; use limit"):
        open_trace(path, rows=5)
    with pytest.raises(TraceError, match="missing_timestamp 'skip': must be refuse or zero"):
        open_trace(path, missing_timestamp="skip")  # type: ignore[arg-type]  # what a caller without types may do
    with pytest.raises(TraceError, match="hash_block_tokens 0: must be 1 or more"):
        open_trace(path, hash_block_tokens=0)
    with pytest.raises(TraceError, match="hash_tolerance_blocks -1: must be"):
        open_trace(path, hash_tolerance_blocks=-1)
    with pytest.raises(TraceError, match="is not Parquet"):
        open_trace(path, format="parquet")
    with pytest.raises(TraceError, match="chat-burst: is a built-in trace, so unit 's' says nothing"):
        open_trace("chat-burst", unit="s")
    open_trace("chat-burst", rows=5).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(TraceError, match="is a converted trace, so arrivals 'poisson:1' says nothing"):
        open_trace(tmp_path / "t.parquet", arrivals="poisson:1")
    lengths = written(tmp_path, "num_prefill_tokens,num_decode_tokens\n1,1\n", "lengths.csv")
    with pytest.raises(TraceError, match="has no column of arrivals, so unit 's' says nothing"):
        open_trace(lengths, unit="s")


def test_no_temporary_copy_outlives_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    trace = open_trace(written(tmp_path, GOOD))
    assert len(list(spool.iterdir())) == 1
    del trace
    assert list(spool.iterdir()) == []
    with pytest.raises(TraceError, match="strict"):
        open_trace(written(tmp_path, GOOD + "x,y,z\n"), strict=True)
    assert list(spool.iterdir()) == []


@given(st.binary(min_size=1, max_size=400))
def test_noise_is_refused_as_a_trace_error_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes
) -> None:
    with pytest.raises(TraceError):
        open_trace(written(tmp_path_factory.mktemp("noise"), noise, "noise"))


@given(at=st.integers(0, 250), byte=st.integers(0, 255), tail=st.booleans())
def test_a_damaged_byte_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, tail: bool
) -> None:
    line = b'{"timestamp": 10, "input_length": 600, "output_length": 5, "hash_ids": [4, 5]}\n'
    text = line * 3 if tail else csv_of(*((i, 70 + i, 5) for i in range(24))).encode()
    damaged = text[: at % len(text)] + bytes([byte]) + text[at % len(text) + 1 :]
    path = written(tmp_path_factory.mktemp("damage"), damaged, "damage")
    try:
        trace = open_trace(path)
    except TraceError:
        return
    assert trace.info.rows == sum(batch.num_rows for batch in trace.batches())


@pytest.mark.parametrize(
    ("text", "where"),
    [("a" * 200_000, "the header"), ("arrival_ms,prompt_tokens,output_tokens\n0,1,2," + "b" * 200_000, "row 1")],
)
def test_a_field_beyond_what_csv_may_hold_is_named(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "long.csv"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(TraceError, match=f"{where} is not CSV"):
        open_trace(path)

"""Any bytes are a trace or a TraceError, never another error, a hang, or memory without end."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import TraceError, inspect_trace, open_trace
from tests.traces.mutations import corpus, damaged
from tests.traces.own_peak import run_alone
from tests.traces.rows import written

SECONDS_A_FILE = 20.0


def read(path: Path, *, whole: bool) -> str | None:
    """Read a file as far as it goes; the message when it is refused. Anything but a TraceError goes through."""
    try:
        trace = open_trace(path)
        rows = sum(batch.num_rows for batch in trace.batches())
        assert rows == trace.info.rows
        if whole:
            json.dumps(inspect_trace(trace).to_dict(), allow_nan=False)
    except TraceError as error:
        return str(error)
    return None


def fuzz(shared_traces: Path, folder: Path, seeds: range) -> tuple[int, int]:
    """Damaged files that were read, and that were refused."""
    heads = corpus(shared_traces, folder)
    names = list(heads)
    counts = [0, 0]
    for seed in seeds:
        name = names[seed % len(names)]
        path = written(folder, damaged(heads[name], random.Random(seed)), "damaged")
        began = time.monotonic()
        try:
            message = read(path, whole=seed % 4 == 0)
        except Exception as error:
            error.add_note(f"seed {seed}, a damaged {name}")
            raise
        assert time.monotonic() - began < SECONDS_A_FILE, f"seed {seed}, a damaged {name}"
        counts[message is not None] += 1
        if message is not None:
            assert "\n" not in message, f"seed {seed}: {message}"
            assert len(message) < 4000, f"seed {seed}: {message[:200]}"
    return counts[0], counts[1]


@pytest.mark.real
def test_damaged_heads_of_real_files_are_read_or_refused(shared_traces: Path, tmp_path: Path) -> None:
    read_on, refused = fuzz(shared_traces, tmp_path, range(450))
    assert min(read_on, refused) > 50, "the damage is neither too mild nor too harsh to tell anything"


@pytest.mark.real
@pytest.mark.long
def test_ten_thousand_damaged_heads_of_real_files(shared_traces: Path, tmp_path: Path) -> None:
    read_on, refused = fuzz(shared_traces, tmp_path, range(1_000_000, 1_010_000))
    assert read_on + refused == 10_000


CELLS = st.one_of(
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "1", "0", "-5", "1e999999", "9" * 30, "0x10", "1_0", "2024-05-10 00:00:00", "NaN"]),
)


@given(rows=st.lists(st.lists(CELLS, min_size=0, max_size=4), min_size=1, max_size=12))
def test_a_csv_of_any_cells_is_read_with_every_row_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["arrival_ms", "prompt_tokens", "output_tokens"], ["0", "1", "1"], *rows])
    path = written(tmp_path_factory.mktemp("c"), text.getvalue().encode("utf-8", "surrogatepass"), "t.csv")
    try:
        info = open_trace(path, missing_timestamp="zero").info
    except TraceError as error:
        refused = str(error)
    else:
        refused = None
    if refused is not None:
        assert "row " in refused or "UTF-8" in refused or "zero byte" in refused
        return
    # Blank lines are no rows; a line break within quotes ends a row, since a trace has one request a line.
    assert 1 <= info.rows + sum(info.rejected.values()) <= 1 + text.getvalue().count("\n")


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=5,
)


@given(
    records=st.lists(
        st.one_of(
            st.fixed_dictionaries(
                {},
                optional=dict.fromkeys(("timestamp", "input_length", "output_length", "hash_ids", "else"), VALUES),
            ),
            VALUES,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_jsonl_of_any_values_is_read_with_every_row_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, records: list[object]
) -> None:
    good = {"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
    text = "\n".join(json.dumps(record) for record in [good, *records])
    path = written(tmp_path_factory.mktemp("j"), text, "t.jsonl")
    try:
        info = open_trace(path).info
    except TraceError as error:
        refused = str(error)
    else:
        refused = None
    if refused is not None:
        assert "row " in refused
        return
    assert info.rows + sum(info.rejected.values()) == 1 + len(records)


def test_a_row_that_is_not_utf8_is_refused_even_when_it_would_be_skipped(tmp_path: Path) -> None:
    lines = b"arrival_ms,prompt_tokens,output_tokens\n" + b"5,6,7\n" * 400_000 + b"5,\xde,6,7,8\n"
    with pytest.raises(TraceError, match=r"at row [0-9]+ or later: not readable as CSV \(invalid UTF8 data: byte 0xde"):
        open_trace(written(tmp_path, lines))


def test_a_file_with_a_million_columns_is_refused_in_a_short_line(tmp_path: Path) -> None:
    header = ",".join(f"column-{at}" for at in range(100_000))
    with pytest.raises(TraceError, match=r"column-19 and 99980 more; known are") as caught:
        open_trace(written(tmp_path, header + "\n1\n"))
    assert len(str(caught.value)) < 1500


def test_json_nested_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="row 1 is not JSON"):
        open_trace(written(tmp_path, '{"a": ' + "[" * 100_000, "t.jsonl"))
    good = '{"timestamp": 5, "input_length": 6, "output_length": 2}\n'
    trace = open_trace(written(tmp_path, good + '{"timestamp": ' + "[" * 100_000 + "\n", "t.jsonl"))
    assert trace.info.rejected == {"not JSON": 1}


@pytest.mark.parametrize("line", ["null", "3", '{"timestamp": 6} null', 'null {"timestamp": 6}', "[null]", "{} {}"])
def test_a_line_that_is_no_object_is_rejected_wherever_it_stands(tmp_path: Path, line: str) -> None:
    good = '{"timestamp": 5, "input_length": 6, "output_length": 2}'
    path = written(tmp_path, "\n".join([good, line, good]), "t.jsonl")
    assert sum(open_trace(path).info.rejected.values()) == 1


def test_numbers_beyond_every_type_are_rejected_by_their_row(tmp_path: Path) -> None:
    text = "arrival_ms,prompt_tokens,output_tokens\n1,2,3\n2,1e999999,3\n3,4,-1e999999\n"
    trace = open_trace(written(tmp_path, text))
    assert trace.info.rejected == {"prompt_tokens too large": 1, "output_tokens too large": 1}
    with pytest.raises(TraceError, match="row 2: arrival '1e999999'"):
        open_trace(written(tmp_path, "arrival_ms,prompt_tokens,output_tokens\n1,2,3\n1e999999,4,3\n"))


BOMB = """
import sys
from kvrm_traces import TraceError, open_trace
try:
    open_trace(sys.argv[1])
except TraceError as error:
    print(error)
"""


@pytest.mark.parametrize("form", ["zstd-of-rows", "zstd-of-nothing", "gzip-of-blanks"])
def test_a_file_that_expands_without_proportion_is_refused_in_little_memory(tmp_path: Path, form: str) -> None:
    header = b"arrival_ms,prompt_tokens,output_tokens\n"
    if form == "gzip-of-blanks":
        data = gzip.compress(b"\n" * (1 << 27), 9)
    else:
        row = b"5,6,7\n" * (1 << 20) if form == "zstd-of-rows" else bytes(1 << 22)
        frame = pa.Codec("zstd", compression_level=19).compress(row, asbytes=True)
        # Frames behind one another are one stream.
        data = pa.Codec("zstd").compress(header, asbytes=True) + frame * 40
    path = written(tmp_path, data, "bomb")
    message, peak_kib = run_alone(BOMB, path, timeout_s=60)
    assert "times its size" in message or "zero byte" in message or "only blank lines" in message
    assert peak_kib < 600 * 1024


def test_a_small_file_of_one_repeated_row_may_shrink_as_it_likes(tmp_path: Path) -> None:
    text = b"arrival_ms,prompt_tokens,output_tokens\n" + b"5,6,7\n" * 200_000
    data = pa.Codec("zstd", compression_level=19).compress(text, asbytes=True)
    assert len(text) > 1000 * len(data)
    assert open_trace(written(tmp_path, data, "t.csv.zst")).info.rows == 200_000

"""Converted traces: the same rows and the same TraceInfo, opened by metadata, and never seen half-written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import BUILTINS, Trace, TraceError, open_trace
from kvrm_traces.parquet import ROW_GROUP_ROWS, write
from kvrm_traces.schema import SCHEMA, TraceInfo
from tests.traces.rows import csv_of, rows_of, written

LINE = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 3, "turn": 2}


LEVELS = "arrival_ms,prompt_tokens,output_tokens,priority\n0,1,1,3\n1,2,2,\n2,3,3,0\n"


def without_origin(info: TraceInfo) -> TraceInfo:
    """What a conversion does not change."""
    return dataclasses.replace(info, source="", sha256="", notes=(), name="")


def test_a_round_trip_is_identical_in_rows_types_and_info(tmp_path: Path) -> None:
    """A20: what is read back is what was written, prefix hashes too."""
    lines = [json.dumps(LINE | {"hash_ids": ids, "type": kind}) for ids, kind in (([1, 2, 3], "a"), ([1, 2, 9], None))]
    trace = open_trace(written(tmp_path, "\n".join([*lines, '{"chat_id": 3}']), "chat.jsonl"))
    trace.to_parquet(tmp_path / "chat.parquet")
    again = open_trace(tmp_path / "chat.parquet")
    assert rows_of(again) == rows_of(trace)
    assert next(again.batches()).schema == next(trace.batches()).schema
    assert without_origin(again.info) == without_origin(trace.info)
    assert again.info.name == "chat"
    assert again.info.rejected
    assert again.info.notes[0] == f"chat.parquet: a converted trace, from {tmp_path / 'chat.jsonl'}"


def test_priorities_survive_a_conversion_and_are_held_to_their_bounds(tmp_path: Path) -> None:
    path = tmp_path / "levels.parquet"
    trace = open_trace(written(tmp_path, LEVELS, "levels.csv"))
    trace.to_parquet(path)
    again = open_trace(path)
    assert again.info.columns == ("arrival_ns", "prompt_tokens", "output_tokens", "priority")
    assert [row["priority"] for row in rows_of(again)] == [3, None, 0]
    table = pa.Table.from_batches(list(trace.batches()))
    rewritten(path, table.set_column(3, SCHEMA.field("priority"), pa.array([0, None, -1], pa.int64())))
    with pytest.raises(TraceError, match="priority is below 0 or above 1000000 in a converted trace"):
        rows_of(open_trace(path))


@given(
    name=st.sampled_from(sorted(BUILTINS)),
    rows=st.integers(1, 400),
    replicas=st.integers(1, 3),
    piece=st.integers(1, 99),
)
def test_converting_a_transformed_trace_keeps_what_it_was(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: int, replicas: int, piece: int
) -> None:
    path = tmp_path_factory.mktemp("converted") / "t.parquet"
    trace = open_trace(name, rows=rows).replicas(replicas).speedup(1.7)
    trace.to_parquet(path)
    assert rows_of(open_trace(path), piece) == rows_of(trace)
    assert without_origin(open_trace(path).info) == without_origin(trace.info)


def test_the_file_does_not_depend_on_how_it_was_fed(tmp_path: Path) -> None:
    trace = open_trace("azure-conv-like", rows=ROW_GROUP_ROWS + 5000)
    write(tmp_path / "a.parquet", trace.info, trace.batches(1000))
    write(tmp_path / "b.parquet", trace.info, trace.batches(1 << 20))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 2
    part = open_trace(tmp_path / "a.parquet").window(10_000, 25_000)
    assert rows_of(part) == rows_of(trace.window(10_000, 25_000))
    assert part.info.rows < ROW_GROUP_ROWS


def test_the_hash_is_of_the_bytes_of_the_file(tmp_path: Path) -> None:
    open_trace("chat-burst", rows=10).to_parquet(tmp_path / "a.parquet")
    open_trace("chat-burst", rows=10, seed=1).to_parquet(tmp_path / "b.parquet")
    hashes = {open_trace(tmp_path / f"{name}.parquet").info.sha256 for name in "ab"}
    assert len(hashes) == 2


def test_a_run_that_dies_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    trace = open_trace("chat-burst", rows=10)
    target = tmp_path / "t.parquet"
    trace.to_parquet(target)
    before = target.read_bytes()

    def dying() -> Iterator[pa.RecordBatch]:
        yield next(trace.batches())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(target, trace.info, dying())
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    assert target.read_bytes() == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    trace = open_trace("chat-burst", rows=10)
    with pytest.raises(TraceError, match="is a directory; name a file"):
        trace.to_parquet(tmp_path)
    with pytest.raises(TraceError, match=r"the folder .*nowhere does not exist"):
        trace.to_parquet(tmp_path / "nowhere" / "t.parquet")


def rewritten(path: Path, table: pa.Table, **metadata: str) -> Path:
    """The table under the metadata of the trace at `path`, some of it changed."""
    kept = {key.decode(): value.decode() for key, value in pq.read_schema(path).metadata.items()}
    pq.write_table(table.replace_schema_metadata({**kept, **metadata}), path)
    return path


def test_a_converted_file_that_others_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    trace = open_trace("chat-burst", rows=10)
    trace.to_parquet(path)
    table = pa.Table.from_batches(list(trace.batches()))
    rewritten(path, table.slice(1))
    with pytest.raises(TraceError, match="its rows are not those of its metadata; convert the source again"):
        open_trace(path)
    trace.to_parquet(path)
    rewritten(path, table.take([9, *range(9)]))
    with pytest.raises(TraceError, match="arrival_ns is blank or not sorted"):
        rows_of(open_trace(path))
    trace.to_parquet(path)
    zero = table.set_column(1, SCHEMA.field("prompt_tokens"), pa.array([0] * 10, pa.int64()))
    rewritten(path, zero)
    with pytest.raises(TraceError, match="prompt_tokens is blank or below 1"):
        rows_of(open_trace(path))
    trace.to_parquet(path)
    with pytest.raises(TraceError, match=r"version 9 .* this kvrm reads version 1"):
        open_trace(rewritten(path, table, **{"kvrm.trace.version": "9"}))
    trace.to_parquet(path)
    with pytest.raises(TraceError, match="its metadata is damaged"):
        open_trace(rewritten(path, table, **{"kvrm.trace": "{}"}))


@given(at=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_damaged_file_raises_nothing_but_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "t.parquet"
    open_trace("chat-burst", rows=200).to_parquet(path)
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(data)
    try:
        rows_of(open_trace(path))
    except TraceError as error:
        assert "t.parquet" in str(error)  # noqa: PT017  # most damages are harmless or silent, so none is expected


def test_a_bit_of_the_footer_that_flips_raises_nothing_but_a_trace_error(tmp_path: Path) -> None:
    """Types that there are not, among others, for which Arrow has errors of its own."""
    path = tmp_path / "t.parquet"
    open_trace("chat-sessions", rows=20).to_parquet(path)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    kinds = set()
    for at in range(footer, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            open_trace(path)
        except TraceError as error:
            assert "t.parquet" in str(error)  # noqa: PT017  # some damages are silent
            kinds.add(type(error.__cause__))
    assert pa.ArrowNotImplementedError in kinds


def test_a_file_that_is_gone_when_its_rows_are_read_is_named(tmp_path: Path) -> None:
    open_trace("chat-burst", rows=5).to_parquet(tmp_path / "t.parquet")
    trace = open_trace(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").unlink()
    with pytest.raises(TraceError, match=r"t\.parquet: damaged, cut short or gone"):
        rows_of(trace)


def test_only_the_columns_that_a_trace_has_are_written(tmp_path: Path) -> None:
    trace: Trace = open_trace(written(tmp_path, csv_of((0, 1, 2))))
    trace.to_parquet(tmp_path / "t.parquet")
    assert pq.read_schema(tmp_path / "t.parquet").names == ["arrival_ns", "prompt_tokens", "output_tokens"]

"""JSONL in pieces. Arrow parses a block of lines at once; a block that it cannot is read again line by line, to say
why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from kvrm_traces.errors import TraceError
from kvrm_traces.readers.piece import Broken, Piece
from kvrm_traces.source import SourceFile

_BLOCK_BYTES = 1 << 22
_BOM = b"\xef\xbb\xbf"

#: Something that may be a second value on a line. Arrow's reader ends the process where a value that is no object, such
#: as null, stands by itself, so no such block is given to it. One with a brace in a text is read line by line for that.
_BEHIND_AN_OBJECT = re.compile(rb"\}[ \t\r]*[^ \t\r\n,}\]]")


def read_jsonl(source: SourceFile, fields: Mapping[str, str]) -> Iterator[Piece]:
    """Yield the columns `fields` (ours -> theirs) of a file with one JSON object a line."""
    number = 1
    for block in _blocks(source):
        lines = [line for line in block.split(b"\n") if line.strip()]
        if lines:
            yield _fast(lines, number, fields) or _slow(lines, number, fields)
            number += len(lines)


def _blocks(source: SourceFile) -> Iterator[bytes]:
    """Whole lines, about _BLOCK_BYTES at a time."""
    rest = b""
    first = True
    with source.opened() as stream:
        while piece := stream.read(_BLOCK_BYTES):
            if first:
                piece, first = piece.removeprefix(_BOM), False
            whole, newline, after = piece.rpartition(b"\n")
            if newline:
                yield rest + whole
                rest = after
            else:
                rest += piece
            if len(rest) > 16 * _BLOCK_BYTES:
                raise TraceError(f"{source.path}: a line of more than {len(rest)} bytes; expected one object a line")
    yield rest


def _fast(lines: list[bytes], number: int, fields: Mapping[str, str]) -> Piece | None:
    joined = b"\n".join(lines)
    if not all(line.lstrip().startswith(b"{") for line in lines) or _BEHIND_AN_OBJECT.search(joined):
        return None
    try:
        table = pa_json.read_json(
            pa.BufferReader(joined), read_options=pa_json.ReadOptions(block_size=1 << 30, use_threads=False)
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(lines) or not set(fields.values()) <= set(table.column_names):
        return None
    if not all(_usual(ours, table.schema.field(theirs).type) for ours, theirs in fields.items()):
        return None
    columns = {ours: table.column(theirs).combine_chunks() for ours, theirs in fields.items()}
    return Piece(columns=columns, numbers=np.arange(number, number + len(lines), dtype=np.int64))


def _usual(ours: str, found: pa.DataType) -> bool:
    """Types that a well-made file gives. Arrays of others may not even be whole: Arrow mixes 1 and [null] into one."""
    if ours == "prefix_hashes":
        return bool(pa.types.is_list(found)) and found.value_type in (pa.int64(), pa.string())
    return found in (pa.int64(), pa.float64(), pa.string(), pa.null()) or bool(pa.types.is_timestamp(found))


def _slow(lines: list[bytes], number: int, fields: Mapping[str, str]) -> Piece:
    records: list[Mapping[str, Any]] = []
    numbers: list[int] = []
    broken: list[Broken] = []
    for at, line in enumerate(lines, start=number):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            broken.append(_broken(at, line, "not JSON", f"one object a line ({error})"))
            continue
        if isinstance(record, dict):
            records.append(record)
            numbers.append(at)
        else:
            broken.append(_broken(at, line, "not a JSON object", "one object a line"))
    columns = {}
    for ours, theirs in fields.items():
        values = [record.get(theirs) for record in records]
        columns[ours] = _hash_lists(values) if ours == "prefix_hashes" else _texts(values)
    return Piece(columns=columns, numbers=np.array(numbers, dtype=np.int64), broken=tuple(broken))


def _broken(number: int, line: bytes, reason: str, right: str) -> Broken:
    return Broken(number=number, text=line[:80].decode("utf-8", "replace"), reason=reason, right=right)


def _texts(values: list[Any]) -> pa.Array:
    """Values of mixed types as the text that a CSV would have."""
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pa.array(texts, pa.string())


def _hash_lists(values: list[Any]) -> pa.Array:
    """Lists of ids, as text; what is no list becomes one entry that is none, so that its length is refused."""
    lists = [
        None if value is None else [_id(entry) for entry in value] if isinstance(value, list) else [str(value)]
        for value in values
    ]
    return pa.array(lists, pa.list_(pa.string()))


def _id(entry: Any) -> str | None:
    return None if entry is None else str(entry)

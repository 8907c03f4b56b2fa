"""Parquet: our own, of which only the metadata is read on opening, and any other whose columns have our names or are
mapped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from kvrm_traces.errors import TraceError
from kvrm_traces.parquet import DAMAGE, VERSION, VERSION_KEY, ParquetStore, opened
from kvrm_traces.readers.piece import Piece
from kvrm_traces.schema import METADATA_KEY, TraceInfo, pace, schema_of
from kvrm_traces.source import SourceFile
from kvrm_traces.trace import Trace


def open_canonical(source: SourceFile) -> Trace | None:
    """The trace that `convert` wrote; None when the file was written by others."""
    metadata = _metadata(source)
    keys = metadata.metadata or {}
    if METADATA_KEY not in keys:
        return None
    if keys.get(VERSION_KEY) != str(VERSION).encode():
        raise TraceError(
            f"{source.path}: written as version {keys.get(VERSION_KEY, b'?').decode()} of a converted trace; "
            f"this kvrm reads version {VERSION}: convert the source again"
        )
    try:
        kept = TraceInfo.from_json(keys[METADATA_KEY].decode())
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{source.path}: its metadata is damaged ({error}); convert the source again") from error
    store = ParquetStore(source.path)
    if store.rows != kept.rows or metadata.schema.to_arrow_schema().remove_metadata() != schema_of(kept.columns):
        raise TraceError(f"{source.path}: its rows are not those of its metadata; convert the source again")
    notes = (f"{source.path.name}: a converted trace, from {kept.source}", pace(kept.rows, kept.span_ns))
    info = dataclasses.replace(kept, source=str(source.path), sha256=source.sha256(), notes=notes, done=())
    return Trace(store, info)


def first_record(source: SourceFile) -> Mapping[str, Any]:
    """The first row of a Parquet file by others, by its columns."""
    names = _metadata(source).schema.to_arrow_schema().names
    with opened(source.path) as file:
        for batch in file.iter_batches(batch_size=1):
            return {name: batch.column(name)[0].as_py() for name in names}
    return dict.fromkeys(names, "")


def read_parquet(source: SourceFile, fields: Mapping[str, str]) -> Iterator[Piece]:
    """Yield the columns `fields` (ours -> theirs) of a Parquet file by others."""
    number = 1
    with opened(source.path) as file:
        for batch in file.iter_batches(batch_size=1 << 16, columns=list(dict.fromkeys(fields.values()))):
            numbers = np.arange(number, number + batch.num_rows, dtype=np.int64)
            yield Piece(columns={ours: batch.column(theirs) for ours, theirs in fields.items()}, numbers=numbers)
            number += batch.num_rows


def _metadata(source: SourceFile) -> Any:
    try:
        return pq.read_metadata(source.path)
    except DAMAGE as error:
        reason = str(error).splitlines()[0]
        raise TraceError(f"{source.path}: begins as Parquet but cannot be read as it ({reason})") from error

"""Canonical Parquet: the file that `convert` writes, and the temporary one behind a trace read from another format."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvrm_traces.arrow import int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.schema import METADATA_KEY, MOST_PRIORITY, SCHEMA, TraceInfo, schema_of

ROW_GROUP_ROWS = 1 << 17

#: Prefix hashes of a row group, about: whoever reads a group holds all of them, 64 MiB.
ROW_GROUP_IDS = 1 << 23

#: Written in the Parquet metadata; a reader refuses a version that it does not know.
VERSION = 1
VERSION_KEY = b"kvrm.trace.version"

#: What Arrow raises over bytes that are no whole Parquet file: a type that there is not, a length beyond all.
DAMAGE = (OSError, pa.ArrowException, UnicodeDecodeError)

_TEXT = [name for name in SCHEMA.names if pa.types.is_string(SCHEMA.field(name).type)]


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """The file for reading; damage found on the way is a TraceError."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except DAMAGE as error:
        reason = str(error).splitlines()[0]
        raise TraceError(f"{path}: damaged, cut short or gone ({reason}); make it again") from error


def _decoded(
    file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows of these groups, a group at a time: asked for all at once, Arrow holds the bytes of all of them."""
    for group in groups:
        yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=list(columns), use_threads=False)


class ParquetStore:
    """Rows of a canonical Parquet file; `origin_ns` is subtracted from arrivals (a spooled one keeps its own clock)."""

    def __init__(self, path: Path, origin_ns: int = 0) -> None:
        self._path = path
        self._origin_ns = origin_ns
        with opened(path) as file:
            self._group_rows = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(self._group_rows)

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`. Raises TraceError when the rows are not a canonical trace."""
        groups, at = self._overlapping(start, stop)
        last_ns = 0
        with opened(self._path) as file:
            for whole in _decoded(file, groups, columns, rows):
                first, at = at, at + whole.num_rows
                batch = whole.slice(max(0, start - first), max(0, min(stop, at) - max(start, first)))
                if batch.num_rows:
                    batch = self._rebased(batch.select(list(columns)))
                    last_ns = self._checked(batch, last_ns)
                    yield batch

    def _overlapping(self, start: int, stop: int) -> tuple[list[int], int]:
        """Row groups that hold rows [start, stop), and the row at which the first of them begins."""
        groups: list[int] = []
        first, at = 0, 0
        for group, count in enumerate(self._group_rows):
            if at < stop and at + count > start:
                first = first if groups else at
                groups.append(group)
            at += count
        return groups, first

    def _rebased(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index("arrival_ns")
        if at < 0 or self._origin_ns == 0:
            return batch
        return batch.set_column(at, SCHEMA.field("arrival_ns"), pc.subtract(batch.column(at), self._origin_ns))

    def _checked(self, batch: pa.RecordBatch, last_ns: int) -> int:
        """The batch's last arrival; a file edited by other hands is caught here rather than in the simulator."""
        for name in ("prompt_tokens", "output_tokens"):
            if name in batch.schema.names:
                column = batch.column(name)
                if column.null_count or pc.min(column).as_py() < 1:
                    raise TraceError(f"{self._path}: {name} is blank or below 1 in a converted trace; convert it again")
        if "priority" in batch.schema.names:
            levels = pc.min_max(batch.column("priority")).as_py()
            if levels["min"] is not None and not 0 <= levels["min"] <= levels["max"] <= MOST_PRIORITY:
                raise TraceError(
                    f"{self._path}: priority is below 0 or above {MOST_PRIORITY} in a converted trace; convert it again"
                )
        if "arrival_ns" not in batch.schema.names:
            return last_ns
        column = batch.column("arrival_ns")
        arrival_ns = np.empty(0, np.int64) if column.null_count else int64_values(column)
        if column.null_count or arrival_ns[0] < last_ns or np.any(np.diff(arrival_ns) < 0):
            raise TraceError(f"{self._path}: arrival_ns is blank or not sorted in a converted trace; convert it again")
        return int(arrival_ns[-1])


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of canonical Parquet: integers bit-packed by difference, so that a replay reads them at memory speed."""
    packed = [name for name in schema.names if pa.types.is_int64(schema.field(name).type)]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name in _TEXT],
        column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    )


def write_groups(writer: pq.ParquetWriter, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches of any size as row groups of one size, so that the file does not depend on how it was fed.

    Rows with many prefix hashes are fewer in a group.
    """
    if "prefix_hashes" in writer.schema.names:
        _write_by_ids(writer, batches)
        return
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        if count >= ROW_GROUP_ROWS:
            table = pa.Table.from_batches(pending)
            full = count - count % ROW_GROUP_ROWS
            writer.write_table(table.slice(0, full), row_group_size=ROW_GROUP_ROWS)
            pending = table.slice(full).to_batches()
            count -= full
    if count:
        writer.write_table(pa.Table.from_batches(pending), row_group_size=ROW_GROUP_ROWS)


def _write_by_ids(writer: pq.ParquetWriter, batches: Iterable[pa.RecordBatch]) -> None:
    """A group ends before the row that would make it too large, by rows or by ids."""
    pending: list[pa.RecordBatch] = []
    rows = ids = 0
    for batch in batches:
        counts = pc.fill_null(pc.list_value_length(batch.column("prefix_hashes")), 0).to_numpy(zero_copy_only=False)
        start = 0
        upto = np.cumsum(counts, dtype=np.int64)
        while start < batch.num_rows:
            before = int(upto[start - 1]) if start else 0
            fit = int(np.searchsorted(upto, before + ROW_GROUP_IDS - ids, side="right"))
            stop = min(batch.num_rows, start + ROW_GROUP_ROWS - rows, fit if rows else max(fit, start + 1))
            if stop > start:
                pending.append(batch.slice(start, stop - start))
                rows, ids, start = rows + stop - start, ids + int(upto[stop - 1]) - before, stop
            if start < batch.num_rows:
                writer.write_table(pa.Table.from_batches(pending), row_group_size=ROW_GROUP_ROWS)
                pending, rows, ids = [], 0, 0
    if pending:
        writer.write_table(pa.Table.from_batches(pending), row_group_size=ROW_GROUP_ROWS)


def write(path: Path, info: TraceInfo, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a trace; `path` appears only once it is whole. Raises TraceError when it cannot be written."""
    if path.is_dir():
        raise TraceError(f"{path}: is a directory; name a file, e.g. {path / (info.name + '.parquet')}")
    if not path.parent.is_dir():
        raise TraceError(f"{path}: the folder {path.parent} does not exist")
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    metadata = {METADATA_KEY: info.to_json(), VERSION_KEY: str(VERSION)}
    try:
        with open_writer(partial, schema_of(info.columns).with_metadata(metadata)) as writer:
            write_groups(writer, batches)
        partial.replace(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        partial.unlink(missing_ok=True)

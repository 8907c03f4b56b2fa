"""A trace that many processes replay: read once, kept as plain Arrow columns that each of them maps.

On one machine the columns lie in a file that every process maps into its memory, so that there is one copy whatever
the number of processes; :meth:`SharedTrace.portable` holds the columns itself, to be sent to another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from kvrm_traces.errors import TraceError
from kvrm_traces.schema import TraceInfo, schema_of
from kvrm_traces.trace import Trace

#: Rows of a record batch of the file; batches are views of it, whatever is asked for.
_BATCH_ROWS = 1 << 17


class TableStore:
    """Rows of a canonical Arrow table; batches are views of it."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._table.num_rows)

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`."""
        wanted = self._table.select(list(columns)).slice(start, max(0, stop - start))
        yield from (batch for batch in wanted.to_batches(max_chunksize=rows) if batch.num_rows)


@dataclass(frozen=True)
class SharedTrace:
    """A trace as it travels to another process: pickled, it is a path, or (``portable``) the columns themselves."""

    info: TraceInfo
    path: Path | None = None
    table: pa.Table | None = None

    def open(self) -> Trace:
        """The trace. Raises TraceError when its file is gone."""
        return Trace(TableStore(self._columns()), self.info)

    def portable(self) -> SharedTrace:
        """The same with its columns in it."""
        return self if self.table is not None else SharedTrace(self.info, table=self._columns())

    def _columns(self) -> pa.Table:
        if self.table is not None:
            return self.table
        try:
            with pa.memory_map(str(self.path)) as file:
                return pa.ipc.open_file(file).read_all()
        except (OSError, pa.ArrowException) as error:
            raise TraceError(f"{self.path}: the shared copy of {self.info.source} cannot be mapped ({error})") from None


def in_memory(trace: Trace) -> SharedTrace:
    """All columns of a trace, in memory."""
    table = pa.Table.from_batches(trace.batches(_BATCH_ROWS), schema_of(trace.info.columns))
    return SharedTrace(trace.info, table=table)


def mapped(trace: Trace, path: Path) -> SharedTrace:
    """Write all columns of a trace to an Arrow file that processes of this machine map. Memory stays flat.

    Raises TraceError when the file cannot be written.
    """
    try:
        with (
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_file(file, schema_of(trace.info.columns)) as writer,
        ):
            for batch in trace.batches(_BATCH_ROWS):
                writer.write_batch(batch)
    except OSError as error:
        raise TraceError(f"{path}: the shared copy of a trace cannot be written ({error})") from error
    return SharedTrace(trace.info, path=path)

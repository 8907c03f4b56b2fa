"""Rows on their way from a text file: kept in a temporary Parquet file, so that memory stays flat and rows are read
once.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from kvrm_traces.arrow import int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.measure import Clock
from kvrm_traces.order import Order
from kvrm_traces.parquet import ParquetStore, open_writer, write_groups
from kvrm_traces.sorting import sort_by_arrival


def spooled(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> tuple[ParquetStore, Clock]:
    """Write the rows to a temporary file, sorted by arrival. The file lives as long as the store that is returned.

    The Clock's ``order`` is that of the source. The store has no rows when there were none.
    """
    clock = Clock()

    def seen(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock.see(int64_values(batch.column("arrival_ns")))
        return batch

    with _temporary() as folder:
        path = folder / "rows.parquet"
        with open_writer(path, schema) as writer:
            write_groups(writer, (seen(batch) for batch in batches if batch.num_rows))
        if clock.descents:
            sort_by_arrival(path, folder / "sorted.parquet", schema)
            path.unlink()
            path = folder / "sorted.parquet"
        store = ParquetStore(path, clock.least_ns)
        if clock.descents:
            clock = _of_sorted(store, clock.order)
    weakref.finalize(store, shutil.rmtree, folder, ignore_errors=True)
    return store, clock


def spooled_columns(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> ParquetStore:
    """Write columns without arrivals to a temporary file, in the order in which they come: they lie beside the rows of
    another store. The file lives as long as the store that is returned.
    """
    with _temporary() as folder:
        path = folder / "columns.parquet"
        with open_writer(path, schema) as writer:
            write_groups(writer, batches)
        store = ParquetStore(path)
    weakref.finalize(store, shutil.rmtree, folder, ignore_errors=True)
    return store


@contextmanager
def _temporary() -> Iterator[Path]:
    """A new folder, which is gone again when what is done in it fails."""
    folder = Path(tempfile.mkdtemp(prefix="kvrm-trace-"))
    try:
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise TraceError(f"{folder}: the temporary copy cannot be written ({error.strerror or error})") from error
        raise


def _of_sorted(store: ParquetStore, order: Order) -> Clock:
    """Sorting brings equal arrivals together, so ties are counted again."""
    clock = Clock()
    for batch in store.batches(0, store.rows, ("arrival_ns",), 1 << 16):
        clock.see(int64_values(batch.column(0)))
    clock.order = order
    return clock

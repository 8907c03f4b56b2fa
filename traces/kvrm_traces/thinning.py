"""The rows that a selection keeps of a trace, as a stream: idle gaps capped, rows sampled, limited, shared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.schema import SCHEMA
from kvrm_traces.selection import Sample, Selection


def kept(batches: Iterator[pa.RecordBatch], selection: Selection, first_row: int) -> Iterator[pa.RecordBatch]:
    """What `selection` keeps of the rows of its window, which begins at row `first_row`; no batch is empty."""
    if selection.idle_cap_ns is not None:
        batches = _capped(batches, selection.idle_cap_ns)
    if selection.sample is not None:
        batches = _sampled(batches, selection.sample, first_row)
        if selection.limit is not None:
            batches = _limited(batches, selection.limit)
    return batches if selection.replicas == 1 else _shared(batches, selection.replicas, selection.index)


def _capped(batches: Iterator[pa.RecordBatch], cap_ns: int) -> Iterator[pa.RecordBatch]:
    """Gaps longer than the cap become the cap; everything behind one is that much earlier."""
    last_ns: int | None = None
    cut_ns = 0
    for batch in batches:
        arrival_ns = int64_values(batch.column("arrival_ns"))
        gaps_ns = np.diff(arrival_ns, prepend=arrival_ns[0] if last_ns is None else last_ns)
        last_ns = int(arrival_ns[-1])
        cuts_ns = cut_ns + np.cumsum(np.maximum(gaps_ns - cap_ns, 0))
        cut_ns = int(cuts_ns[-1])
        at = batch.schema.get_field_index("arrival_ns")
        yield batch.set_column(at, SCHEMA.field("arrival_ns"), int64_column(arrival_ns - cuts_ns))


def _sampled(batches: Iterator[pa.RecordBatch], sample: Sample, first_row: int) -> Iterator[pa.RecordBatch]:
    rng = sample.generator(first_row)
    for batch in batches:
        rows = np.flatnonzero(rng.random(batch.num_rows) < sample.share)
        if rows.size:
            yield _taken(batch, rows)


def _limited(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def _shared(batches: Iterator[pa.RecordBatch], every: int, skip: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if skip < batch.num_rows:
            rows = np.arange(skip, batch.num_rows, every)
            yield _taken(batch, rows)
            skip = int(rows[-1]) + every - batch.num_rows
        else:
            skip -= batch.num_rows


def _taken(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return batch.take(int64_column(rows))

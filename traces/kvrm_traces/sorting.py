"""A stable sort by arrival of a file larger than memory, for traces that were concatenated out of order.

Row groups are sorted into runs; then one stretch of time after another is gathered from the runs that overlap it.
Ties keep the order of the source: runs are gathered in order, and equal arrivals are never in two stretches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kvrm_traces.parquet import ROW_GROUP_ROWS, open_writer, write_groups

#: About how many rows a stretch of time holds, in samples of one row in _SAMPLED.
_STRETCH_ROWS = 1 << 19
_SAMPLED = 1 << 10


def sort_by_arrival(unsorted: Path, target: Path, schema: pa.Schema) -> None:
    """Write the rows of a Parquet file to another one, sorted by arrival_ns, stable."""
    runs = target.with_name(f"{target.name}.runs")
    bounds: list[tuple[int, int]] = []
    samples: list[npt.NDArray[np.int64]] = []
    with pq.ParquetFile(unsorted) as file, open_writer(runs, schema) as writer:
        for group in range(file.metadata.num_row_groups):
            run = _sorted(file.read_row_group(group))
            arrival_ns = run.column("arrival_ns").to_numpy()
            bounds.append((int(arrival_ns[0]), int(arrival_ns[-1])))
            samples.append(arrival_ns[::_SAMPLED])
            writer.write_table(run, row_group_size=ROW_GROUP_ROWS)
    # Four row groups, unless they are large: those with many prefix hashes have fewer rows.
    stretch_rows = min(_STRETCH_ROWS, 4 * sum(sample.size for sample in samples) * _SAMPLED // len(bounds))
    every = max(1, stretch_rows // _SAMPLED)
    splits = np.unique(np.sort(np.concatenate(samples))[::every])[1:].tolist()
    with pq.ParquetFile(runs) as file, open_writer(target, schema) as writer:
        write_groups(writer, _gathered(file, bounds, splits))
    runs.unlink()


def _gathered(file: pq.ParquetFile, bounds: list[tuple[int, int]], splits: list[int]) -> Iterator[pa.RecordBatch]:
    """Stretches [previous split, split) in order of time, each sorted."""
    lowest, beyond = min(least for least, _ in bounds), max(most for _, most in bounds) + 1
    for start, stop in zip([lowest, *splits], [*splits, beyond], strict=True):
        parts = []
        for run, (least, most) in enumerate(bounds):
            if least < stop and most >= start:
                rows = file.read_row_group(run)
                first, last = np.searchsorted(rows.column("arrival_ns").to_numpy(), [start, stop])
                parts.append(rows.slice(first, last - first))
        yield from _sorted(pa.concat_tables(parts)).to_batches()


def _sorted(table: pa.Table) -> pa.Table:
    order = np.argsort(table.column("arrival_ns").to_numpy(), kind="stable")
    return table.take(pa.array(order))

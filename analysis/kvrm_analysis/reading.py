"""Parts of a run's tables: some columns, or some rows, without reading the rest of the file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvrm_analysis.runs import NamedRun
from kvrm_sim.errors import InputError


def columns(run: NamedRun, table: str, names: Sequence[str]) -> pa.Table:
    """Some columns of a run's table, ``steps``, ``requests`` or ``pool``: only they are read from its folder.

    A column that the run does not have is left out; a table that was not kept has none and no rows. Raises InputError
    when the file cannot be read.
    """
    if run.folder is None:
        whole: pa.Table | None = getattr(run, table)
        return pa.table({}) if whole is None else whole.select([name for name in names if name in whole.column_names])
    with _opened(run, table) as file:
        known = set(file.schema_arrow.names)
        return file.read(columns=[name for name in names if name in known])


def rows(run: NamedRun, table: str, first: int, last: int) -> pa.Table:
    """Rows [first, last) of a run's table, all columns: only the row groups that hold them are read.

    Raises InputError when the file cannot be read.
    """
    if run.folder is None:
        whole: pa.Table = getattr(run, table)
        return whole.slice(first, last - first)
    with _opened(run, table) as file:
        sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
        ends = np.cumsum(sizes)
        chosen = np.flatnonzero((ends > first) & (ends - sizes < last)) if last > first else np.zeros(0, np.int64)
        if not len(chosen):
            return file.schema_arrow.empty_table()
        found: pa.Table = file.read_row_groups(chosen.tolist())
        return found.slice(first - int(ends[chosen[0]] - sizes[chosen[0]]), last - first)


def _opened(run: NamedRun, table: str) -> pq.ParquetFile:
    assert run.folder is not None
    path = run.folder / f"{table}.parquet"
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: cannot be read as a run's Parquet file: {error}") from error

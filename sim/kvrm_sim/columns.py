"""The core's records as Arrow tables: the columns of requests.parquet, steps.parquet and pool.parquet.

Column names and units are those of ``state.OUT``, ``WINDOWS`` and ``POOL_SAMPLES`` (docs/metrics.md explains each).
Absent is null here, and -1 in the arrays. Every column is copied out of its records, which the core reuses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvrm_sim.state import END_REASONS, NONE, OUTCOMES, POOL_SAMPLES, RUN_CLASSES, Records

#: Columns that are named otherwise in the files than in the core's records.
RENAMED = {"delivered": "delivered_tokens"}
WORDS = {"outcome": OUTCOMES, "reason": END_REASONS}
NULLABLE = frozenset(
    {
        "admitted_ns",
        "first_token_ns",
        "finish_ns",
        "itl_p50_ns",
        "itl_p99_ns",
        "itl_max_ns",
        "hit_tokens",
        "decode_replica",
        "transfer_ns",
        "transfer_groups",
    }
)

#: `runs_1_blocks`, `runs_2_3_blocks`, …: runs of that many blocks in live block tables, at the sample's time.
RUN_COLUMNS = (
    "runs_1_blocks",
    *(f"runs_{1 << k}_{(2 << k) - 1}_blocks" for k in range(1, RUN_CLASSES - 1)),
    f"runs_{1 << (RUN_CLASSES - 1)}_up_blocks",
)


#: What the records of a cluster have besides; requests whose prompt and decode are on different replicas have more.
REPLICA = ("replica",)
SPLIT = ("replica", "decode_replica", "transfer_ns", "transfer_groups")


def with_fields(dtype: np.dtype[Any], more: tuple[str, ...] = REPLICA) -> np.dtype[Any]:
    """Records of ``OUT``, ``WINDOWS`` or ``POOL_SAMPLES`` with int64 fields behind: those of a cluster."""
    return np.dtype([(name, np.int64) for name in (*(dtype.names or ()), *more)])


def request_table(records: Records) -> pa.Table:
    """``OUT`` records as the columns of requests.parquet: one row for every request injected, as they ended."""
    return _table(records, records.dtype.names or ())


def step_table(records: Records) -> pa.Table:
    """``WINDOWS`` records as the columns of steps.parquet."""
    return _table(records, records.dtype.names or ())


def pool_table(samples: Records, classes: NDArray[np.int64]) -> pa.Table:
    """``POOL_SAMPLES`` records and int64 [samples, RUN_CLASSES] as the columns of pool.parquet."""
    return pool_record_table(pool_records(samples, classes))


def _table(records: Records, names: tuple[str, ...]) -> pa.Table:
    columns = {RENAMED.get(name, name): _column(name, records[name]) for name in names}
    return pa.table(columns, schema=_schema(names))


def _schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(
                RENAMED.get(name, name),
                pa.dictionary(pa.int8(), pa.string()) if name in WORDS else pa.int64(),
                nullable=name in NULLABLE,
            )
            for name in names
        ]
    )


def _column(name: str, values: NDArray[np.int64]) -> pa.Array:
    if name in WORDS:
        return pa.DictionaryArray.from_arrays(values.astype(np.int8), pa.array(WORDS[name]))
    column = np.ascontiguousarray(values)
    absent = column == NONE if name in NULLABLE else None
    return pa.array(column, mask=absent if absent is not None and absent.any() else None)


def pool_record(samples: np.dtype[Any]) -> np.dtype[Any]:
    """A pool sample with its run-length classes in one record."""
    return np.dtype([*((name, np.int64) for name in samples.names or ()), ("classes", np.int64, (RUN_CLASSES,))])


#: Of one replica.
POOL_RECORD = pool_record(POOL_SAMPLES)


def pool_records(samples: Records, classes: NDArray[np.int64]) -> Records:
    """Samples and classes merged into ``pool_record`` of the samples' type."""
    merged = np.zeros(len(samples), pool_record(samples.dtype))
    for name in samples.dtype.names or ():
        merged[name] = samples[name]
    merged["classes"] = classes
    return merged


def pool_record_table(merged: Records) -> pa.Table:
    """Merged records as the columns of pool.parquet."""
    columns = {name: _column(name, merged[name]) for name in merged.dtype.names or () if name != "classes"}
    columns |= {name: _column(name, merged["classes"][:, at]) for at, name in enumerate(RUN_COLUMNS)}
    return pa.table(columns)

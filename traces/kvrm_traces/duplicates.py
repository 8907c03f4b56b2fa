"""Rows that are there twice: the same in every column that the trace has, the time of arrival included."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_values

#: Rows of one stamp that are compared with one another; beyond so many, only among each such part of them.
MOST_AT_ONCE = 1 << 18


class Duplicates:
    """Fed batches of a sorted trace, in order. Equal rows share their arrival, so only ties are compared."""

    def __init__(self) -> None:
        self._count = 0
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0

    def see(self, batch: pa.RecordBatch) -> None:
        """Take the next batch into account."""
        arrival_ns = int64_values(batch.column("arrival_ns"))
        if self._held:
            last_ns = int64_values(self._held[0].column("arrival_ns"))[0]
            upto = int(np.searchsorted(arrival_ns, last_ns, side="right"))
            self._hold(batch.slice(0, upto))
            if upto == batch.num_rows and self._held_rows < MOST_AT_ONCE:
                return
            self._close()
            batch, arrival_ns = batch.slice(upto), arrival_ns[upto:]
            if batch.num_rows == 0:
                return
        last_group = int(np.searchsorted(arrival_ns, arrival_ns[-1]))
        self._compare([batch.slice(0, last_group)])
        self._hold(batch.slice(last_group))

    def count(self) -> int:
        """How many rows repeat an earlier one."""
        self._close()
        return self._count

    def _hold(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._held.append(batch)
            self._held_rows += batch.num_rows

    def _close(self) -> None:
        if self._held:
            self._compare(self._held)
            self._held, self._held_rows = [], 0

    def _compare(self, batches: list[pa.RecordBatch]) -> None:
        keys = [
            np.concatenate([int64_values(batch.column(name)) for batch in batches])
            for name in ("output_tokens", "prompt_tokens", "arrival_ns")
        ]
        if not np.any(keys[-1][1:] == keys[-1][:-1]):
            return
        alike = _alike(keys)
        if alike.size == 0:
            return
        rows = pa.Table.from_batches(batches).take(pa.array(alike)).to_pylist()
        self._count += len(rows) - len({repr(row) for row in rows})


def _alike(keys: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Places of the rows that have another row with the same keys, ascending."""
    order = np.lexsort(keys)
    same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    one_of = np.concatenate((same, [False])) | np.concatenate(([False], same))
    return np.sort(order[one_of])

"""Spreading requests that share one stamp: a clock that ticks in seconds makes bursts that never were.

Optional, seeded, and named: a trace as published is replayed as published unless this is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.schema import SCHEMA
from kvrm_traces.store import Store
from kvrm_traces.stream import Stream


class SpreadStore:
    """The rows of `store`, each later by a uniform draw from [0, within_ns), but never past the next different arrival.

    Requests of one stamp keep the order of the file. A stamp that stands alone stays where it is, unless `alone` moves
    it too. The draw of a row depends on the seed and on its place in the store alone.
    """

    def __init__(self, store: Store, within_ns: int, seed: int, *, alone: bool = False) -> None:
        self._store = store
        self._within_ns = within_ns
        self._seed = seed
        self._alone = alone

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._store.rows

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`. Arrivals are drawn from the first row on: a stream has no index."""
        if "arrival_ns" not in columns:
            yield from self._store.batches(start, stop, columns, rows)
            return
        spread = Stream(self._spread())
        spread.take(start)
        for batch in self._store.batches(start, stop, columns, rows):
            at = batch.schema.get_field_index("arrival_ns")
            drawn = int64_column(spread.take(batch.num_rows))
            yield batch.set_column(at, SCHEMA.field("arrival_ns"), drawn)

    def _spread(self) -> Iterator[npt.NDArray[np.int64]]:
        """Blocks of spread arrivals; the last stamp of a block waits for the next one to know its room."""
        rng = np.random.default_rng(self._seed)
        held = np.empty(0, np.int64)
        for batch in self._store.batches(0, self.rows, ("arrival_ns",), 1 << 16):
            seen = np.concatenate((held, int64_values(batch.column(0))))
            whole = int(np.searchsorted(seen, seen[-1]))
            if whole:
                yield self._moved(seen[:whole], int(seen[whole]), rng)
            held = seen[whole:]
        if held.size:
            yield self._moved(held, int(held[0]) + self._within_ns, rng)

    def _moved(self, stamps_ns: npt.NDArray[np.int64], next_ns: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Whole groups of equal stamps, followed by a stamp at `next_ns`."""
        different, group, size = np.unique(stamps_ns, return_inverse=True, return_counts=True)
        room_ns = np.minimum(np.diff(different, append=next_ns), self._within_ns)
        if not self._alone:
            room_ns[size == 1] = 0
        moved = stamps_ns + np.floor(rng.random(stamps_ns.size) * room_ns[group]).astype(np.int64)
        # Groups do not reach into one another, so this sorts each apart.
        moved.sort()
        return moved

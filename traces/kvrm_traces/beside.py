"""A column that lies beside the rows of a trace: added to them, or in place of one of theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kvrm_traces.schema import SCHEMA
from kvrm_traces.store import Store


class BesideStore:
    """The rows of `store` with the column `name` of `beside`, which has as many; :class:`kvrm_traces.store.Store`."""

    def __init__(self, store: Store, beside: Store, name: str) -> None:
        self._store = store
        self._beside = beside
        self._name = name

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._store.rows

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`."""
        if self._name not in columns:
            yield from self._store.batches(start, stop, columns, rows)
            return
        beside = _Pieces(self._beside.batches(start, stop, (self._name,), rows))
        others = [name for name in columns if name != self._name]
        if not others:
            yield from beside.rest()
            return
        at = list(columns).index(self._name)
        for batch in self._store.batches(start, stop, others, rows):
            yield batch.add_column(at, SCHEMA.field(self._name), beside.take(batch.num_rows))


class _Pieces:
    """Batches of one column in, pieces of any length out: the two stores cut their rows at different places."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left = pa.array([], pa.int64())

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The batches as they come."""
        return self._batches

    def take(self, count: int) -> pa.Array:
        """The next `count` values."""
        parts = []
        while count > len(self._left):
            parts.append(self._left)
            count -= len(self._left)
            self._left = next(self._batches).column(0)
        parts.append(self._left.slice(0, count))
        self._left = self._left.slice(count)
        return parts[0] if len(parts) == 1 else pa.concat_arrays([part for part in parts if len(part)])

"""A column beside the rows of a trace is the row's own wherever the two stores cut their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as some

from kvrm_traces.beside import BesideStore


class CutStore:
    """Rows of a table in batches that end at given rows, whatever is asked for."""

    def __init__(self, table: pa.Table, cuts: set[int]) -> None:
        self._table, self._cuts = table, cuts

    @property
    def rows(self) -> int:
        return int(self._table.num_rows)

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        assert list(columns) == [name for name in columns if name in self._table.column_names]
        ends = sorted({*(cut for cut in self._cuts if start < cut < stop), *range(start + rows, stop, rows), stop})
        for first, last in zip((start, *ends), ends, strict=False):
            if last > first:
                yield from self._table.select(list(columns)).slice(first, last - first).combine_chunks().to_batches()


_CUTS = some.sets(some.integers(0, 40))


@given(
    cuts=some.tuples(_CUTS, _CUTS),
    span=some.tuples(some.integers(0, 40), some.integers(0, 40)).map(sorted),
    rows=some.integers(1, 50),
    columns=some.permutations(["arrival_ns", "prompt_tokens", "think_ms"]).flatmap(
        lambda names: some.integers(1, 3).map(lambda count: names[:count])
    ),
)
def test_rows_stay_together(cuts: tuple[set[int], set[int]], span: list[int], rows: int, columns: list[str]) -> None:
    own = {"arrival_ns": list(range(40)), "prompt_tokens": list(range(100, 140))}
    think = [None if at % 3 == 0 else at * 10 for at in range(40)]
    store = BesideStore(
        CutStore(pa.table(own), cuts[0]),
        CutStore(pa.table({"think_ms": pa.array(think, pa.int64())}), cuts[1]),
        "think_ms",
    )
    start, stop = span
    batches = list(store.batches(start, stop, columns, rows))
    assert all(0 < batch.num_rows <= rows and batch.schema.names == columns for batch in batches)
    found = [row for batch in batches for row in batch.to_pylist()]
    everything = {**own, "think_ms": think}
    assert found == [{name: everything[name][at] for name in columns} for at in range(start, stop)]

"""Several traces as one: their streams side by side, each with its own first request at 0, in order of arrival.

Requests of one instant keep the order in which the traces are given. Ids never meet: prefix hashes of one trace are not
those of another, and the names of sessions get the number of their trace.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvrm_traces.arrow import int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.measure import Clock
from kvrm_traces.schema import SCHEMA, TraceInfo, pace, schema_of
from kvrm_traces.sessions import NO_PARENT
from kvrm_traces.trace import Trace

_NAMES = ("session_id", "parent")


def merge_traces(traces: Sequence[Trace]) -> Trace:
    """One trace of all requests. A column that only some of them have is null in the rows of the others.

    Raises TraceError for none, and for prefix hashes of blocks of different sizes.
    """
    if not traces:
        raise TraceError("merge: no trace was given")
    if len(traces) == 1:
        return traces[0]
    infos = [trace.info for trace in traces]
    sizes = {info.hash_block_tokens: info.source for info in infos if info.hash_block_tokens is not None}
    if len(sizes) > 1:
        found = ", ".join(f"{source}: {size} tokens" for size, source in sizes.items())
        raise TraceError(f"merge: prefix hashes are of blocks of different sizes ({found}); ids cannot be compared")
    store = MergedStore(traces)
    clock = Clock()
    for batch in store.batches(0, store.rows, ("arrival_ns",), 1 << 16):
        clock.see(int64_values(batch.column(0)))
    rejected: Counter[str] = Counter()
    for info in infos:
        rejected.update(info.rejected)
    told = [note for info in infos for note in info.notes]
    info = TraceInfo(
        name="+".join(info.name for info in infos),
        source=" + ".join(info.source for info in infos),
        format="merged",
        unit="ns",
        rows=clock.rows,
        span_ns=clock.span_ns,
        sha256=hashlib.sha256(_identity(traces).encode()).hexdigest(),
        hash_block_tokens=next(iter(sizes), None),
        resolution_ns=clock.resolution_ns,
        rejected=dict(sorted(rejected.items())),
        rejected_examples=tuple(f"{info.name}: {line}" for info in infos for line in info.rejected_examples),
        ties=clock.ties,
        notes=(*told, f"merged {len(infos)} traces: {pace(clock.rows, clock.span_ns)}"),
        columns=store.columns,
        turns="cumulative" if all(info.turns == "cumulative" for info in infos) else None,
    )
    return Trace(store, info)


def _identity(traces: Sequence[Trace]) -> str:
    """The bytes that were read, and what was done with them."""
    return "merged\n" + "\n".join(f"{trace.info.sha256} {trace.transforms or ''}" for trace in traces)


class MergedStore:
    """The rows of several traces by arrival; :class:`kvrm_traces.store.Store`. Memory is a batch of each trace."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._traces = traces
        have = {name for trace in traces for name in trace.info.columns}
        self.columns = tuple(name for name in SCHEMA.names if name in have)
        self._first_ids = self._id_ranges()
        self._named = sum("session_id" in trace.info.columns for trace in traces) > 1

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(trace.info.rows for trace in self._traces)

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`. Rows before `start` are read too: a merge has no index."""
        names = columns if "arrival_ns" in columns else ("arrival_ns", *columns)
        at = 0
        for table in self._merged(names, rows):
            first, at = at, at + table.num_rows
            inside = table.slice(max(0, start - first), max(0, min(stop, at) - max(start, first))).select(list(columns))
            yield from (batch for batch in inside.combine_chunks().to_batches(max_chunksize=rows) if batch.num_rows)
            if at >= stop:
                return

    def _merged(self, names: Sequence[str], rows: int) -> Iterator[pa.Table]:
        streams: list[_Stream] = [_Stream(self._of(number, names, rows)) for number in range(len(self._traces))]
        while sum(stream.fill() for stream in streams):
            open_ends = [stream.last_ns for stream in streams if stream.held is not None and not stream.ended]
            frontier = min(open_ends, default=None)
            parts = [stream.before(frontier) for stream in streams if stream.held is not None]
            if not any(part.num_rows for part in parts):
                # A batch that is all at the frontier may go on in the next one.
                for stream in streams:
                    stream.lengthen(frontier)
                continue
            table = pa.concat_tables(parts)
            order = np.argsort(table.column("arrival_ns").to_numpy(), kind="stable")
            yield table.take(pa.array(order))

    def _of(self, number: int, names: Sequence[str], rows: int) -> Iterator[pa.Table]:
        trace, schema = self._traces[number], schema_of(self.columns)
        own = [name for name in names if name in trace.info.columns]
        for batch in trace.batches(rows, own):
            columns = {name: self._distinct(number, name, batch.column(name)) for name in own}
            yield pa.table(
                {name: columns.get(name, pa.nulls(batch.num_rows, schema.field(name).type)) for name in names},
                schema=pa.schema([schema.field(name) for name in names]),
            )

    def _distinct(self, number: int, name: str, column: pa.Array) -> pa.Array:
        """The column with ids that no other trace has."""
        if name == "prefix_hashes" and self._first_ids[number]:
            # With the offsets of a slice kept as they are, values and offsets are cut to it first.
            column = pa.concat_arrays([column])
            ids = pc.add(column.flatten(), self._first_ids[number])
            counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
            offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
            return pa.ListArray.from_arrays(pa.array(offsets), ids, mask=column.is_null())
        if name in _NAMES and self._named:
            # The number that a format writes for "no parent" names nothing.
            named = pc.binary_join_element_wise(pa.scalar(f"{number + 1}"), column, "/")
            return pc.if_else(pc.equal(column, NO_PARENT), column, named) if name == "parent" else named
        return column

    def _id_ranges(self) -> list[int]:
        """The first id of each trace: behind those of the traces before it."""
        first, firsts = 0, []
        for trace in self._traces:
            firsts.append(first)
            if "prefix_hashes" in trace.info.columns:
                for batch in trace.batches(columns=("prefix_hashes",)):
                    most = pc.max(batch.column(0).flatten()).as_py()
                    first = max(first, firsts[-1] + most + 1) if most is not None else first
        return firsts


@dataclasses.dataclass(slots=True)
class _Stream:
    """What was read of one trace and not handed on."""

    source: Iterator[pa.Table]
    held: pa.Table | None = None
    ended: bool = False

    @property
    def last_ns(self) -> int:
        assert self.held is not None  # filled
        return int(self.held.column("arrival_ns")[-1].as_py())

    def fill(self) -> bool:
        """Whether there are rows; reads on when all were handed on."""
        if self.held is None or self.held.num_rows == 0:
            self.held = next(self.source, None)
            self.ended = self.held is None
        return self.held is not None

    def before(self, frontier: int | None) -> pa.Table:
        """Take the rows that arrive before the frontier; None: all."""
        assert self.held is not None  # filled
        arrival_ns = self.held.column("arrival_ns").to_numpy()
        upto = self.held.num_rows if frontier is None else int(np.searchsorted(arrival_ns, frontier))
        part, self.held = self.held.slice(0, upto), self.held.slice(upto)
        return part

    def lengthen(self, frontier: int | None) -> None:
        """Read on when everything that is held is at the frontier."""
        if self.held is not None and not self.ended and self.last_ns == frontier:
            more = next(self.source, None)
            self.ended = more is None
            self.held = self.held if more is None else pa.concat_tables([self.held, more])

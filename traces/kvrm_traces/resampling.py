"""Another trace like this one: its own requests in another order, as a circular block bootstrap draws them.

A trace is one realisation of its traffic. What a figure owes to that one is seen by drawing others: stretches of
consecutive requests, each request with the gap before it, are drawn with replacement until the trace is as long as it
was. Bursts shorter than a stretch stay what they were; what lies further apart (a day's course) is mixed.

What ties requests to each other across stretches (sessions, prefix hashes) would be repeated and torn apart, so a trace
that has them is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.schema import SCHEMA, TraceInfo

#: Stretches in a trace, unless said otherwise.
PIECES = 50
#: Columns that tie a request to others.
TIES = ("session_id", "turn", "parent", "prefix_hashes")
#: Rows are held in memory.
MOST_ROWS = 20_000_000


class TableStore:
    """Rows of a table in memory: a :class:`kvrm_traces.store.Store`."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._table.num_rows)

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`."""
        chosen = self._table.slice(start, stop - start).select(list(columns))
        yield from (batch for batch in chosen.to_batches(max_chunksize=rows) if batch.num_rows)


def refusal(info: TraceInfo) -> str | None:
    """Why such a trace cannot be drawn again; None when it can."""
    tied = [name for name in TIES if name in info.columns]
    if tied:
        return f"its requests belong together ({', '.join(tied)}), and stretches drawn again would tear them apart"
    if info.rows > MOST_ROWS:
        return f"{info.rows:,} rows are more than are held in memory ({MOST_ROWS:,}); cut it with limit or window"
    return None


def resampled_store(info: TraceInfo, batches: Iterator[pa.RecordBatch], seed: int, pieces: int) -> TableStore:
    """The rows of a trace, first arrival 0, in stretches of ``rows / pieces``, drawn with `seed`."""
    if (reason := refusal(info)) is not None:
        raise TraceError(f"{info.source}: cannot be resampled: {reason}")
    table = pa.Table.from_batches(batches).combine_chunks()
    rows = table.num_rows
    chosen = _draw(rows, -(-rows // min(pieces, rows)), np.random.default_rng(seed))
    arrival_ns = np.cumsum(_gaps_ns(int64_values(table.column("arrival_ns").combine_chunks()))[chosen])
    drawn = table.take(int64_column(chosen))
    at = drawn.schema.get_field_index("arrival_ns")
    return TableStore(drawn.set_column(at, SCHEMA.field("arrival_ns"), int64_column(arrival_ns - arrival_ns[0])))


def resampled_sha256(info: TraceInfo, seed: int, pieces: int) -> str:
    """Of what determines the rows: the trace as it was, its notes (transforms among them), seed and pieces."""
    determined = "\n".join((info.sha256, *info.notes, f"resampled {pieces} {seed}"))
    return hashlib.sha256(determined.encode()).hexdigest()


def _gaps_ns(arrival_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The gap before each request. The first has none of its own: it follows the last by the mean gap."""
    gaps_ns = np.diff(arrival_ns, prepend=arrival_ns[0])
    gaps_ns[0] = round(int(arrival_ns[-1]) / max(1, arrival_ns.size - 1))
    return gaps_ns


def _draw(rows: int, length: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows of whole stretches of `length`, each beginning anywhere and going on at the front after the last row."""
    starts = rng.integers(0, rows, size=-(-rows // length))
    drawn: npt.NDArray[np.int64] = (starts[:, None] + np.arange(length)[None, :]).ravel()[:rows] % rows
    return drawn

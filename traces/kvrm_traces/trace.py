"""A trace that can be replayed: its rows in batches, what is known of it, and the transforms that fit it to a load."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces import parquet
from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.measure import Clock
from kvrm_traces.schema import SCHEMA, TraceInfo, pace
from kvrm_traces.selection import Selection, checked_count, checked_factor
from kvrm_traces.spreading import SpreadStore
from kvrm_traces.store import Store

#: Spans beyond this do not fit int64 nanoseconds with room to add to them.
MAX_SPAN_NS = 2**62


class Trace:
    """Requests in order of arrival. Immutable: every transform returns a new trace over the same rows.

    Made by :func:`kvrm_traces.open_trace`. Transforms apply in a fixed order: see :mod:`kvrm_traces.selection`.
    """

    def __init__(self, store: Store, info: TraceInfo, selection: Selection | None = None) -> None:
        self._store = store
        self._base = info
        self._selection = selection or Selection()

    def __repr__(self) -> str:
        return f"<Trace {self.info.name}: {pace(self.info.rows, self.info.span_ns)}>"

    @cached_property
    def info(self) -> TraceInfo:
        """What is known of this trace, exact rows and span included; a transformed trace scans its arrivals once."""
        if self._selection.whole:
            return self._base
        return _told(self._base, self._selection.words(), self.batches(columns=("arrival_ns",)))

    @property
    def transforms(self) -> str | None:
        """What was done to the trace as opened, in the order in which it applies; None when nothing was."""
        return self._selection.words() or None

    def batches(self, rows: int = 65536, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield canonical batches, sorted by arrival, first arrival 0, each of 1 to `rows` rows.

        `columns` chooses among ``info.columns`` (default: all of them); the other columns are not even read. Raises
        :class:`TraceError` for a column that the trace does not have.
        """
        checked_count("rows", rows, 1)
        names = self._chosen(columns)
        start, stop = self._selection.row_range(self._store.rows)
        reading = names if "arrival_ns" in names else ("arrival_ns", *names)
        thinned = self._thinned(self._store.batches(start, stop, reading, rows))
        origin_ns: int | None = None
        for batch in thinned:
            if origin_ns is None:
                origin_ns = batch.column("arrival_ns")[0].as_py()
            yield self._on_own_clock(batch, origin_ns).select(list(names))

    def to_parquet(self, path: str | Path) -> None:
        """Write the trace as canonical Parquet: to a temporary name first, so that a half-written one is never seen.

        Reading it back gives the same rows and the same TraceInfo, but for its source, its sha256 and its notes. Raises
        :class:`TraceError` when the file cannot be written.
        """
        parquet.write(Path(path), self.info, self.batches())

    def window(self, start_s: float, end_s: float | None = None) -> Trace:
        """Only the requests that arrive in [start_s, end_s) seconds of the trace's own clock (None: to the end)."""
        if self._selection.window_s is not None:
            raise TraceError("window: this trace already has one; choose the window once")
        last = math.inf if end_s is None else end_s
        if not (math.isfinite(start_s) and 0 <= start_s < last):
            raise TraceError(f"window {start_s!r}:{end_s!r}: must be START < END in seconds, START 0 or more")
        first_row = self._rows_before(round(start_s * 1e9))
        end_ns = last * 1e9
        stop_row = self._rows_before(round(end_ns)) if end_ns <= self._base.span_ns else self._store.rows
        return self._with(window_s=(start_s, end_s), first_row=first_row, window_rows=stop_row - first_row)

    def limit(self, rows: int) -> Trace:
        """Only the first `rows` requests (of the window)."""
        checked_count("limit", rows, 1)
        already = self._selection.limit
        return self._with(limit=rows if already is None else min(rows, already))

    def replicas(self, n: int, index: int = 0) -> Trace:
        """The share of replica `index` of `n` that serve the trace round-robin: every n-th request."""
        checked_count("replicas", n, 1)
        if self._selection.replicas > 1:
            raise TraceError("replicas: this trace is already shared; choose the number once")
        if not 0 <= index < n:
            raise TraceError(f"replica index {index}: must be from 0 to {n - 1}")
        return self._with(replicas=n, index=index)

    def speedup(self, factor: float) -> Trace:
        """Divide every gap between arrivals by `factor`: 2 doubles the offered rate."""
        return self._with(speedup=self._selection.speedup * checked_factor("speedup", factor))

    def time_stretch(self, factor: float) -> Trace:
        """Multiply every gap between arrivals by `factor`: 2 halves the offered rate."""
        return self._with(time_stretch=self._selection.time_stretch * checked_factor("time_stretch", factor))

    def spread_ties(self, within_s: float | None = None, seed: int = 0) -> Trace:
        """Move requests that share a stamp apart: each by a uniform draw below `within_s`, short of the next stamp.

        `within_s` None: one tick of the trace's clock (``resolution_ns``). Done to the trace itself, before all other
        transforms. Raises TraceError when a transform was already asked for, or there is no tick.
        """
        if not self._selection.whole:
            raise TraceError("spread_ties: comes before window, limit, replicas and speed")
        within_ns = self._base.resolution_ns if within_s is None else math.floor(within_s * 1e9)
        if within_ns is None or not 1 <= within_ns <= MAX_SPAN_NS:
            raise TraceError(f"spread_ties within {within_s!r} s: state a time above 0, e.g. the step of the clock")
        store = SpreadStore(self._store, within_ns, checked_count("seed", seed, 0))
        spread = Trace(store, self._base)
        note = f"ties spread within {within_ns / 1e9:g} s, seed {seed}"
        return Trace(store, _told(self._base, note, spread.batches(columns=("arrival_ns",))))

    def _with(self, **changes: object) -> Trace:
        selection = dataclasses.replace(self._selection, **changes)  # type: ignore[arg-type]  # fields by name
        if selection.count(self._store.rows) == 0:
            raise TraceError(f"{self._base.source}: {selection.words()} keeps none of {pace(*self._size())}")
        if self._base.span_ns * selection.time_stretch / selection.speedup > MAX_SPAN_NS:
            raise TraceError(f"{selection.words()}: the span would be beyond {MAX_SPAN_NS / 1e9:.3g} s")
        return Trace(self._store, self._base, selection)

    def _size(self) -> tuple[int, int]:
        return self._base.rows, self._base.span_ns

    def _chosen(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return tuple(name for name in SCHEMA.names if name in self._base.columns)
        for name in columns:
            if name not in self._base.columns:
                raise TraceError(f"{self._base.source}: no column {name!r}; it has {', '.join(self._base.columns)}")
        return tuple(columns)

    def _rows_before(self, arrival_ns: int) -> int:
        """How many rows of the store arrive before this time."""
        before = 0
        for batch in self._store.batches(0, self._store.rows, ("arrival_ns",), 1 << 18):
            found = int(np.searchsorted(int64_values(batch.column(0)), arrival_ns))
            before += found
            if found < batch.num_rows:
                break
        return before

    def _thinned(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        every, skip = self._selection.replicas, self._selection.index
        if every == 1:
            yield from batches
            return
        for batch in batches:
            if skip < batch.num_rows:
                kept = np.arange(skip, batch.num_rows, every)
                yield batch.take(int64_column(kept))
                skip = int(kept[-1]) + every - batch.num_rows
            else:
                skip -= batch.num_rows

    def _on_own_clock(self, batch: pa.RecordBatch, origin_ns: int) -> pa.RecordBatch:
        speedup, stretch = self._selection.speedup, self._selection.time_stretch
        if origin_ns == 0 and speedup == 1.0 and stretch == 1.0:
            return batch
        arrival_ns: npt.NDArray[np.int64] = int64_values(batch.column("arrival_ns")) - origin_ns
        if speedup != 1.0 or stretch != 1.0:
            arrival_ns = np.rint(arrival_ns * stretch / speedup).astype(np.int64)
        at = batch.schema.get_field_index("arrival_ns")
        return batch.set_column(at, SCHEMA.field("arrival_ns"), int64_column(arrival_ns))


def _told(info: TraceInfo, what: str, arrivals: Iterator[pa.RecordBatch]) -> TraceInfo:
    """What is known after `what` was done, by one pass over the arrivals that it left."""
    clock = Clock()
    for batch in arrivals:
        clock.see(int64_values(batch.column(0)))
    return dataclasses.replace(
        info,
        rows=clock.rows,
        span_ns=clock.span_ns,
        ties=clock.ties,
        resolution_ns=clock.resolution_ns,
        notes=(*info.notes, f"{what}: {pace(clock.rows, clock.span_ns)}"),
    )

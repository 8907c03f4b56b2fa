"""A trace that can be replayed: its rows in batches, what is known of it, and the transforms that fit it to a load."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces import parquet, resampling
from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.beside import BesideStore
from kvrm_traces.errors import TraceError
from kvrm_traces.measure import Clock
from kvrm_traces.schema import SCHEMA, TraceInfo, pace, schema_of
from kvrm_traces.selection import Sample, Selection, checked_count, checked_factor
from kvrm_traces.spool import spooled_columns
from kvrm_traces.spreading import SpreadStore
from kvrm_traces.store import Store
from kvrm_traces.thinking import ThinkTimes, parse_think
from kvrm_traces.thinning import kept
from kvrm_traces.turns import WholePrompts

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
        return ", ".join(filter(None, (*self._base.done, self._selection.words()))) or None

    def batches(self, rows: int = 65536, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield canonical batches, sorted by arrival, first arrival 0, each of 1 to `rows` rows.

        `columns` chooses among ``info.columns`` (default: all of them); the other columns are not even read. Raises
        :class:`TraceError` for a column that the trace does not have.
        """
        checked_count("rows", rows, 1)
        names = self._chosen(columns)
        start, stop = self._selection.row_range(self._store.rows)
        reading = names if "arrival_ns" in names else ("arrival_ns", *names)
        origin_ns: int | None = None
        for batch in kept(self._store.batches(start, stop, reading, rows), self._selection, start):
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

    def idle_cap(self, longest_s: float) -> Trace:
        """Shorten every gap between arrivals that is longer than this to it: in the trace's own time, before any speed.

        Of all rows of the window, so that silence which thinning makes stays. Raises TraceError for 0 or less.
        """
        if not (math.isfinite(longest_s) and longest_s * 1e9 >= 1):
            raise TraceError(f"idle_cap {longest_s!r}: must be seconds, a nanosecond or more")
        cap_ns = round(min(longest_s * 1e9, MAX_SPAN_NS))
        already = self._selection.idle_cap_ns
        return self._with(idle_cap_ns=cap_ns if already is None else min(cap_ns, already))

    def sample(self, share: float, seed: int = 0) -> Trace:
        """Keep each request (of the window) with this probability, independently of the others.

        A Poisson process stays one; sessions lose turns. Raises TraceError for a share that is not in (0, 1].
        """
        if self._selection.sample is not None:
            raise TraceError("sample: this trace is already sampled; choose the share once")
        if not 0 < share <= 1:
            raise TraceError(f"sample {share!r}: must be a share above 0, at most 1, e.g. 0.1 for a tenth")
        return self._with(sample=Sample(share=share, seed=checked_count("seed", seed, 0)))

    def limit(self, rows: int) -> Trace:
        """Only the first `rows` requests (of the window, of the sample)."""
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
        self._no_rate_yet("speedup")
        return self._with(speedup=self._selection.speedup * checked_factor("speedup", factor))

    def time_stretch(self, factor: float) -> Trace:
        """Multiply every gap between arrivals by `factor`: 2 halves the offered rate."""
        self._no_rate_yet("time_stretch")
        return self._with(time_stretch=self._selection.time_stretch * checked_factor("time_stretch", factor))

    def at_rate(self, requests_per_s: float) -> Trace:
        """Scale every gap between arrivals by one factor, such that gaps / span is this rate.

        It is the rate of the rows that window, sample, limit and replicas leave. The last arrival is exact, the others
        are rounded to whole nanoseconds; order and ties stay. Raises TraceError for a trace that has a speed or a rate
        already, or none to scale (one request, or all at one instant).
        """
        self._no_rate_yet("rate")
        if self._selection.speedup != 1.0 or self._selection.time_stretch != 1.0:
            raise TraceError(f"rate {requests_per_s!r}: this trace has {self._selection.words()}; choose speed or rate")
        if not (math.isfinite(requests_per_s) and requests_per_s > 0):
            raise TraceError(f"rate {requests_per_s!r}: must be a finite number of requests/s above 0")
        return self._with(rate_per_s=requests_per_s)

    def resampled(self, seed: int, pieces: int = resampling.PIECES) -> Trace:
        """Another trace like this one: as many requests, in `pieces` stretches drawn from it with replacement.

        See :mod:`kvrm_traces.resampling`. Of what is left after every other transform; the drawn rows are in memory.
        Raises TraceError for a trace whose requests belong together (sessions, prefix hashes).
        """
        checked_count("seed", seed, 0)
        checked_count("pieces", pieces, 1)
        info = self.info
        store = resampling.resampled_store(info, self.batches(), seed, pieces)
        sha256 = resampling.resampled_sha256(info, seed, pieces)
        base = dataclasses.replace(info, sha256=sha256)
        arrivals = store.batches(0, store.rows, ("arrival_ns",), 1 << 16)
        return Trace(store, _told(base, f"resampled in {pieces} pieces, seed {seed}", arrivals))

    def spread_ties(self, within_s: float | None = None, seed: int = 0) -> Trace:
        """Move requests that share a stamp apart: each by a uniform draw below `within_s`, short of the next stamp.

        `within_s` None: one tick of the trace's clock (``resolution_ns``). Done to the trace itself, before all other
        transforms. Raises TraceError when a transform was already asked for, or there is no tick.
        """
        return self._spread("spread_ties", within_s, seed)

    def jitter(self, within_s: float | None = None, seed: int = 0) -> Trace:
        """Move *every* request later by a uniform draw below `within_s`, short of the next stamp; ties keep order.

        For a clock that cuts fractions off: `within_s` None is one tick of it. Otherwise as :meth:`spread_ties`, which
        leaves stamps that stand alone where they are.
        """
        return self._spread("jitter", within_s, seed)

    def whole_prompts(self) -> Trace:
        """The same requests with prompts that hold the conversation so far, where these hold only what a turn adds.

        See :mod:`kvrm_traces.turns`. Done to the trace itself, before all other transforms but ties and jitter. Raises
        TraceError for a trace without conversations, with prefix hashes, or whose prompts would be beyond what a
        prompt may be.
        """
        self._check_whole("turns delta")
        prompts = WholePrompts(self._base)
        column = prompts.batches(self.batches(columns=prompts.reads))
        whole = self._with_column("prompt_tokens", column, lambda: ("turns delta", prompts.note()))
        return Trace(whole._store, dataclasses.replace(whole.info, turns="cumulative"))

    def with_think(self, spec: str, seed: int = 0) -> Trace:
        """The same requests with ``think_ms``, which a closed loop reads, where the trace has none.

        `spec`: 'constant:SECONDS', 'exponential:MEAN_S', 'lognormal:MEDIAN_S:SIGMA' (drawn with `seed`), or
        'recorded:MS_PER_TOKEN'; see :mod:`kvrm_traces.thinking`. Done to the trace itself, before the transforms that
        choose rows and scale time, behind :meth:`spread_ties`. Raises TraceError for a trace without conversations or
        with times to think, and for another `spec`.
        """
        self._check_whole("think")
        times = ThinkTimes(self._base, parse_think(spec), checked_count("seed", seed, 0))
        column = times.batches(self.batches(columns=times.reads))
        return self._with_column("think_ms", column, lambda: (times.words, times.note()))

    def _with_column(self, name: str, column: Iterator[pa.RecordBatch], told: Callable[[], tuple[str, str]]) -> Trace:
        """The trace with another column of that name; once it is made, `told` has what was done and what it came to."""
        beside = spooled_columns(column, schema_of((name,)))
        words, note = told()
        info = dataclasses.replace(
            self._base,
            sha256=changed_sha256(self._base.sha256, words),
            columns=tuple(schema_of((*self._base.columns, name)).names),
            notes=(*self._base.notes, f"{words}: {note}"),
            done=(*self._base.done, words),
        )
        return Trace(BesideStore(self._store, beside, name), info)

    def _check_whole(self, what: str) -> None:
        if not self._selection.whole:
            raise TraceError(f"{what}: comes before window, idle cap, sample, limit, replicas, speed and rate")

    def _spread(self, what: str, within_s: float | None, seed: int) -> Trace:
        self._check_whole(what)
        within_ns = self._base.resolution_ns if within_s is None else math.floor(within_s * 1e9)
        if within_ns is None or not 1 <= within_ns <= MAX_SPAN_NS:
            raise TraceError(f"{what} within {within_s!r} s: state a time above 0, e.g. the step of the clock")
        store = SpreadStore(self._store, within_ns, checked_count("seed", seed, 0), alone=what == "jitter")
        spread = Trace(store, self._base)
        done = "ties spread" if what == "spread_ties" else "jitter"
        note = f"{done} within {within_ns / 1e9:g} s, seed {seed}"
        base = dataclasses.replace(self._base, sha256=changed_sha256(self._base.sha256, note))
        return Trace(store, _told(base, note, spread.batches(columns=("arrival_ns",))))

    def _with(self, **changes: object) -> Trace:
        selection = dataclasses.replace(self._selection, **changes)  # type: ignore[arg-type]  # fields by name
        if selection.count(self._store.rows) == 0:
            raise TraceError(f"{self._base.source}: {selection.words()} keeps none of {pace(*self._size())}")
        changed = Trace(self._store, self._base, selection)
        if selection.rate_per_s is None:
            span_ns = self._base.span_ns * selection.time_stretch / selection.speedup
        else:
            span_ns = changed._span_at_rate_ns(selection.rate_per_s)
        if span_ns > MAX_SPAN_NS:
            raise TraceError(f"{selection.words()}: the span would be beyond {MAX_SPAN_NS / 1e9:.3g} s")
        return changed

    def _no_rate_yet(self, what: str) -> None:
        if self._selection.rate_per_s is not None:
            raise TraceError(f"{what}: this trace already has a rate, which sets its clock; choose it once")

    def _span_at_rate_ns(self, rate_per_s: float) -> float:
        rows = self._selection.count(self._store.rows)
        if rows < 2 or self._own_span_ns == 0:
            what = "one request" if rows < 2 else "all its requests at one instant"
            raise TraceError(f"{self._base.source}: has {what}, and so no rate that could be set to {rate_per_s:g}")
        return (rows - 1) / rate_per_s * 1e9

    @cached_property
    def _own_span_ns(self) -> int:
        """Of the rows that are kept, on the clock of the store."""
        if dataclasses.replace(self._selection, rate_per_s=None).whole:
            return self._base.span_ns
        first_ns = last_ns = None
        start, stop = self._selection.row_range(self._store.rows)
        arrivals = self._store.batches(start, stop, ("arrival_ns",), 1 << 18)
        for batch in kept(arrivals, self._selection, start):
            arrival_ns = int64_values(batch.column(0))
            first_ns = int(arrival_ns[0]) if first_ns is None else first_ns
            last_ns = int(arrival_ns[-1])
        return 0 if first_ns is None or last_ns is None else last_ns - first_ns

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

    def _on_own_clock(self, batch: pa.RecordBatch, origin_ns: int) -> pa.RecordBatch:
        speedup, stretch = self._selection.speedup, self._selection.time_stretch
        rate_per_s = self._selection.rate_per_s
        if origin_ns == 0 and speedup == 1.0 and stretch == 1.0 and rate_per_s is None:
            return batch
        arrival_ns: npt.NDArray[np.int64] = int64_values(batch.column("arrival_ns")) - origin_ns
        if rate_per_s is not None:
            span_ns = self._span_at_rate_ns(rate_per_s)
            arrival_ns = np.rint(arrival_ns * (span_ns / self._own_span_ns)).astype(np.int64)
        elif speedup != 1.0 or stretch != 1.0:
            arrival_ns = np.rint(arrival_ns * stretch / speedup).astype(np.int64)
        at = batch.schema.get_field_index("arrival_ns")
        return batch.set_column(at, SCHEMA.field("arrival_ns"), int64_column(arrival_ns))


def changed_sha256(sha256: str, *done: str) -> str:
    """Of a trace to which this was done, in this order: other rows are another trace, and its runs not comparable."""
    for words in done:
        sha256 = hashlib.sha256(f"{sha256} {words}".encode()).hexdigest()
    return sha256


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

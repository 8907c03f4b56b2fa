"""A built-in trace as a store of rows: generated again on every reading, in flat memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.measure import Clock
from kvrm_traces.schema import REQUIRED, TraceInfo, pace, schema_of
from kvrm_traces.selection import checked_count
from kvrm_traces.store import Store
from kvrm_traces.stream import Stream, random_stream
from kvrm_traces.synth.arrivals import BLOCK_ROWS, from_first
from kvrm_traces.synth.conversations import COLUMNS, ConversationStore
from kvrm_traces.synth.lengths import Lengths
from kvrm_traces.synth.preset import LONGEST_NS, Preset, load_preset, load_presets
from kvrm_traces.trace import Trace

_PRESETS = load_presets()

#: Names of the built-in traces, and what each one is.
BUILTINS: dict[str, str] = {name: preset.description for name, preset in _PRESETS.items()}

_STREAMS = {name: stream for stream, name in enumerate(REQUIRED)}


class BuiltinStore:
    """`rows` rows of a preset. Each column has its own random stream: one that is not asked for costs nothing."""

    def __init__(self, preset: Preset, rows: int, seed: int) -> None:
        self._preset = preset
        self._rows = rows
        self._seed = seed

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._rows

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`. Rows before `start` are drawn too: a stream has no index."""
        schema = schema_of(REQUIRED)
        selected = pa.schema([schema.field(name) for name in columns])
        streams = [self._stream(name) for name in columns]
        at = 0
        while at < stop:
            upto = min(stop, start if at < start else at + rows, at + BLOCK_ROWS)
            drawn = [stream.take(upto - at) for stream in streams]
            if at >= start:
                yield pa.RecordBatch.from_arrays([int64_column(values) for values in drawn], schema=selected)
            at = upto

    def _stream(self, name: str) -> Stream:
        rng = random_stream(self._seed, _STREAMS[name])
        if name == "arrival_ns":
            return Stream(from_first(self._preset.arrivals, rng))
        lengths = self._preset.prompt if name == "prompt_tokens" else self._preset.output
        return Stream(_drawn(lengths, rng))


def _drawn(lengths: Lengths, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    while True:
        yield lengths.draw(rng, BLOCK_ROWS)


#: More than a year of the busiest public traces; beyond it a length is a slip of the hand.
MOST_ROWS = 10_000_000_000


def open_builtin(name: str, *, rows: int | None = None, seed: int = 0) -> Trace:
    """The built-in trace of this name (a key of BUILTINS), `rows` requests long (default: the preset's)."""
    return generated(_PRESETS[name], rows, seed, "built-in trace", f"built-in {name}, seed {seed}")


def open_generator(path: Path, *, rows: int | None = None, seed: int = 0) -> Trace:
    """The trace of a generator in a TOML file. Raises TraceError when it describes none."""
    return generated(load_preset(path), rows, seed, "generator", str(path))


def generated(preset: Preset, rows: int | None, seed: int, kind: str, source: str) -> Trace:
    """The trace of a generator, `rows` requests long; `kind` and `source` are how it is told of."""
    count = checked_count("rows", preset.rows if rows is None else rows, 1)
    if count > MOST_ROWS:
        raise TraceError(f"rows {count}: a {kind} has at most {MOST_ROWS:,} requests")
    checked_count("seed", seed, 0)
    if count / preset.arrivals.rate_per_s > LONGEST_NS / 1e9:
        raise TraceError(f"{source}: {count} requests take longer than int64 nanoseconds hold; fewer, or faster")
    sessions = preset.sessions
    store: Store
    if sessions is None:
        store = BuiltinStore(preset, count, seed)
    else:
        store = ConversationStore(sessions, preset.arrivals, preset.prompt, preset.output, rows=count, seed=seed)
    clock = Clock()
    for batch in store.batches(0, count, ("arrival_ns",), BLOCK_ROWS):
        clock.see(int64_values(batch.column(0)))
    notes = (f"{kind} {preset.name}, seed {seed}: {preset.source}", pace(count, clock.span_ns))
    info = TraceInfo(
        name=preset.name,
        source=source,
        format="builtin",
        unit="ns",
        rows=count,
        span_ns=clock.span_ns,
        sha256=preset.sha256(count, seed),
        resolution_ns=clock.resolution_ns,
        ties=clock.ties,
        notes=notes,
        hash_block_tokens=None if sessions is None else sessions.hash_block_tokens,
        columns=REQUIRED if sessions is None else COLUMNS,
        turns=None if sessions is None else "cumulative",
    )
    return Trace(store, info)

"""The traces of cells: each file is read once, and shared by the processes that replay it.

What reads a file alike is read once (a *reading*); a cell cuts and scales its reading, which costs nothing. A built-in
trace is drawn in the process that needs it, and kept until another is needed there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvrm_analysis.studies.names import located_trace
from kvrm_analysis.studies.settings import TraceOptions
from kvrm_sim.errors import ConfigError
from kvrm_traces import BUILTINS, Trace, open_trace
from kvrm_traces.shared import SharedTrace, in_memory, mapped
from kvrm_traces.thinking import parse_think

_READING = ("format", "unit", "columns", "strict", "missing_timestamp", "rows", "arrivals", "turns")
_HASHES = ("hash_block_tokens", "hash_tolerance_blocks")

#: A built-in trace beyond it is drawn again by each cell, so that memory stays flat.
_MOST_KEPT_ROWS = 4_000_000


def reading_of(options: TraceOptions, seed: int, folder: Path | None = None) -> dict[str, Any]:
    """The arguments of ``open_trace``: equal for what is read alike. A relative path is in ``folder``.

    ``seed``: the cell's; only in the result where something is drawn with it.
    """
    reading = {name: getattr(options, name) for name in (*_READING, *_HASHES)}
    own_seed = seed if options.seed is None else options.seed
    drawn = reading_is_drawn(options, folder)
    return {"source": located_trace(options.source, folder), **reading, "seed": own_seed if drawn else 0}


def reading_is_drawn(options: TraceOptions, folder: Path | None = None) -> bool:
    """Whether what is read depends on a seed: a built-in trace, a file that describes a generator, drawn arrivals."""
    source = located_trace(options.source, folder)
    return source in BUILTINS or options.arrivals is not None or _is_generator(Path(source))


def _is_generator(path: Path) -> bool:
    """A TOML file, or clients: a folder of their files, or one inside an archive."""
    clients = any(path.glob("chunk-*-trace.csv")) if path.is_dir() else len(path.parts) > 1 and not path.exists()
    return path.suffix == ".toml" or clients


def shape_is_drawn(options: TraceOptions) -> bool:
    """Whether what is done to the trace after it was read depends on a seed. Raises TraceError as :func:`shaped`."""
    return options.spread_ties is not None or (options.think is not None and parse_think(options.think).drawn)


def shaped(trace: Trace, options: TraceOptions, seed: int) -> Trace:
    """The trace with what the options do to it after it was read. Raises TraceError, and ConfigError for two clocks."""
    own_seed = seed if options.seed is None else options.seed
    if options.spread_ties is not None:
        within_s = None if options.spread_ties == "tick" else options.spread_ties
        trace = trace.spread_ties(within_s, seed=own_seed)
    if options.think is not None:
        trace = trace.with_think(options.think, seed=own_seed)
    if options.window_s is not None:
        trace = trace.window(*options.window_s)
    if options.limit is not None:
        trace = trace.limit(options.limit)
    if options.replicas is not None:
        trace = trace.replicas(options.replicas, options.replica_index)
    if options.requests_per_s is not None:
        if options.speedup is not None or options.time_stretch is not None:
            raise ConfigError(
                "trace.requests_per_s sets the clock, and so do trace.speedup and trace.time_stretch: set one of them",
                "trace.requests_per_s",
                options.requests_per_s,
            )
        return trace.at_rate(options.requests_per_s)
    if options.speedup is not None:
        trace = trace.speedup(options.speedup)
    if options.time_stretch is not None:
        trace = trace.time_stretch(options.time_stretch)
    return trace


class CellTraces:
    """Opens the traces of cells: those that are ``shared`` from their columns, others (and keeps the last) itself."""

    def __init__(self, shared: Mapping[str, SharedTrace] | None = None, folder: Path | None = None) -> None:
        self._shared = dict(shared or {})
        self._opened: dict[str, Trace] = {}
        self._folder = folder
        self._last: tuple[str, Trace] | None = None

    def open(self, options: TraceOptions, seed: int) -> Trace:
        """The trace of a cell. Raises TraceError or ConfigError."""
        return shaped(self._reading(reading_of(options, seed, self._folder)), options, seed)

    def _reading(self, reading: dict[str, Any]) -> Trace:
        name = json.dumps(reading, sort_keys=True)
        if name in self._shared:
            if name not in self._opened:
                self._opened[name] = self._shared[name].open()
            return self._opened[name]
        if self._last is None or self._last[0] != name:
            trace = open_trace(**reading)
            self._last = name, in_memory(trace).open() if trace.info.rows <= _MOST_KEPT_ROWS else trace
        return self._last[1]


def share_files(readings: Iterable[Mapping[str, Any]], folder: Path) -> dict[str, SharedTrace]:
    """Read every file among the readings once, into a file in ``folder`` that all processes map.

    Raises TraceError for a file that is no trace: before any cell has run.
    """
    found: dict[str, SharedTrace] = {}
    for reading in readings:
        name = json.dumps(reading, sort_keys=True)
        if name not in found and reading["source"] not in BUILTINS:
            found[name] = mapped(open_trace(**reading), folder / f"trace-{len(found)}.arrow")
    return found

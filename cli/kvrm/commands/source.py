"""The trace of a command: opened, cut and scaled as its options say, and echoed before anything runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvrm import parse, traces
from kvrm.console import note
from kvrm.flags import Load, Reading

if TYPE_CHECKING:
    from kvrm_traces import Trace


def opened(source: str, reading: Reading, load: Load | None = None) -> Trace:
    """Open the trace, apply the load options in their fixed order, and say on stderr what it turned out to be."""
    if load is not None and load.speedup is not None and load.time_stretch is not None:
        raise typer.BadParameter("both set the clock: pass one of them", param_hint="--speedup and --time-stretch")
    # Everything that can be wrong on the command line itself is refused before the file is read.
    window = parse.window(load.window) if load is not None and load.window is not None else None
    within_s = parse.tie_spread_s(reading.spread_ties) if reading.spread_ties is not None else None
    trace = traces.open_trace(
        source,
        format=reading.format,
        unit=reading.unit,
        columns=parse.columns(reading.column) if reading.column else None,
        strict=reading.strict,
        missing_timestamp=reading.missing_timestamp or "refuse",
        seed=reading.seed,
        rows=reading.rows,
        arrivals=reading.arrivals,
        hash_block_tokens=reading.hash_block_tokens,
        hash_tolerance_blocks=reading.hash_tolerance_blocks or 0,
    )
    if reading.spread_ties is not None:
        trace = trace.spread_ties(within_s, seed=reading.seed)
    if load is not None:
        trace = _loaded(trace, load, window)
    for line in trace.info.notes:
        note(line)
    return trace


def _loaded(trace: Trace, load: Load, window: tuple[float, float | None] | None) -> Trace:
    if window is not None:
        trace = trace.window(*window)
    if load.limit is not None:
        trace = trace.limit(load.limit)
    if load.replicas is not None:
        trace = trace.replicas(load.replicas)
    if load.speedup is not None:
        trace = trace.speedup(load.speedup)
    if load.time_stretch is not None:
        trace = trace.time_stretch(load.time_stretch)
    return trace

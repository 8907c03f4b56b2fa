"""The trace of a command: opened, cut and scaled as its options say, and echoed before anything runs on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from kvrm import parse, traces
from kvrm.console import note
from kvrm.flags import Load, Reading

if TYPE_CHECKING:
    from kvrm_traces import Trace


def opened(source: str, reading: Reading, load: Load | None = None, *, quiet: bool = False) -> Trace:
    """Open the trace, apply the load options in their fixed order, and say on stderr what it turned out to be.

    ``quiet``: it was said before.
    """
    if load is not None:
        _check_clock(load)
    # Everything that can be wrong on the command line itself is refused before the file is read.
    window = parse.window(load.window) if load is not None and load.window is not None else None
    spread = _spread(reading)
    if reading.think is not None:
        traces.check_think(reading.think)
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
        turns=reading.turns,
    )
    if spread is not None:
        trace = spread(trace)
    if reading.think is not None:
        trace = trace.with_think(reading.think, seed=reading.seed)
    if reading.merge:
        alone = dataclasses.replace(reading, merge=None)
        trace = traces.merge_traces([trace, *(opened(other, alone, quiet=True) for other in reading.merge)])
    if load is not None:
        trace = _loaded(trace, load, window, reading.seed)
    for line in () if quiet else trace.info.notes:
        note(line)
    return trace


def _spread(reading: Reading) -> Callable[[Trace], Trace] | None:
    """What moves requests of one stamp apart, checked before any file is read; None: nothing does."""
    if reading.spread_ties is not None and reading.jitter is not None:
        raise typer.BadParameter("both move requests apart: pass one", param_hint="--spread-ties and --jitter")
    if reading.jitter is not None:
        within_s = parse.tie_spread_s(reading.jitter, "--jitter")
        return lambda trace: trace.jitter(within_s, seed=reading.seed)
    if reading.spread_ties is not None:
        tie_s = parse.tie_spread_s(reading.spread_ties, "--spread-ties")
        return lambda trace: trace.spread_ties(tie_s, seed=reading.seed)
    return None


def _loaded(trace: Trace, load: Load, window: tuple[float, float | None] | None, seed: int) -> Trace:
    if window is not None:
        trace = trace.window(*window)
    if load.idle_cap is not None:
        trace = trace.idle_cap(load.idle_cap)
    if load.sample is not None:
        trace = trace.sample(load.sample, seed=seed)
    if load.limit is not None:
        trace = trace.limit(load.limit)
    if load.replicas is not None:
        trace = trace.replicas(load.replicas)
    if load.speedup is not None:
        trace = trace.speedup(load.speedup)
    if load.time_stretch is not None:
        trace = trace.time_stretch(load.time_stretch)
    if load.rate is not None:
        trace = trace.at_rate(load.rate)
    return trace


def _check_clock(load: Load) -> None:
    setters = {"--speedup": load.speedup, "--time-stretch": load.time_stretch, "--rate": load.rate}
    given = [name for name, value in setters.items() if value is not None]
    if len(given) > 1:
        raise typer.BadParameter("each sets the clock: pass one of them", param_hint=" and ".join(given))

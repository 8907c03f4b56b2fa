"""The trace of a command: opened, cut and scaled as its options say, and echoed before anything runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvrm import api, parse
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
    within_s = parse.tie_spread_s(reading.spread_ties) if reading.spread_ties is not None else None
    trace = api.open_trace(
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
    for line in () if quiet else trace.info.notes:
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
    if load.rate is not None:
        trace = trace.at_rate(load.rate)
    return trace


def _check_clock(load: Load) -> None:
    setters = {"--speedup": load.speedup, "--time-stretch": load.time_stretch, "--rate": load.rate}
    given = [name for name, value in setters.items() if value is not None]
    if len(given) > 1:
        raise typer.BadParameter("each sets the clock: pass one of them", param_hint=" and ".join(given))

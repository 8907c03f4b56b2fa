"""``kvrm report`` and ``kvrm timeline``: runs as a page, and one run step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvrm import folders, parse, reporting
from kvrm.commands.source import opened
from kvrm.console import note, progress_bars, say, working
from kvrm.flags import Reading

ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace the file when it is one that such a command wrote.")
]

TraceOption = Annotated[
    str | None, typer.Option("--trace", help="The trace, where the run does not say enough to find it.")
]


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Folders of runs, or of comparisons.")],
    *,
    out: Annotated[str, typer.Option("--out", "-o", help="HTML file to write.")] = "report.html",
    name: Annotated[
        list[str] | None, typer.Option("--name", help="What a run is called, in their order. Repeatable.")
    ] = None,
    trace: TraceOption = None,
    inspect: Annotated[
        bool,
        typer.Option("--inspect/--no-inspect", help="Open the traces again, if they are still there, for their pages; "
                     "without, a page is of the requests that a run recorded."),
    ] = True,
    force: ForceOption = False,
    reading: Reading,
) -> None:  # fmt: skip
    """Write one self-contained HTML file: results, charts, what differs in configuration, trace and provenance.

    It opens from the disk, with no network; everything from traces and file names in it is text.
    """
    _check_reading(trace, reading)
    folders.check(Path(out), kind="report", force=force)
    with working("writing the report"):
        source = opened(trace, reading) if trace is not None else None
        made = reporting.report(runs, out, names=name, trace=source, inspect=inspect, force=force)
    say(f"report: {made} ({made.stat().st_size / 1e6:.1f} MB)")


def timeline(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run.")],
    *,
    out: Annotated[str, typer.Option("--out", "-o", help="Gzipped JSON file to write.")] = "trace.json.gz",
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="START:END", help="Seconds of the run to show; END may be empty. "
                     "Default: its first 100,000 steps."),
    ] = None,
    blocks: Annotated[
        str | None,
        typer.Option("--blocks", metavar="FIRST:LAST", help="Blocks of the pool that get a track each, from 0 on: who "
                     "held them."),
    ] = None,
    trace: TraceOption = None,
    replica: Annotated[int | None, typer.Option("--replica", help="Which replica of a cluster, from 0 on.")] = None,
    force: ForceOption = False,
    reading: Reading,
) -> None:  # fmt: skip
    """Write steps, their parts, transfers, counters and requests as a trace for ui.perfetto.dev or chrome://tracing.

    Single steps that the run's folder does not hold, and blocks, are simulated again up to the end of the window.
    """
    _check_reading(trace, reading)
    window_s = parse.window(window) if window is not None else None
    tracks = parse.whole_range(blocks, "--blocks") if blocks is not None else None
    folders.check(Path(out), kind="timeline", force=force)
    source = opened(trace, reading) if trace is not None else None
    with progress_bars() as progress:
        done = reporting.timeline(
            run, out, window_s=window_s, blocks=tracks, trace=source, replica=replica, force=force, progress=progress
        )
    if done.steps < done.all_steps and window is None:
        note(f"the first {done.steps:,} of {done.all_steps:,} steps: name another stretch with --window")
    stretch = f"{done.steps:,} steps from {done.start_s:g} to {done.end_s:g} s"
    say(f"timeline: {done.path} ({stretch}, {done.events:,} events)")


def _check_reading(trace: str | None, reading: Reading) -> None:
    if trace is None and reading != Reading():
        raise typer.BadParameter("they say how --trace is read, which is not given", param_hint="options of a trace")

"""``kvrm sweep``, and the same from Python: every cell of a study, on the cores of this machine or on a Ray cluster.

    import kvrm

    done = kvrm.sweep("study.toml", out="runs/sweep")
    done.to_pandas().groupby("policy")["ttft_p99_s"].min()

What a study is stands in docs/sweeps.md. Imports of the parts are inside the functions, as in :mod:`kvrm.api`.
"""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from kvrm.console import complain, note, progress_bars, say

if TYPE_CHECKING:
    from kvrm_analysis.engines import Engine
    from kvrm_analysis.sweep import Sweep
    from kvrm_analysis.sweep_estimate import DryRun

EngineName: TypeAlias = Literal["local", "ray"]
Stale: TypeAlias = Literal["rerun", "keep"]
#: A study's file, or the same as nested values.
StudySource: TypeAlias = str | Path | Mapping[str, Any]

#: Lines of cells that a dry run prints, and reasons why cells have no results that a sweep prints.
_MOST_LINES, _MOST_COMPLAINTS = 200, 10


def sweep(
    study: StudySource,
    *,
    out: str | Path | None = None,
    engine: EngineName | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    resume: bool = True,
    stale: Stale = "rerun",
    runs: bool | Sequence[int] = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Run every cell of a study. Returns its table, a row a cell, and for repeats their intervals.

    ``out``: the folder of the sweep; rows that are in it already are not run again (``resume``), but for those that
    another version of the code made (``stale``: run them again, or keep them). Without it nothing is written. ``runs``:
    which cells also leave their run folder, in ``out/runs/KEY``: all, or these numbers. ``progress`` is called with
    cells that have their row, and all of them. A cell that fails is a row with its error.

    Raises InputError for a study that is wrong, before any work; on an interrupt what has run is in ``out``.
    """
    from kvrm_analysis.engines import make_engine
    from kvrm_analysis.study import load_study
    from kvrm_analysis.sweep import planned, run_plan

    found = load_study(study)
    with planned(found) as plan:
        if isinstance(engine, str):
            engine = make_engine(engine, workers=workers, address=address)
        with engine:
            return run_plan(
                plan,
                engine,
                out=None if out is None else Path(out),
                resume=resume,
                stale=stale,
                keep_runs=runs,
                progress=progress,
            )


def sweep_dry_run(
    study: StudySource, *, out: str | Path | None = None, workers: int | None = None, stale: Stale = "rerun"
) -> DryRun:
    """The cells that :func:`sweep` would run, and an estimate of the time: at most three of them are tried."""
    from kvrm_analysis.engines import checked_workers
    from kvrm_analysis.journal import read_entries
    from kvrm_analysis.study import load_study
    from kvrm_analysis.sweep import planned
    from kvrm_analysis.sweep_estimate import dry_run

    with planned(load_study(study)) as plan:
        entries = {} if out is None else read_entries(Path(out))
        return dry_run(plan, entries, stale=stale, workers=checked_workers(workers))


def command(
    study: Annotated[str, typer.Argument(metavar="STUDY.toml", help="The study: base configuration and axes.")],
    *,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder of the sweep. Default: runs/sweep-NAME, of the study.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="Processes of this machine, or tasks of a Ray cluster.")
    ] = "local",
    workers: Annotated[int | None, typer.Option("--workers", help="Cells at a time. Default: one a core.")] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="Of an existing Ray cluster. Default: one on this machine, for this sweep."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from the rows in the folder, or forget them.")
    ] = True,
    stale: Annotated[
        Stale, typer.Option("--stale", help="Rows that another version of the code made: run again, or keep.")
    ] = "rerun",
    runs: Annotated[
        str | None,
        typer.Option("--runs", metavar="all|N,N", help="Cells that also leave their run folder, in OUT/runs."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and an estimate of the time; run (almost) nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object, alone.")] = False,
) -> None:
    """Run every cell of a study: a table with a row a cell. Interrupted or grown, it goes on where it was."""
    from kvrm_analysis.study import load_study

    wanted = _run_numbers(runs)
    loaded = load_study(study)
    folder = Path(out) if out is not None else Path("runs") / f"sweep-{loaded.file.name}"
    if dry_run:
        found = sweep_dry_run(study, out=folder, workers=workers, stale=stale)
        say(json_text.dumps(found.to_dict(), indent=2) if json else found.to_text(_MOST_LINES))
        return
    try:
        with progress_bars() as bars:

            def advance(done: int, every: int) -> None:
                if bars is not None:
                    bars(loaded.file.name, done / max(1, every))

            finished = sweep(
                study,
                out=folder,
                engine=engine,
                workers=workers,
                address=address,
                resume=resume,
                stale=stale,
                runs=wanted,
                progress=advance,
            )
    except KeyboardInterrupt:
        complain(f"interrupted: what has run is in {folder}; the same command goes on from there")
        raise typer.Exit(1) from None
    say(json_text.dumps(finished.to_dict(), indent=2) if json else _text(finished))
    _report(finished)


def _run_numbers(text: str | None) -> bool | tuple[int, ...]:
    if text is None or text == "all":
        return text is not None
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither 'all' nor cell numbers, e.g. 0,17", param_hint="--runs"
        ) from None


def _text(finished: Sweep) -> str:
    """What has run, what became of it, and where it is."""
    words = {"done": "done", "does_not_fit": "do not fit", "refused": "refused", "failed": "failed"}
    statuses = ", ".join(
        f"{finished.statuses[name]:,} {text}" for name, text in words.items() if name in finished.statuses
    )
    assert finished.folder is not None, "the command always has one"
    lines = [f"{finished.cells.num_rows:,} cells: {statuses}", finished.work_line()]
    lines += [f"table: {finished.folder / 'cells.parquet'}"]
    if finished.intervals is not None:
        lines.append(f"intervals of {finished.study.repeats} repeats: {finished.folder / 'intervals.parquet'}")
    return "\n".join(lines)


def _report(finished: Sweep) -> None:
    """On stderr: cells without results, and what to know of the others; exit code 1 where a cell went wrong by itself,
    or none has results.
    """
    for line in finished.notes():
        note(line)
    missing = finished.without_results()
    for line in missing[:_MOST_COMPLAINTS]:
        complain(line)
    if len(missing) > _MOST_COMPLAINTS:
        note(f"... and {len(missing) - _MOST_COMPLAINTS:,} more reasons: columns status and error of the table")
    if "failed" in finished.statuses or "done" not in finished.statuses:
        raise typer.Exit(1)

"""``kvrm sweep``, ``kvrm tune`` and ``kvrm sensitivity``: what is done with a study file."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from kvrm import sensitivities, sweeps, tunes
from kvrm.console import complain, note, progress_bars, say, say_text, working
from kvrm.sweeps import EngineName, Stale

if TYPE_CHECKING:
    from kvrm_analysis.studies.sweep import Sweep

T = TypeVar("T")

#: Lines of cells that a dry run prints, and reasons why cells have no results that a sweep prints.
_MOST_LINES, _MOST_COMPLAINTS = 200, 10

EngineOption: TypeAlias = Annotated[
    EngineName, typer.Option("--engine", help="Processes of this machine, or tasks of a Ray cluster.")
]
WorkersOption: TypeAlias = Annotated[
    int | None, typer.Option("--workers", help="Cells at a time. Default: one a core.", show_default=False)
]
AddressOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--address", help="Of an existing Ray cluster. Default: one on this machine, for this command."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print a JSON object, alone.")]


def _with_progress(name: str, folder: Path, what: str, work: Callable[[Callable[[int, int], None]], T]) -> T:
    """Do the work under a bar. An interrupt says what there is and that it goes on from there, with exit code 1."""
    try:
        with progress_bars() as bars:

            def advance(done: int, every: int) -> None:
                if bars is not None:
                    bars(name, done / max(1, every))

            advance(0, 1)  # reading the traces takes a while, before the first cell
            return work(advance)
    except KeyboardInterrupt:
        complain(f"interrupted: {what} in {folder}; the same command goes on from there")
        raise typer.Exit(1) from None


def sweep(
    study: Annotated[str, typer.Argument(metavar="STUDY.toml", help="The study: base configuration and axes.")],
    *,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder of the sweep. Default: runs/sweep-NAME, of the study.")
    ] = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
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
    json: JsonOption = False,
) -> None:
    """Run every cell of a study: a table with a row a cell. Interrupted or grown, it goes on where it was."""
    from kvrm_analysis.studies.study import load_study

    wanted = _run_numbers(runs)
    loaded = load_study(study)
    folder = Path(out) if out is not None else Path("runs") / f"sweep-{loaded.file.name}"
    if dry_run:
        with working("trying cells"):
            found = sweeps.sweep_dry_run(study, out=folder, workers=workers, stale=stale)
        if json:
            say(json_text.dumps(found.to_dict(), indent=2))
        else:
            say_text(found.to_text(_MOST_LINES))
        return
    finished = _with_progress(
        loaded.file.name,
        folder,
        "what has run is",
        lambda advance: sweeps.sweep(
            study,
            out=folder,
            engine=engine,
            workers=workers,
            address=address,
            resume=resume,
            stale=stale,
            runs=wanted,
            progress=advance,
        ),
    )
    say(json_text.dumps(finished.to_dict(), indent=2) if json else _text(finished))
    _report(finished)


def tune(
    study: Annotated[
        str, typer.Argument(metavar="STUDY.toml", help="The study: base configuration, axes, and the table tune.")
    ],
    *,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder of the search. Default: runs/tune-NAME, of the study.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", help="Instead of the study's: more of them go on with the search.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="Instead of the study's: tpe, nsga2 or random.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Instead of the study's.")] = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from the trials in the folder, or forget them.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Search the axes of a study for an objective under an SLO: the best cell, its neighbours, a front as a figure."""
    loaded = tunes.loaded(study, trials, sampler, seed)
    folder = Path(out) if out is not None else Path("runs") / f"tune-{loaded.file.name}"
    found = _with_progress(
        loaded.file.name,
        folder,
        "the trials that ended are",
        lambda advance: tunes.tune(
            study,
            out=folder,
            engine=engine,
            workers=workers,
            address=address,
            resume=resume,
            trials=trials,
            sampler=sampler,
            seed=seed,
            progress=advance,
        ),
    )
    if json:
        say(json_text.dumps(found.to_dict(), indent=2))
    else:
        say_text(found.to_text())
    if not json:
        say(f"results: {folder}")
        say(f"figure: {found.figure}")
    if not any(trial.feasible for trial in found.trials):
        raise typer.Exit(1)


def sensitivity(
    study: Annotated[
        str,
        typer.Argument(metavar="STUDY.toml", help="The study: base configuration, axes, and the table sensitivity."),
    ],
    *,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder. Default: runs/sensitivity-NAME, of the study.")
    ] = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from the rows in the folder, or forget them.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Sobol indices of chosen figures over the axes of a study: which keys move them, alone and with others."""
    name = sensitivities.loaded(study).file.name
    folder = Path(out) if out is not None else Path("runs") / f"sensitivity-{name}"
    found = _with_progress(
        name,
        folder,
        "what has run is",
        lambda advance: sensitivities.sensitivity(
            study, out=folder, engine=engine, workers=workers, address=address, resume=resume, progress=advance
        ),
    )
    if json:
        say(json_text.dumps(found.to_dict(), indent=2))
    else:
        say_text(found.to_text())
    if not json:
        say(f"results: {folder}")
        say(f"figure: {found.figure}")


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

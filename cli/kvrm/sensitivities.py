"""``kvrm sensitivity``, and the same from Python: which keys of a study move which figures (docs/tuning.md)."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvrm.console import complain, progress_bars, say
from kvrm.sweeps import EngineName, Stale, StudySource

if TYPE_CHECKING:
    from kvrm_analysis.engines import Engine
    from kvrm_analysis.sensitivity import Sensitivity, SensitivityStudy


def sensitivity(
    study: StudySource,
    *,
    out: str | Path | None = None,
    engine: EngineName | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    resume: bool = True,
    stale: Stale = "rerun",
    progress: Callable[[int, int], None] | None = None,
) -> Sensitivity:
    """Sobol indices, first and total, of the outputs that ``[sensitivity]`` of a study names, with intervals.

    ``out``: the folder of a sweep over the design, whose rows are kept and not run again, with summary.json and the
    figure. The other options are those of :func:`kvrm.sweep`. Raises InputError for a study that is wrong, before any
    work, and where the extra ``tune`` is not installed.
    """
    from kvrm_analysis.engines import make_engine
    from kvrm_analysis.sensitivity import indices_of
    from kvrm_analysis.sensitivity_figure import sensitivity_figure
    from kvrm_analysis.sweep import planned, run_plan

    asked = _loaded(study)
    folder = None if out is None else Path(out)
    with planned(asked.cells()) as plan:
        if isinstance(engine, str):
            engine = make_engine(engine, workers=workers, address=address)
        with engine:
            swept = run_plan(plan, engine, out=folder, resume=resume, stale=stale, progress=progress)
    found = indices_of(asked, swept)
    if folder is None:
        return found
    (folder / "summary.json").write_text(json_text.dumps(found.to_dict(), indent=2) + "\n", encoding="utf-8")
    return replace(found, folder=folder, figure=sensitivity_figure(found, folder / "sensitivity.png"))


def _loaded(study: StudySource) -> SensitivityStudy:
    from kvrm_analysis.sensitivity import sensitivity_of
    from kvrm_analysis.study_file import read_study, study_of
    from kvrm_sim.errors import ConfigError
    from kvrm_sim.tables import prefixed

    if isinstance(study, Mapping):
        return sensitivity_of(study_of(study))
    file = read_study(study)
    try:
        return sensitivity_of(file)
    except ConfigError as error:
        raise prefixed(error, str(study)) from None


def command(
    study: Annotated[
        str,
        typer.Argument(metavar="STUDY.toml", help="The study: base configuration, axes, and the table sensitivity."),
    ],
    *,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder. Default: runs/sensitivity-NAME, of the study.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="Processes of this machine, or tasks of a Ray cluster.")
    ] = "local",
    workers: Annotated[int | None, typer.Option("--workers", help="Cells at a time. Default: one a core.")] = None,
    address: Annotated[str | None, typer.Option("--address", help="Of an existing Ray cluster.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from the rows in the folder, or forget them.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object, alone.")] = False,
) -> None:
    """Sobol indices of chosen figures over the axes of a study: which keys move them, alone and with others."""
    name = _loaded(study).file.name
    folder = Path(out) if out is not None else Path("runs") / f"sensitivity-{name}"
    try:
        with progress_bars() as bars:

            def advance(done: int, every: int) -> None:
                if bars is not None:
                    bars(name, done / max(1, every))

            found = sensitivity(
                study, out=folder, engine=engine, workers=workers, address=address, resume=resume, progress=advance
            )
    except KeyboardInterrupt:
        complain(f"interrupted: what has run is in {folder}; the same command goes on from there")
        raise typer.Exit(1) from None
    say(json_text.dumps(found.to_dict(), indent=2) if json else found.to_text())
    if not json:
        say(f"results: {folder}")
        say(f"figure: {found.figure}")

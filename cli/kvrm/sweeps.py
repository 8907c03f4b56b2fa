"""``kvrm sweep``, and the same from Python: every cell of a study, on the cores of this machine or on a Ray cluster.

    import kvrm

    done = kvrm.sweep("study.toml", out="runs/sweep")
    done.to_pandas().groupby("policy")["ttft_p99_s"].min()

What a study is stands in docs/sweeps.md. Imports of the parts are inside the functions, as in :mod:`kvrm.api`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from kvrm_analysis.engines.engines import Engine
    from kvrm_analysis.studies.sweep import Sweep
    from kvrm_analysis.studies.sweep_estimate import DryRun

EngineName: TypeAlias = Literal["local", "ray"]
Stale: TypeAlias = Literal["rerun", "keep"]
#: A study's file, or the same as nested values.
StudySource: TypeAlias = str | Path | Mapping[str, Any]


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
    from kvrm_analysis.engines.named import engine_of
    from kvrm_analysis.studies.study import load_study
    from kvrm_analysis.studies.sweep import planned, run_plan

    found = load_study(study)
    with planned(found) as plan, engine_of(engine, workers=workers, address=address) as chosen:
        return run_plan(
            plan,
            chosen,
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
    from kvrm_analysis.engines.engines import checked_workers
    from kvrm_analysis.studies.journal import read_entries
    from kvrm_analysis.studies.study import load_study
    from kvrm_analysis.studies.sweep import planned
    from kvrm_analysis.studies.sweep_estimate import dry_run

    with planned(load_study(study)) as plan:
        entries = {} if out is None else read_entries(Path(out))
        return dry_run(plan, entries, stale=stale, workers=checked_workers(workers))

"""``kvrm sensitivity``, and the same from Python: which keys of a study move which figures (docs/tuning.md)."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvrm.sweeps import EngineName, Stale, StudySource

if TYPE_CHECKING:
    from kvrm_analysis.engines.engines import Engine
    from kvrm_analysis.searches.sensitivity import Sensitivity, SensitivityStudy


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
    from kvrm_analysis.engines.named import engine_of
    from kvrm_analysis.searches.sensitivity import indices_of
    from kvrm_analysis.searches.sensitivity_figure import sensitivity_figure
    from kvrm_analysis.studies.sweep import planned, run_plan

    asked = loaded(study)
    folder = None if out is None else Path(out)
    with planned(asked.cells()) as plan, engine_of(engine, workers=workers, address=address) as chosen:
        swept = run_plan(plan, chosen, out=folder, resume=resume, stale=stale, progress=progress)
    found = indices_of(asked, swept)
    if folder is None:
        return found
    (folder / "summary.json").write_text(json_text.dumps(found.to_dict(), indent=2) + "\n", encoding="utf-8")
    return replace(found, folder=folder, figure=sensitivity_figure(found, folder / "sensitivity.png"))


def loaded(study: StudySource) -> SensitivityStudy:
    """The study, checked. Raises InputError, ConfigError."""
    from kvrm_analysis.searches.sensitivity import sensitivity_of
    from kvrm_analysis.studies.study_file import parsed_study

    return parsed_study(study, sensitivity_of)

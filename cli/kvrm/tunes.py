"""``kvrm tune``, and the same from Python: search the axes of a study for an objective under an SLO (docs/tuning.md).

import kvrm

found = kvrm.tune("study.toml", out="runs/tune")
found.best.settings
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvrm.sweeps import EngineName, StudySource

if TYPE_CHECKING:
    from kvrm_analysis.engines.engines import Engine
    from kvrm_analysis.searches.tune_answer import Tuned
    from kvrm_analysis.searches.tune_study import TuneStudy


def tune(
    study: StudySource,
    *,
    out: str | Path | None = None,
    engine: EngineName | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    resume: bool = True,
    trials: int | None = None,
    sampler: str | None = None,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Search the axes of a study for what its ``[tune]`` asks. Returns the best cell, its neighbours and the front.

    ``out``: the folder of the search, which goes on where an earlier one stopped (``resume``), or is grown by more
    ``trials``. Without it nothing is written. ``trials``, ``sampler`` and ``seed`` stand for those of ``[tune]``.
    ``progress`` is called with trials that ended, and all of them. Raises InputError for a study that is wrong, before
    any work, and where the extra ``tune`` is not installed.
    """
    from kvrm_analysis.engines.named import engine_of
    from kvrm_analysis.searches.tune_answer import answered
    from kvrm_analysis.searches.tune_folder import write_answer
    from kvrm_analysis.searches.tuning import JOURNAL, Search, cell_work, optuna_library
    from kvrm_analysis.studies.study_folder import prepared_folder

    found = loaded(study, trials, sampler, seed)
    optuna_library()  # missing is said before any work
    folder = None if out is None else prepared_folder(Path(out), JOURNAL, resume=resume)
    with cell_work(found) as (work, rows), engine_of(engine, workers=workers, address=address) as chosen:
        search = Search(found, chosen, work, rows, folder)
        search.run(progress)
        answer = answered(found, search)
    if folder is None:
        return answer
    return replace(answer, folder=folder, figure=write_answer(answer, folder))


def loaded(study: StudySource, trials: int | None, sampler: str | None, seed: int | None) -> TuneStudy:
    """The study, checked, with these instead of its own. Raises InputError, ConfigError."""
    from collections.abc import Mapping

    from kvrm_analysis.searches.tune_study import tune_of
    from kvrm_analysis.studies.study_file import StudyFile, parsed_study

    given = {
        name: value for name, value in (("trials", trials), ("sampler", sampler), ("seed", seed)) if value is not None
    }

    def with_given(file: StudyFile) -> TuneStudy:
        own = file.sections.get("tune")
        if given and isinstance(own, Mapping):
            file = replace(file, sections={**file.sections, "tune": {**own, **given}})
        return tune_of(file)

    return parsed_study(study, with_given)

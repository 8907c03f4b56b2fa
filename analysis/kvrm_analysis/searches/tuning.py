"""The search of `kvrm tune`: Optuna proposes cells, an engine runs them, and a journal remembers.

Each trial is proposed by a sampler that is seeded with the study's seed and the trial's number, from the trials before
its batch: so an interrupted search goes on as if it had not been, and the number of workers changes nothing.

*Early windows*: a trial runs the first share of the requests first. It is given up when it misses what it has to meet
by more than MARGIN there, or when it is worse there than half of the feasible trials that have seen the whole trace.
"""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvrm_analysis.engines.engines import Engine
from kvrm_analysis.searches.search_space import ordered
from kvrm_analysis.searches.tune_study import TuneStudy
from kvrm_analysis.studies.axes import Axis, Dimension, rounded
from kvrm_analysis.studies.cell_keys import code_version
from kvrm_analysis.studies.cell_rows import Row, failed_row
from kvrm_analysis.studies.cell_traces import CellTraces, reading_of, share_files
from kvrm_analysis.studies.cell_work import CellTask, CellWork, ran
from kvrm_analysis.studies.settings import TraceOptions
from kvrm_sim.errors import InputError
from kvrm_traces import BUILTINS

if TYPE_CHECKING:
    from kvrm_traces.shared import SharedTrace

JOURNAL = "trials.journal"
NAME = "kvrm"
#: A window misses a bound for good when it is off by this share of it: the first requests meet an empty replica.
MARGIN = 0.2
#: Trials that have seen the whole trace before others are given up for being worse.
FIRST = 8

#: What the error of a trial begins with that a constraint keeps out; the constraint follows.
EXCLUDED = "constraints: excluded by "
#: Trials in a generation of NSGA-II.
POPULATION = 16

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Tried:
    """A trial that ended. ``row``: of the whole trace, or of the last window of one that was given up. ``requests``:
    simulated for it. ``windows``: the objective in each.
    """

    number: int
    settings: Mapping[str, Any]
    row: Row
    excess: float
    values: tuple[float, ...] | None
    given_up: bool
    requests: int
    windows: Mapping[str, float | None]

    @property
    def feasible(self) -> bool:
        """It met everything, on the whole trace."""
        return not self.given_up and self.excess <= 0 and self.values is not None


@dataclass
class _Outcome:
    """A trial on its way: what it sets, its row when it is known, its objective in each window."""

    settings: Mapping[str, Any]
    row: Row | None = None
    given_up: bool = False
    requests: int = 0
    windows: dict[str, float | None] = field(default_factory=dict)


def optuna_library() -> Any:
    """Optuna, quiet. Raises InputError that names the extra where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise InputError("kvrm tune needs Optuna: install the extra, pip install 'kvrm[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def cell_work(study: TuneStudy, shared: Mapping[str, SharedTrace] | None = None) -> Iterator[tuple[CellWork, int]]:
    """What an engine is given, and how many requests the trace of the base has; a file is read once."""
    import tempfile

    file = study.file
    base = {key.removeprefix("trace."): value for key, value in file.base.items() if key.startswith("trace.")}
    options = TraceOptions(**{key: value for key, value in base.items() if value is not None})
    with tempfile.TemporaryDirectory(prefix="kvrm-tune-") as folder:
        seed = file.base["seed"]
        if shared is None and options.source not in BUILTINS:
            shared = share_files([reading_of(options, seed, file.folder)], Path(folder))
        traces = CellTraces(shared, file.folder)
        plugins = tuple(file.path(name) for name in file.plugins)
        yield (
            CellWork(shared=shared or {}, folder=file.folder, plugins=plugins, code=code_version()),
            traces.open(options, seed).info.rows,
        )


class Search:
    """A search in a folder, or (``folder`` None) in memory. ``trials`` are those that ended, in order."""

    def __init__(self, study: TuneStudy, engine: Engine, work: CellWork, rows: int, folder: Path | None) -> None:
        self._study, self._engine, self._work, self._rows = study, engine, work, rows
        self._optuna = optuna_library()
        self._folder = folder
        self._known: dict[str, Row] = {}
        with _quiet():
            self._trials: Any = self._opened()
        for trial in self.trials:
            if not trial.given_up:
                self._known[self._name({**study.file.base, **trial.settings})] = trial.row

    @property
    def trials(self) -> list[Tried]:
        """Those that ended, in order."""
        ended = [self._tried(trial) for trial in self._trials.get_trials(deepcopy=False) if trial.state.is_finished()]
        return sorted(ended, key=lambda trial: trial.number)

    def run(self, progress: Progress | None = None) -> list[Tried]:
        """Go on until there are as many trials as the study asks for."""
        wanted = self._study.trials
        with _quiet():
            while True:
                every = self._trials.get_trials(deepcopy=False)
                done = sum(trial.state.is_finished() for trial in every)
                if progress is not None:
                    progress(done, wanted)
                if done >= wanted:
                    return self.trials
                self._batch(every, min(wanted, (done // self._study.batch + 1) * self._study.batch))

    def rows_of(self, cells: Sequence[Mapping[str, Any]]) -> list[Row]:
        """The rows of whole cells; each is run once."""
        return self._run([{**self._study.file.base, **cell} for cell in cells])

    def _batch(self, every: Sequence[Any], end: int) -> None:
        """The trials up to number `end`: those that an interrupted search left open, then new ones."""
        left_open = [trial for trial in every if not trial.state.is_finished()]
        asked, chosen = [], []
        for number, of in [*((trial.number, trial) for trial in left_open), *enumerate([None] * (end - len(every)))]:
            # What is suggested depends on the number of the trial, so it is seeded before each.
            self._trials.sampler = self._sampler(len(every) + number if of is None else number)
            trial = self._trials.ask() if of is None else self._optuna.trial.Trial(self._trials, of._trial_id)
            asked.append(trial)
            chosen.append({**self._study.file.base, **self._suggested(trial)})
        for trial, outcome in zip(asked, self._judged(chosen), strict=True):
            self._tell(trial, outcome)

    def _judged(self, chosen: Sequence[Mapping[str, Any]]) -> list[_Outcome]:
        """Windows first, then the whole trace for those that were not given up. A cell that is known is not run."""
        found = [_Outcome(settings) for settings in chosen]
        for outcome in found:
            if (missed := self._study.file.missed(outcome.settings)) is not None:
                outcome.row = failed_row("refused", EXCLUDED + missed.text)
            elif (known := self._known.get(self._name(outcome.settings))) is not None:
                outcome.row = known
        live = [outcome for outcome in found if outcome.row is None]
        for window in self._study.windows:
            rows = self._run([{**each.settings, "trace.limit": math.ceil(window * self._rows)} for each in live])
            for outcome, row in zip(live, rows, strict=True):
                outcome.windows[str(window)] = self._study.goals[0].figure.in_row(row)
                outcome.requests += row["injected_requests"] or 0
                if self._hopeless(row, window):
                    outcome.row, outcome.given_up = row, True
            live = [outcome for outcome in live if not outcome.given_up]
        for outcome, row in zip(live, self._run([each.settings for each in live]), strict=True):
            outcome.row = row
            outcome.requests += row["injected_requests"] or 0
        return found

    def _hopeless(self, row: Row, window: float) -> bool:
        study = self._study
        if max(study.excesses(row).values()) > MARGIN:
            return True
        goal = study.goals[0]
        seen = [trial.windows.get(str(window)) for trial in self.trials if trial.feasible]
        values = [early for early in seen if early is not None]
        value = goal.figure.in_row(row)
        return value is not None and len(values) >= FIRST and goal.better(statistics.median(values), value)

    def _run(self, cells: Sequence[Mapping[str, Any]]) -> list[Row]:
        names = [self._name(cell) for cell in cells]
        fresh = {name: cell for name, cell in zip(names, cells, strict=True) if name not in self._known}
        order = list(fresh)
        for at, result in self._engine.map(self._work, [CellTask(fresh[name]) for name in order]):
            self._known[order[at]] = ran(result).row
        return [self._known[name] for name in names]

    def _own(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """What a cell sets beside the base."""
        return {key: cell[key] for key in self._study.space.keys}

    def _name(self, cell: Mapping[str, Any]) -> str:
        return json.dumps([self._own(cell), cell.get("trace.limit")], sort_keys=True)

    def _suggested(self, trial: Any) -> dict[str, Any]:
        return {of.key: _suggest(trial, of) for of in self._study.space.dimensions}

    def _tell(self, trial: Any, outcome: _Outcome) -> None:
        study, row = self._study, outcome.row
        assert row is not None, "a trial is told when it was judged"
        for name, value in study.excesses(row).items():
            if name not in trial.constraints:
                trial.set_constraint(name, value)
        told = {"settings": self._own(outcome.settings), "row": row, "given_up": outcome.given_up}
        trial.set_user_attr("result", told | {"requests": outcome.requests, "windows": outcome.windows})
        values = [goal.figure.in_row(row) if row["status"] == "done" else None for goal in study.goals]
        if outcome.given_up:
            if values[0] is not None:
                trial.report(values[0], step=0)
            self._trials.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
            return
        worst = [math.inf if not goal.maximize else -math.inf for goal in study.goals]
        self._trials.tell(trial, [bad if value is None else value for value, bad in zip(values, worst, strict=True)])

    def _tried(self, trial: Any) -> Tried:
        told = trial.user_attrs["result"]
        row, study = told["row"], self._study
        values = [goal.figure.in_row(row) if row["status"] == "done" else None for goal in study.goals]
        return Tried(
            number=trial.number,
            settings=told["settings"],
            row=row,
            excess=sum(max(0.0, value) for value in study.excesses(row).values()),
            values=None if None in values else tuple(value for value in values if value is not None),
            given_up=told["given_up"],
            requests=told["requests"],
            windows=told["windows"],
        )

    def _sampler(self, number: int) -> Any:
        samplers = self._optuna.samplers
        seed = int.from_bytes(f"{self._study.seed} {number}".encode(), "big") % (2**32 - 5)
        if self._study.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        if self._study.sampler == "nsga2":
            return samplers.NSGAIISampler(seed=seed, population_size=POPULATION)
        drawn = max(6, 2 * len(self._study.space.dimensions))
        return samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=drawn)

    def _opened(self) -> Any:
        optuna = self._optuna
        storage = None
        if self._folder is not None:
            from optuna.storages.journal import JournalFileBackend

            storage = optuna.storages.JournalStorage(JournalFileBackend(str(self._folder / JOURNAL)))
        directions = [goal.direction for goal in self._study.goals]
        found = optuna.create_study(study_name=NAME, storage=storage, directions=directions, load_if_exists=True)
        fingerprint = found.user_attrs.get("fingerprint")
        if fingerprint is None:
            found.set_user_attr("fingerprint", self._study.fingerprint)
        elif fingerprint != self._study.fingerprint:
            raise InputError(
                f"{self._folder}: its trials are of another study or another version of kvrm (only tune.trials may "
                "change): choose another --out, or search anew with --no-resume"
            )
        return found


def _suggest(trial: Any, of: Axis | Dimension) -> Any:
    if isinstance(of, Axis):
        if len(of.values) == 1:
            return of.values[0]
        if ordered(of):
            return of.values[trial.suggest_int(of.key, 0, len(of.values) - 1)]
        return json.loads(trial.suggest_categorical(of.key, [json.dumps(value) for value in of.values]))
    if of.integer:
        return trial.suggest_int(of.key, int(of.low), int(of.high), log=of.log)
    return rounded(trial.suggest_float(of.key, of.low, of.high, log=of.log))


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna warns of what is experimental in it: chosen here, and pinned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

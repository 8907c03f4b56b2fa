"""What a search found: the best cell, what lies beside it, the front, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrm_analysis.searches.basis import Basis
from kvrm_analysis.searches.figures_of_merit import Figure
from kvrm_analysis.searches.slo import Term
from kvrm_analysis.searches.tune_study import HAS_RESULTS, NOT_OVERLOADED, TuneStudy
from kvrm_analysis.searches.tuning import EXCLUDED, Search, Tried
from kvrm_analysis.studies.cell_rows import Row
from kvrm_sim.errors import ConfigError

SCHEMA = 1


@dataclass(frozen=True)
class Neighbour:
    """A cell that differs from the best in one key."""

    key: str
    value: Any
    values: tuple[float | None, ...]
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Tuned:
    """A search that ended. ``best`` None: no trial met everything, or there are two objectives. ``front``: trials that
    none is better than in both of ``front_of``.
    """

    study: TuneStudy
    trials: tuple[Tried, ...]
    best: Tried | None
    neighbours: tuple[Neighbour, ...]
    front: tuple[Tried, ...]
    folder: Path | None = None
    figure: Path | None = None

    @property
    def requests(self) -> int:
        """Simulated for all trials: what the search cost."""
        return sum(trial.requests for trial in self.trials)

    @property
    def excluded(self) -> dict[str, int]:
        """How many trials each constraint kept out: they cost nothing, and found nothing."""
        errors = [trial.row["error"] or "" for trial in self.trials]
        found = {constraint.text: EXCLUDED + constraint.text for constraint in self.study.file.constraints}
        return {text: errors.count(error) for text, error in found.items()}

    @property
    def basis(self) -> Basis | None:
        """Of the trials on the whole trace."""
        rows = [trial.row for trial in self.trials if not trial.given_up]
        return Basis.of((row["calibrated"], row["injected_requests"]) for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints: the answer, its neighbours, the front; values in s and bytes, absent is None."""
        study = self.study
        return {
            "schema": SCHEMA,
            "study": study.file.name,
            "objective": [str(goal) for goal in study.goals],
            "figures": [goal.figure.path for goal in study.goals],
            "slo": None if study.slo is None else str(study.slo),
            "sampler": study.sampler,
            "trials": len(self.trials),
            "given_up": sum(trial.given_up for trial in self.trials),
            "feasible": sum(trial.feasible for trial in self.trials),
            "excluded": sum(self.excluded.values()),
            "requests_simulated": self.requests,
            "calibrated": None if self.basis is None else self.basis.calibrated,
            "best": None if self.best is None else _trial(self.best),
            "neighbours": [
                {"key": each.key, "value": each.value, "values": list(each.values), "broken": list(each.broken)}
                for each in self.neighbours
            ],
            "front": [_trial(each) for each in self.front],
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """One row a trial: its number, what it set, whether it counts, and every figure of its cell."""
        return [
            {"trial": trial.number, "given_up": trial.given_up, "feasible": trial.feasible, "excess": trial.excess,
             "requests": trial.requests, **trial.settings, **trial.row}
            for trial in self.trials
        ]  # fmt: skip

    def to_text(self) -> str:
        """The answer for a terminal."""
        study = self.study
        asked = " and ".join(str(goal) for goal in study.goals) + (f" with {study.slo}" if study.slo else "")
        given_up = sum(trial.given_up for trial in self.trials)
        feasible = sum(trial.feasible for trial in self.trials)
        lines = [
            f"{study.file.name}: {asked}",
            f"{len(self.trials)} trials by {study.sampler}, {feasible} feasible, {given_up} given up early; "
            f"{self.requests:,} requests simulated",
            *(f"{count} trials excluded by the constraint {text}" for text, count in self.excluded.items() if count),
            *([] if self.basis is None else [str(self.basis)]),
        ]
        if not feasible:
            near = min(self.trials, key=lambda trial: trial.excess)
            lines.append(f"no trial meets everything; nearest is {near.number}: {_settings(near.settings)}")
            lines += [f"  {_missed(name, value)}" for name, value in study.excesses(near.row).items() if value > 0]
            if near.row["error"]:
                lines.append(f"  {near.row['error']}")
            return "\n".join(lines)
        if self.best is not None:
            lines += [f"best is trial {self.best.number}: {self._figures(self.best.row)}"]
            lines += [f"  {key} = {_value(value)}" for key, value in self.best.settings.items()]
            lines += self._beside()
        if len(study.goals) > 1:
            lines.append(f"front, {len(self.front)} trials:")
            lines += [f"  {self._figures(each.row)}: {_settings(each.settings)}" for each in self.front]
        return "\n".join(lines)

    def _beside(self) -> list[str]:
        if not self.neighbours:
            return []
        goal = self.study.goals[0]
        lines = ["beside it, one key changed:"]
        assert self.best is not None
        assert self.best.values is not None
        for each in self.neighbours:
            value = each.values[0]
            text = goal.figure.text(value)
            if value is not None and self.best.values[0]:
                text += f" ({value / self.best.values[0] - 1:+.1%})"
            better = value is not None and not each.broken and goal.better(value, self.best.values[0])
            mark = f"  misses {'; '.join(each.broken)}" if each.broken else "  better: search on" if better else ""
            lines.append(f"  {each.key} = {_value(each.value)}: {text}{mark}")
        return lines

    def _figures(self, row: Row) -> str:
        figures = [goal.figure for goal in self.study.goals]
        figures += [term.figure for term in self.study.slo.terms] if self.study.slo else []
        return ", ".join(f"{each.short} {each.text(each.in_row(row))}" for each in dict.fromkeys(figures))


def front_of(study: TuneStudy, best: Tried | None) -> tuple[tuple[Figure, bool], tuple[Figure, bool]] | None:
    """The two figures of the front, each with whether more is better: both objectives, or the objective and the bounded
    figure that is nearest to its bound at the best. None where there is one figure only.
    """
    first = study.goals[0]
    if len(study.goals) > 1:
        return (first.figure, first.maximize), (study.goals[1].figure, study.goals[1].maximize)
    term = _binding(study, best)
    return None if term is None else ((first.figure, first.maximize), (term.figure, not term.upper))


def _binding(study: TuneStudy, best: Tried | None) -> Term | None:
    terms = [term for term in study.slo.terms if term.figure != study.goals[0].figure] if study.slo else []
    if best is None or not terms:
        return terms[0] if terms else None
    return max(terms, key=lambda term: term.excess(term.figure.in_row(best.row) or 0.0))


def answered(study: TuneStudy, search: Search) -> Tuned:
    """The answer of a search that has run; the neighbours of its best cell are run for it. Raises ConfigError where the
    constraints left no trial.
    """
    trials = search.trials
    _refuse_all_excluded(study, trials)
    feasible = [trial for trial in trials if trial.feasible]
    best = None
    if feasible and len(study.goals) == 1:
        goal = study.goals[0]
        best = min(
            feasible, key=lambda trial: ((-1 if goal.maximize else 1) * (trial.values or (0.0,))[0], trial.number)
        )
    neighbours: tuple[Neighbour, ...] = ()
    if best is not None:
        beside = list(study.space.neighbours(best.settings))
        kept = [
            (key, change) for key, change in beside if study.file.allows({**study.file.base, **best.settings, **change})
        ]
        rows = search.rows_of([{**best.settings, **change} for _, change in kept])
        neighbours = tuple(
            Neighbour(key, change[key], _values(study, row), _broken(study, row))
            for (key, change), row in zip(kept, rows, strict=True)
        )
    return Tuned(study, tuple(trials), best, neighbours, _front(study, trials, best))


def _refuse_all_excluded(study: TuneStudy, trials: Sequence[Tried]) -> None:
    excluded = Tuned(study, tuple(trials), None, (), ()).excluded
    if trials and sum(excluded.values()) == len(trials):
        by = ", ".join(f"{count:,} by {text!r}" for text, count in excluded.items())
        raise ConfigError(f"constraints: each of the {len(trials):,} trials is excluded: {by}", "constraints")


def _front(study: TuneStudy, trials: Sequence[Tried], best: Tried | None) -> tuple[Tried, ...]:
    pair = front_of(study, best)
    if pair is None:
        return ()
    figures = [figure for figure, _ in pair]
    # With one objective the bound that spans the front may be missed; nothing else may.
    spanned = "" if len(study.goals) > 1 else str(_binding(study, best))
    able = [
        trial
        for trial in trials
        if not trial.given_up
        and all(value <= 0 for name, value in study.excesses(trial.row).items() if name != spanned)
        and all(figure.in_row(trial.row) is not None for figure in figures)
    ]
    points = [tuple((-1 if more else 1) * (figure.in_row(t.row) or 0.0) for figure, more in pair) for t in able]
    kept = [
        trial
        for at, trial in enumerate(able)
        if not any(
            all(a <= b for a, b in zip(other, points[at], strict=True)) and (other != points[at] or before < at)
            for before, other in enumerate(points)
            if before != at
        )
    ]
    return tuple(sorted(kept, key=lambda trial: points[able.index(trial)]))


def _values(study: TuneStudy, row: Row) -> tuple[float | None, ...]:
    return tuple(goal.figure.in_row(row) if row["status"] == "done" else None for goal in study.goals)


def _broken(study: TuneStudy, row: Row) -> tuple[str, ...]:
    if row["status"] != "done":
        return (row["error"] or row["status"],)
    return tuple(name for name, value in study.excesses(row).items() if value > 0)


def _trial(trial: Tried) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "settings": dict(trial.settings),
        "values": list(trial.values or ()),
        "row": trial.row,
    }


def _missed(name: str, excess: float) -> str:
    """A bound with how far it is missed; of what only holds or not, that it does not."""
    yes_or_no = {NOT_OVERLOADED: "it is overloaded", HAS_RESULTS: "it has no results"}
    return yes_or_no.get(name, f"{name}: off by {excess:.1%}")


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_value(value)}" for key, value in settings.items())


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

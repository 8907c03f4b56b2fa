"""[tune] of a study: what is searched for, under which SLO, how long and by what (docs/tuning.md).

[tune]
objective = "minimize kv_footprint"       # or two, for a front
slo = ["itl_p99 <= 160ms"]
trials = 64
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from kvrm_analysis.searches.search_space import Space, read_space
from kvrm_analysis.searches.slo import Goal, Slo, parse_goal, parse_slo
from kvrm_analysis.studies.cell_keys import code_version
from kvrm_analysis.studies.cell_rows import Row
from kvrm_analysis.studies.study_file import StudyFile, needs_trace, own_table
from kvrm_sim.errors import ConfigError, InputError

Sampler: TypeAlias = Literal["tpe", "nsga2", "random"]
_KEYS = ("objective", "slo", "trials", "sampler", "seed", "batch", "windows", "allow_overload")
_MOST_TRIALS = 100_000
#: What a trial has to meet beside its bounds, by the names that its constraints have in the journal.
HAS_RESULTS, NOT_OVERLOADED = "has results", "not overloaded"


@dataclass(frozen=True)
class TuneStudy:
    """A search, checked. ``windows``: shares of the trace's requests after which a trial may be given up.

    ``batch`` trials are asked for before any of them is known, however many workers there are, so that the search is
    the same on one and on many.
    """

    file: StudyFile
    space: Space
    goals: tuple[Goal, ...]
    slo: Slo | None
    trials: int = 64
    sampler: Sampler = "tpe"
    seed: int = 0
    batch: int = 4
    windows: tuple[float, ...] = ()
    allow_overload: bool = False

    @property
    def fingerprint(self) -> str:
        """Of all that decides a trial but how many there are."""
        file = self.file
        axes = [file.sections.get(name) for name in ("axes", "sample")]
        texts = [str(goal) for goal in self.goals], str(self.slo), [constraint.text for constraint in file.constraints]
        how = self.sampler, self.seed, self.batch, self.windows, self.allow_overload
        told = [dict(file.base), axes, texts, file.plugins, how, code_version()]
        text = json.dumps(told, sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def excesses(self, row: Row) -> dict[str, float]:
        """By what a cell misses what it has to meet, by name: 0 or less where it does not. Of no results: 1 each."""
        names = [str(term) for term in self.slo.terms] if self.slo else []
        if row["status"] != "done":
            return dict.fromkeys([HAS_RESULTS, *names], 1.0)
        found = {HAS_RESULTS: 0.0}
        for goal in self.goals:
            if goal.figure.in_row(row) is None:
                found[HAS_RESULTS] = 1.0
        for term in self.slo.terms if self.slo else ():
            value = term.figure.in_row(row)
            found[str(term)] = 1.0 if value is None else term.excess(value)
        if not self.allow_overload:
            found[NOT_OVERLOADED] = 1.0 if row["overloaded"] else 0.0
        return found


def tune_of(file: StudyFile) -> TuneStudy:
    """The search that a study describes. Raises ConfigError that names the key, the value and what would be right."""
    given = own_table(file, "tune", _KEYS, "say what to search for, [tune] objective = 'minimize FIGURE'")
    try:
        goals = tuple(parse_goal(text, "tune.objective") for text in _texts(given, "objective"))
        slo = parse_slo(_texts(given, "slo"), "tune.slo") if "slo" in given else None
    except InputError as error:
        raise ConfigError(str(error)) from None
    if not 1 <= len(goals) <= 2:
        raise ConfigError(f"tune.objective: {len(goals)} objectives; one, or two for a front", "tune.objective")
    sampler = given.get("sampler", "tpe" if len(goals) == 1 else "nsga2")
    if sampler not in get_args(Sampler):
        raise ConfigError(
            f"tune.sampler = {sampler!r}: should be one of {', '.join(get_args(Sampler))}", "tune.sampler"
        )
    windows = _windows(given.get("windows", []))
    if windows and len(goals) > 1:
        raise ConfigError("tune.windows: trials are given up by one objective; leave it out with two", "tune.windows")
    if not isinstance(given.get("allow_overload", False), bool):
        raise ConfigError(f"tune.allow_overload = {given['allow_overload']!r}: should be true or false")
    space = read_space(file, "tune")
    cut = [key for key in space.keys if key in ("trace.source", "trace.rows", "trace.limit", "trace.window_s")]
    if windows and cut:
        raise ConfigError(f"tune.windows: {cut[0]} varies, so there is no one trace of which they are shares")
    needs_trace({**file.base, **dict.fromkeys(space.keys)}, "")
    return TuneStudy(
        file=file,
        space=space,
        goals=goals,
        slo=slo,
        trials=_whole(given, "trials", 64, 1, _MOST_TRIALS),
        sampler=cast("Sampler", sampler),
        seed=_whole(given, "seed", 0, 0, 2**31 - 1),
        batch=_whole(given, "batch", 4, 1, 1000),
        windows=windows,
        allow_overload=given.get("allow_overload", False),
    )


def _texts(given: Mapping[str, Any], name: str) -> list[str]:
    value = given.get(name, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
        like = "'minimize reserved_kv_mean'" if name == "objective" else "['itl_p99 <= 50ms']"
        raise ConfigError(f"tune.{name} = {value!r}: should be a text or a list of them, e.g. {like}", f"tune.{name}")
    return list(texts)


def _whole(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"tune.{name} = {value!r}: should be a whole number from {least} to {most:,}", f"tune.{name}")
    return value


def _windows(value: object) -> tuple[float, ...]:
    if not isinstance(value, list) or not all(
        isinstance(share, float) and 0 < share < 1 for share in value
    ) or list(value) != sorted(set(value)):  # fmt: skip
        raise ConfigError(
            f"tune.windows = {value!r}: should be ascending shares of the requests below 1, e.g. [0.1, 0.3]",
            "tune.windows",
        )
    return tuple(value)

"""Two runs, or two sets of repeats of one: what differs in what they were made from, and in what came out.

Without repeats a difference is exact, since a run is the same every time, and nothing is known of how it would be with
other draws. With repeats (the same configuration with other seeds or traces of the same name) an interval is given: a
95% percentile bootstrap of the relative difference of means, of pairs where both sides have the same seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_analysis.conditions import Condition, condition
from kvrm_analysis.ranking import unranked_because
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.searches.figures_of_merit import FIGURES, Figure
from kvrm_sim.errors import InputError

RESAMPLES = 4_000
NOT_RANKED = "no latency ranking"
#: Keys of run.toml in which repeats of one configuration may differ.
OF_A_REPEAT = ("seed", "trace.sha256", "trace.source", "trace.span_ns", "trace.rows")
#: Fields of a coefficient: where it is from, beside its value.
_PROVENANCE = (".source", ".description")


@dataclass(frozen=True)
class Metric:
    """A number on both sides: means over repeats. ``change``: B / A - 1, None where A is 0 or either is absent.

    ``interval``: 95% of the change, None without repeats.
    """

    figure: Figure
    a: float | None
    b: float | None
    change: float | None
    interval: tuple[float, float] | None

    @property
    def name(self) -> str:
        """As a column of a table of cells: the unit at its end."""
        return self.figure.column

    @property
    def differs(self) -> bool:
        """Whether the two sides say different things."""
        return self.a != self.b


@dataclass(frozen=True)
class Failure:
    """A condition that was met, and what was found. ``sure``: also at the near end of the interval."""

    condition: Condition
    found: str
    sure: bool


@dataclass(frozen=True)
class Difference:
    """``settings``: dotted keys with both values (None: not there); ``metrics``: all, in the order of a summary.

    ``paired``: the repeats have the same seeds. ``notes``: why latencies are not to be compared.
    """

    names: tuple[str, str]
    repeats: tuple[int, int]
    paired: bool
    settings: dict[str, tuple[Any, Any]]
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]
    failures: tuple[Failure, ...]

    @property
    def unranked(self) -> bool:
        """Whether latencies of one side say nothing beside those of the other."""
        return any(NOT_RANKED in note for note in self.notes)

    def to_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            "schema": 1,
            "a": self.names[0],
            "b": self.names[1],
            "repeats": list(self.repeats),
            "paired": self.paired,
            "settings": {key: {"a": a, "b": b} for key, (a, b) in self.settings.items()},
            "metrics": {
                m.name: {"a": m.a, "b": m.b, "change": m.change, "interval": list(m.interval) if m.interval else None}
                for m in self.metrics
            },
            "notes": list(self.notes),
            "failures": [{"condition": f.condition.text, "found": f.found, "sure": f.sure} for f in self.failures],
        }


def difference(
    a: Sequence[NamedRun], b: Sequence[NamedRun], names: tuple[str, str], fail_if: Sequence[str] = ()
) -> Difference:
    """Compare. ``a``, ``b``: one run or its repeats each. Raises InputError for runs on one side that are no repeats of
    each other, for a condition that cannot be read, and for a metric that there is not.
    """
    conditions = [condition(text) for text in fail_if]
    flat = [[_flat(run) for run in side] for side in (a, b)]
    for name, side in zip(names, flat, strict=True):
        _check_repeats(name, side)
    seeds = [[settings.get("seed") for settings in side] for side in flat]
    paired = len(a) > 1 and sorted(map(str, seeds[0])) == sorted(map(str, seeds[1])) and len(set(seeds[0])) == len(a)
    if paired:
        order = [seeds[1].index(seed) for seed in seeds[0]]
        b = [b[at] for at in order]
    metrics = _metrics(a, b, paired)
    by_name = {metric.name: metric for metric in metrics}
    failures = [_judged(one, by_name[one.figure.column]) for one in conditions]
    return Difference(
        names=names,
        repeats=(len(a), len(b)),
        paired=paired,
        settings=_settings(flat[0][0], flat[1][0], repeated=max(len(a), len(b)) > 1),
        metrics=tuple(metrics),
        notes=tuple(_notes(a, b, names)),
        failures=tuple(failure for failure in failures if failure is not None),
    )


def _flat(run: NamedRun) -> dict[str, Any]:
    """run.toml with dotted keys."""
    found: dict[str, Any] = {}

    def collect(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                collect(value, f"{prefix}{key}.")
            else:
                found[prefix + key] = value

    collect(run.document(), "")
    return found


def _check_repeats(name: str, side: Sequence[Mapping[str, Any]]) -> None:
    for other in side[1:]:
        keys = [key for key in sorted({*side[0], *other}) if side[0].get(key) != other.get(key)]
        wrong = [key for key in keys if key not in OF_A_REPEAT and not key.startswith("run.")]
        if wrong:
            raise InputError(
                f"{name}: its runs are no repeats of one configuration: {wrong[0]} is {side[0].get(wrong[0])!r} and "
                f"{other.get(wrong[0])!r}; name the folder of one run"
            )


def _settings(a: Mapping[str, Any], b: Mapping[str, Any], *, repeated: bool) -> dict[str, tuple[Any, Any]]:
    left_out = OF_A_REPEAT if repeated else ()
    keys = [key for key in (*a, *(key for key in b if key not in a)) if a.get(key) != b.get(key)]
    return {key: (a.get(key), b.get(key)) for key in keys if key not in left_out and not key.endswith(_PROVENANCE)}


def _metrics(a: Sequence[NamedRun], b: Sequence[NamedRun], paired: bool) -> list[Metric]:
    return [
        _metric(figure, *([_value(figure, run) for run in side] for side in (a, b)), paired=paired)
        for figure in FIGURES.values()
    ]


def _value(figure: Figure, run: NamedRun) -> float | None:
    """The number in a run's summary; None where it is null, or the run is of a version that had none."""
    try:
        return figure.value(run.summary)
    except KeyError:
        return None


def _metric(figure: Figure, a: Sequence[float | None], b: Sequence[float | None], *, paired: bool) -> Metric:
    means = [None if any(v is None for v in side) else float(np.mean([float(v or 0) for v in side])) for side in (a, b)]
    of_a, of_b = means
    if of_a is None or of_b is None or of_a == 0:
        return Metric(figure, of_a, of_b, 0.0 if of_a == of_b == 0 else None, None)
    interval = None
    if len(a) > 1 and len(b) > 1:
        interval = bootstrap(np.array(a, np.float64), np.array(b, np.float64), paired=paired)
    return Metric(figure, of_a, of_b, of_b / of_a - 1, interval)


def bootstrap(a: NDArray[np.float64], b: NDArray[np.float64], *, paired: bool) -> tuple[float, float] | None:
    """95% percentile interval of mean(b) / mean(a) - 1; None where a resample of ``a`` has a mean of 0.

    ``paired``: a[i] and b[i] are drawn together. The same values give the same interval.
    """
    rng = np.random.default_rng(0)
    of_a = rng.integers(0, len(a), (RESAMPLES, len(a)))
    of_b = of_a if paired else rng.integers(0, len(b), (RESAMPLES, len(b)))
    means = a[of_a].mean(axis=1)
    if (means == 0).any():
        return None
    low, high = np.quantile(b[of_b].mean(axis=1) / means - 1, (0.025, 0.975))
    return float(low), float(high)


def _judged(one: Condition, metric: Metric) -> Failure | None:
    """Whether a metric meets the condition; one that is absent where it is needed does: nothing is passed unseen."""
    if metric.b is None or (one.of != "value" and metric.a is None):
        return Failure(one, f"{metric.name} is absent", sure=True)
    if one.of == "value":
        value, ends = metric.b, None
    elif one.of == "difference":
        assert metric.a is not None
        value = metric.b - metric.a
        ends = None if metric.interval is None else tuple(end * metric.a for end in metric.interval)
    else:
        if metric.change is None:
            return Failure(one, f"{metric.name} was 0, so its change has no percentage", sure=True)
        value, ends = metric.change, metric.interval
    if not one.holds(value):
        return None
    near = None if ends is None else min(ends) if one.upward else max(ends)
    return Failure(one, _found(one, metric, value), sure=near is None or one.holds(near))


def _found(one: Condition, metric: Metric, value: float) -> str:
    shown = f"{100 * value:+.3g}%"
    if one.of != "share":
        shown = ("+" if one.of == "difference" and value >= 0 else "") + metric.figure.text(value)
    if metric.interval is None or one.of != "share":
        return f"{metric.name} {shown}"
    low, high = metric.interval
    return f"{metric.name} {shown} (95%: {100 * low:+.3g}% to {100 * high:+.3g}%)"


def _notes(a: Sequence[NamedRun], b: Sequence[NamedRun], names: tuple[str, str]) -> list[str]:
    """What keeps the latencies from being compared."""
    found = [run.summary for run in (*a, *b)]
    notes = []
    for name, side in zip(names, (a, b), strict=True):
        if len(found) == 2:
            reason = unranked_because(side[0].summary, found)
            notes += [] if reason is None else [f"{name}: {NOT_RANKED}: {reason}"]
        elif late := sum(bool(run.summary["overloaded"]) for run in side):
            notes.append(f"{name}: {NOT_RANKED}: {late} of {len(side)} repeats are overloaded")
    traces = [sorted({str(run.summary["trace"]["name"]) for run in side}) for side in (a, b)]
    if traces[0] != traces[1]:
        notes.append(f"different traces: {', '.join(traces[0])} and {', '.join(traces[1])}")
    if not all(run["calibrated"] for run in found):
        notes.append("uncalibrated: times rank policies under assumptions and predict no machine")
    return notes

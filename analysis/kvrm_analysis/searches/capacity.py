"""Capacity: the highest arrival rate, or the fewest replicas, at which traffic like this meets an SLO.

*Traffic like this* is a set of realisations: other seeds of a generator, or other draws from a recorded trace
(``Trace.resampled``), each scaled to the same mean rate. Every realisation has an edge of its own (capacity_search.py);
the capacity is the rate that a share of all realisations meets (half, unless said otherwise), and its interval is by
ranks (rank_intervals.py), so it assumes nothing of how edges are distributed. Every policy sees the same realisations.

A run meets the SLO when every bound holds, its requests are served, and it is not overloaded: while a backlog grows,
latencies say only how long the trace is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvrm_analysis.searches.capacity_search import Edge, Fewest, fewest, highest_rate
from kvrm_analysis.searches.rank_intervals import RankInterval, rank_interval
from kvrm_analysis.searches.slo import Slo
from kvrm_sim.errors import InputError
from kvrm_traces import Trace
from kvrm_traces.resampling import refusal

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How far the search goes. ``share`` of the realisations meets the SLO at the capacity, with ``confidence``.

    ``tolerance``: relative width to which an edge is bisected; ``guard``: answers in a row that end it on either side.
    """

    share: float = 0.5
    confidence: float = 0.95
    tolerance: float = 0.01
    guard: int = 3

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("confidence", self.confidence)):
            if not 0 < value < 1:
                raise InputError(f"{name} = {value!r}: should be between 0 and 1")
        if not 1e-4 <= self.tolerance <= 0.5:
            raise InputError(f"tolerance = {self.tolerance!r}: should be from 0.0001 to 0.5, a share of the rate")
        if self.guard < 0:
            raise InputError(f"guard = {self.guard!r}: should be 0 or more")


@dataclass(frozen=True)
class Probe:
    """One run of a search: the load, whether it met the SLO, and the value of each bounded figure."""

    load: float
    met: bool
    overloaded: bool
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Capacity:
    """Of one policy. ``at``: requests/s, or replicas; None: not met at any load that was tried. ``interval``: where it
    lies with ``coverage`` (None: one realisation says nothing of others; a side that is None is open).

    ``edges``: of each realisation, ascending: the rate up to which it was met and the one from which it was missed; the
    replicas up to which it was missed (None: 1 is enough) and the number from which it was met (None: none was).
    """

    policy: str
    at: float | None
    interval: tuple[float | None, float | None] | None
    coverage: float | None
    edges: tuple[tuple[float | None, float | None], ...]
    contradicted: int
    probes: tuple[tuple[Probe, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """As in ``--json``: absent is None."""
        return {
            "policy": self.policy,
            "capacity": self.at,
            "interval": None if self.interval is None else list(self.interval),
            "coverage": self.coverage,
            "edges": [list(edge) for edge in self.edges],
            "contradicted": self.contradicted,
            "runs": sum(len(probes) for probes in self.probes),
            "probes": [
                [{"load": each.load, "met": each.met, "overloaded": each.overloaded, "values": list(each.values)}
                 for each in probes]
                for probes in self.probes
            ],
        }  # fmt: skip


#: Share of the requests that may be rejected, and that may be unfinished, in a load that is met.
MOST_UNSERVED = 0.01

#: Realisations when nothing is said: the fewest that give the median an interval of 95%.
REPEATS = 6


def realisations(open_seed: Callable[[int], Trace], *, seed: int, repeats: int | None) -> tuple[tuple[Trace, ...], str]:
    """Traces alike, and in words what they are. ``open_seed`` opens the trace with a seed.

    What is drawn with a seed (a built-in trace, stated arrivals) is drawn with seeds from ``seed`` on; a recorded trace
    is resampled. ``repeats`` None: REPEATS, or 1 of a trace that cannot be resampled. One is the trace itself. Raises
    TraceError for more of a trace that cannot be.
    """
    if repeats is not None and repeats < 1:
        raise InputError(f"repeats = {repeats}: should be 1 or more")
    first = open_seed(seed)
    reason = refusal(first.info)
    count = repeats or REPEATS
    if count > 1 and _identity(open_seed(seed + 1)) != _identity(first):
        return (first, *(open_seed(seed + more) for more in range(1, count))), f"seeds {seed} to {seed + count - 1}"
    if repeats is None and reason is not None:
        return (first,), f"this trace alone, as {reason}"
    if count == 1:
        return (first,), "this trace alone"
    drawn = tuple(first.resampled(seed + number) for number in range(count))
    return drawn, f"{count} draws from the recorded trace, in stretches"


def _identity(trace: Trace) -> tuple[str, int]:
    return trace.info.sha256, trace.info.span_ns


#: Runs one realisation at one load: its RUN object.
Measure = Callable[[Trace], Mapping[str, Any]]


class _Asked:
    """Runs a load once, judges it, and keeps what it saw."""

    def __init__(self, slo: Slo, run: Callable[[float], Mapping[str, Any]]) -> None:
        self._slo = slo
        self._run = run
        self.probes: dict[float, Probe] = {}

    def __call__(self, load: float) -> bool:
        run = self._run(load)
        if missing := self._slo.missing(run):
            names = ", ".join(figure.short for figure in missing)
            raise InputError(
                f"slo: {names} has no value at a load of {load:.4g} ({run['policy']}): choose another figure"
            )
        overloaded = bool(run["overloaded"])
        served = _served(run)
        if not overloaded and (few := self._slo.unsupported(run)):
            names = ", ".join(f"{figure.short} (n = {n:,}; it takes {least:,})" for figure, n, least in few)
            raise InputError(
                f"slo: too few requests for {names} at a load of {load:.4g} ({run['policy']}): a longer trace "
                "(--rows), or a lower percentile"
            )
        met = served and not overloaded and not self._slo.broken(run)
        values = tuple(term.figure.value(run) for term in self._slo.terms)
        self.probes[load] = Probe(load, met, overloaded, values)
        return met

    def ordered(self) -> tuple[Probe, ...]:
        """By load."""
        return tuple(self.probes[load] for load in sorted(self.probes))


def _served(run: Mapping[str, Any]) -> bool:
    """Whether the requests were served, but for MOST_UNSERVED. Raises InputError where more can be at no load at all:
    the replica rejects for a request's length alone, never for a backlog.
    """
    counts = run["counts"]
    if counts["rejected"] > MOST_UNSERVED * counts["injected"]:
        raise InputError(
            f"{run['policy']}: {counts['rejected']:,} of {counts['injected']:,} requests are rejected at any load, "
            f"as they are over the context limit or the pool; at most {MOST_UNSERVED:.0%} may be, or a capacity is of "
            "other traffic: raise --max-context, pass --over-limit truncate, or leave those requests out of the trace"
        )
    return bool(counts["unfinished"] <= MOST_UNSERVED * counts["injected"])


def rate_capacity(
    policy: str,
    realisations: Sequence[Trace],
    measure: Measure,
    slo: Slo,
    effort: Effort | None = None,
    progress: Callable[[float], None] | None = None,
) -> Capacity:
    """The highest rate of a policy. ``measure`` runs a trace that was scaled to a rate.

    Raises InputError for too few realisations, a trace without a rate, or a figure that a run does not have.
    """
    effort = effort or Effort()
    ranks = _ranks(len(realisations), 1 - effort.share, effort.confidence)
    edges: list[Edge] = []
    probes = []
    start = _rate(realisations[0])
    for number, trace in enumerate(realisations):
        asked = _Asked(slo, lambda rate, trace=trace: measure(trace.at_rate(rate)))  # type: ignore[misc]  # bound now
        edge = highest_rate(asked, start=start, tolerance=effort.tolerance, guard=effort.guard)
        edges.append(edge)
        probes.append(asked.ordered())
        start = edge.met_to or start  # edges of like traces are alike
        if progress is not None:
            progress((number + 1) / len(realisations))
    met = sorted(edge.met_to or 0.0 for edge in edges)
    missed = sorted(float("inf") if edge.missed_from is None else edge.missed_from for edge in edges)
    at = met[ranks.at - 1] or None
    interval = None
    if len(realisations) > 1:
        low, high = met[ranks.low - 1], missed[ranks.high - 1]
        interval = (low or None, None if high == float("inf") else high)
    return Capacity(
        policy,
        at,
        interval,
        ranks.coverage if interval else None,
        tuple((edge.met_to, edge.missed_from) for edge in edges),
        sum(edge.contradicted for edge in edges),
        tuple(probes),
    )


def fewest_replicas(
    policy: str,
    realisations: Sequence[Trace],
    measure: Callable[[Trace, int], Mapping[str, Any]],
    slo: Slo,
    effort: Effort | None = None,
    *,
    most: int = 1024,
    progress: Callable[[float], None] | None = None,
) -> Capacity:
    """The fewest replicas. ``measure`` runs a trace on so many, at its own rate; edges: (missed to, met from)."""
    effort = effort or Effort()
    ranks = _ranks(len(realisations), effort.share, effort.confidence)
    edges: list[Fewest] = []
    probes = []
    start = 1
    for number, trace in enumerate(realisations):
        asked = _Asked(slo, lambda count, trace=trace: measure(trace, int(count)))  # type: ignore[misc]  # bound now
        edge = fewest(asked, start=start, most=most)
        edges.append(edge)
        probes.append(asked.ordered())
        start = edge.met_from or start
        if progress is not None:
            progress((number + 1) / len(realisations))
    met: list[float] = sorted(float("inf") if edge.met_from is None else edge.met_from for edge in edges)
    missed = sorted(edge.missed_to or 0 for edge in edges)
    at = met[ranks.at - 1]
    interval = None
    if len(realisations) > 1:
        high = met[ranks.high - 1]
        interval = (missed[ranks.low - 1] + 1, None if high == float("inf") else high)
    return Capacity(
        policy,
        None if at == float("inf") else at,
        interval,
        ranks.coverage if interval else None,
        tuple((edge.missed_to, edge.met_from) for edge in edges),
        sum(list(edge.asked.values()) != sorted(edge.asked.values()) for edge in edges),
        tuple(probes),
    )


def _ranks(n: int, quantile: float, confidence: float) -> RankInterval:
    return RankInterval(1, 1, 1, 0.0) if n == 1 else rank_interval(n, quantile, confidence)


def _rate(trace: Trace) -> float:
    rate_per_s = trace.info.rate_per_s
    if rate_per_s is None:
        raise InputError(f"{trace.info.name}: its requests arrive at one instant, so there is no rate to scale")
    return rate_per_s

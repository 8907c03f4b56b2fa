"""Where a service stops meeting its objective: the search alone, over any callable load -> met.

More load should make things worse, and mostly does. Near the edge it need not: a batch that closes a moment later, a
chunk that falls between two arrivals, and a rate just above one that missed is met again. So the search does not end
with the bisection: it asks on at both sides until several loads in a row agree, and gives back an interval that
contains every contradiction it saw, not a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Edge:
    """Every load that was asked for up to ``met_to`` was met, every one from ``missed_from`` on was missed.

    ``met_to`` None: the least load that is asked for was missed. ``missed_from`` None: the greatest was met. ``asked``:
    each load with what it gave, ascending.
    """

    met_to: float | None
    missed_from: float | None
    asked: Mapping[float, bool]

    @property
    def contradicted(self) -> bool:
        """A load was missed and a greater one met."""
        answers = list(self.asked.values())
        return answers != sorted(answers, reverse=True)


def highest_rate(
    meets: Callable[[float], bool],
    *,
    start: float,
    tolerance: float = 0.01,
    guard: int = 3,
    reach: float = 2.0**16,
) -> Edge:
    """The edge of the rates that are met, to a factor of ``1 + tolerance`` where the answers are monotone.

    Beginning at ``start`` the rate is doubled or halved until one is met and one is missed, at most to ``reach`` times
    or 1 / ``reach`` of it; then bisected (geometrically); then asked on at both sides, in steps of ``1 + tolerance``,
    until ``guard`` in a row agree.
    """
    asked: dict[float, bool] = {}

    def ask(rate: float) -> bool:
        if rate not in asked:
            asked[rate] = meets(rate)
        return asked[rate]

    least, most = start / reach, start * reach
    low = high = start
    while ask(high) and high < most:
        low, high = high, high * 2
    while not ask(low) and low > least:
        low, high = low / 2, low
    if asked[low] and not asked[high]:
        while high > low * (1 + tolerance):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if ask(middle) else (low, middle)
        _ask_on(ask, low, 1 / (1 + tolerance), wanted=True, guard=guard, end=least)
        _ask_on(ask, high, 1 + tolerance, wanted=False, guard=guard, end=most)
    return _edge(asked)


def _ask_on(ask: Callable[[float], bool], rate: float, factor: float, *, wanted: bool, guard: int, end: float) -> None:
    """Ask in steps of ``factor`` away from the edge, until ``guard`` answers in a row are the wanted one."""
    agreed = 0
    while agreed < guard and min(end, rate) / max(end, rate) < 1:
        rate *= factor
        agreed = agreed + 1 if ask(rate) == wanted else 0


def _edge(asked: Mapping[float, bool]) -> Edge:
    ordered = dict(sorted(asked.items()))
    missed = [load for load, met in ordered.items() if not met]
    met = [load for load, was_met in ordered.items() if was_met]
    below = [load for load in met if not missed or load < missed[0]]
    above = [load for load in missed if not met or load > met[-1]]
    return Edge(below[-1] if below else None, above[0] if above else None, ordered)


@dataclass(frozen=True)
class Fewest:
    """Every count from ``met_from`` on was met, every one up to ``missed_to`` was missed, of those asked for.

    ``met_from`` None: not even the greatest was met. ``missed_to`` None: the least, 1, was met.
    """

    met_from: int | None
    missed_to: int | None
    asked: Mapping[int, bool]


def fewest(meets: Callable[[int], bool], *, start: int = 1, most: int = 1024, guard: int = 1) -> Fewest:
    """The least count that is met: doubled or halved from ``start``, then bisected, then ``guard`` counts at each side
    asked for too, and further while they contradict.
    """
    asked: dict[int, bool] = {}

    def ask(count: int) -> bool:
        if count not in asked:
            asked[count] = meets(count)
        return asked[count]

    low = high = min(start, most)
    while not ask(high) and high < most:
        low, high = high, min(high * 2, most)
    while ask(low) and low > 1:
        low, high = low // 2, low
    while asked[high] and not asked[low] and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ask(middle) else (middle, high)
    if asked[high]:
        _count_on(ask, high, 1, wanted=True, guard=guard, end=most)
        _count_on(ask, min(low, high - 1), -1, wanted=False, guard=guard, end=1)
    mirrored = _edge({-count: met for count, met in asked.items()})
    return Fewest(
        None if mirrored.met_to is None else -int(mirrored.met_to),
        None if mirrored.missed_from is None else -int(mirrored.missed_from),
        dict(sorted(asked.items())),
    )


def _count_on(ask: Callable[[int], bool], count: int, step: int, *, wanted: bool, guard: int, end: int) -> None:
    agreed = 0
    while agreed < guard and (count < end if step > 0 else count > end):
        count += step
        agreed = agreed + 1 if ask(count) == wanted else 0

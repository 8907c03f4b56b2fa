"""One request's life, part by part, and who it waited for; from a run that is simulated again over that life.

Every nanosecond from arrival to last token is in one phase: *waiting* (for admission, again after a preemption),
*prefill* (its prompt, or what it lost, is computed), *decode*, or *held up* (admitted, and not in the step that runs).
Prefill and decode are split by the exposed parts of the steps, which add up to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvrm_analysis.drawing.series import integers, numbers
from kvrm_analysis.inspection import Stretch, inspect
from kvrm_analysis.latencies import latencies_s
from kvrm_analysis.recorded import Recorded, check_replica
from kvrm_analysis.runs import NamedRun
from kvrm_sim.errors import InputError
from kvrm_sim.state import PARTS

WAITING, PREFILL, DECODE, HELD_UP = "waiting", "prefill", "decode", "held up"
#: A row of requests.parquet.
Request: TypeAlias = dict[str, int | str | None]
#: By what the slowest request is chosen: the word, the metric of requests.
SLOWEST = {"e2e": "e2e_s", "ttft": "ttft_s", "queue": "queue_s", "tpot": "tpot_exclusive_s"}
#: Others that are named one by one.
NAMED = 5


@dataclass(frozen=True)
class Phase:
    """[start, end) in ns from the run's start. ``steps`` that ran in it, ``tokens`` computed for the request in them,
    ``parts_ns`` by part of a step (of prefill and decode).
    """

    kind: str
    start_ns: int
    end_ns: int
    steps: int
    tokens: int
    parts_ns: dict[str, int] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Other:
    """Another request that stood in the way: ``blocks`` that it held on average while this one waited, or ``tokens`` of
    its prompt that were computed in this one's decode steps.
    """

    row: int
    blocks: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Wait:
    """One stretch of waiting. ``ahead``: requests that were admitted in it; ``holders``: who held most of the pool,
    most first, of ``num_holders``; ``held_share``: of the pool, on average; ``running``: rows in the batch, on average.
    """

    phase: Phase
    after_preemption: bool
    ahead: tuple[int, ...]
    holders: tuple[Other, ...]
    num_holders: int
    held_share: float | None
    running: float | None


@dataclass(frozen=True)
class Life:
    """``request``: its row of requests.parquet. ``ranks``: share of requests that were faster, by metric.
    ``disturbed``: decode steps in which prompts of others were computed, their time, and whose prompts;
    ``longest_gap_ns`` between two of its tokens, from ``longest_gap_at_ns`` on.
    """

    run: str
    request: Request
    ranks: dict[str, float | None]
    phases: tuple[Phase, ...]
    waits: tuple[Wait, ...]
    disturbed_steps: int
    disturbed_ns: int
    disturbers: tuple[Other, ...]
    num_disturbers: int
    longest_gap_ns: int | None
    longest_gap_at_ns: int | None
    pool_blocks: int


def choose(run: NamedRun, request: int | None, slowest: str = "e2e", replica: int | None = None) -> Request:
    """The row of requests.parquet of a request, or of the slowest by a key of ``SLOWEST``. Raises InputError when there
    is none, or it was never served.
    """
    table = run.requests
    if table is None or table.num_rows == 0:
        raise InputError(f"run {run.name!r} has no requests")
    if slowest not in SLOWEST:
        raise InputError(f"slowest by {slowest!r}: should be one of {', '.join(SLOWEST)}")
    frame = table.to_pandas()
    if replica is not None:
        check_replica(run, run.summary["cluster"]["replicas"] if "replica" in frame else None, replica)
    if request is None:
        times = latencies_s(table, SLOWEST[slowest])
        if replica is not None and "replica" in frame:
            times = np.where(frame["replica"].to_numpy() == replica, times, np.nan)
        if np.isnan(times).all():
            raise InputError(f"run {run.name!r}: no request was served, so none was slowest")
        at = int(np.nanargmax(times))
    else:
        found = np.flatnonzero(frame["row"].to_numpy() == request)
        if len(found) == 0:
            last = int(frame["row"].max())
            raise InputError(f"request {request}: run {run.name!r} has 0 to {last}, the rows of the trace as replayed")
        at = int(found[0])
    row: Request = table.slice(at, 1).to_pylist()[0]
    if row["finish_ns"] is None:
        raise InputError(f"request {row['row']}: it was {row['outcome']} ({row['reason']}), and has no life to explain")
    return row


def life_of(source: Recorded, request: Request, progress: Callable[[float], None] | None = None) -> Life:
    """Simulate the run over the life of a request (of :func:`choose`) and account for it."""
    arrival, finish = int(request["arrival_ns"] or 0), int(request["finish_ns"] or 0)
    row = int(request["row"] or 0)
    seen = inspect(source, arrival / 1e9, finish / 1e9, batch=True, progress=progress)
    written = int(request["prompt_tokens"] or 0) + int(request["delivered_tokens"] or 0) - 1
    book = _Book(seen, row, arrival, finish, written)
    phases = book.phases()
    waits = tuple(book.wait(at, phase) for at, phase in enumerate(phases) if phase.kind == WAITING)
    disturbed, disturbers = book.disturbances()
    gap = book.longest_gap()
    return Life(
        run=source.run.name,
        request=request,
        ranks={word: _rank(source.run, key, request) for word, key in SLOWEST.items()},
        phases=tuple(phases),
        waits=waits,
        disturbed_steps=int(disturbed.sum()),
        disturbed_ns=int(book.durations[disturbed].sum()),
        disturbers=tuple(disturbers[:NAMED]),
        num_disturbers=len(disturbers),
        longest_gap_ns=None if gap is None else gap[1],
        longest_gap_at_ns=None if gap is None else gap[0],
        pool_blocks=seen.pool_blocks,
    )


class _Book:
    """The steps of a life, and what the request did in each. ``written``: its entries in the end."""

    def __init__(self, seen: Stretch, row: int, arrival_ns: int, finish_ns: int, written: int) -> None:
        assert seen.batch is not None
        self.seen, self.row, self.arrival_ns, self.finish_ns = seen, row, arrival_ns, finish_ns
        self.starts, self.ends = integers(seen.steps, "start_ns"), integers(seen.steps, "end_ns")
        self.durations = self.ends - self.starts
        count = len(self.starts)
        self.batch = seen.batch[seen.batch["step"] < count]
        own = self.batch[self.batch["row"] == row]
        self.kinds = np.full(count, HELD_UP, object)
        self.tokens = np.zeros(count, np.int64)
        self.kinds[own["step"]] = np.where(own["slot"] >= 0, DECODE, PREFILL)
        # A step with accepted drafts writes several entries; one behind which the row lost them all writes one.
        after = np.append(own["computed"][1:], written)
        decoded = np.where(after > own["computed"], after - own["computed"], 1)
        np.add.at(self.tokens, own["step"], np.where(own["slot"] >= 0, decoded, own["tokens"]))
        events = seen.events.to_pandas()
        mine = events[events["row"] == row]
        self.own_events = [(str(k), int(t)) for k, t in zip(mine["kind"], mine["time_ns"], strict=True)]
        admitted = events[events["kind"] == "admit"]
        self.admitted = list(zip(admitted["time_ns"].tolist(), admitted["row"].tolist(), strict=True))

    def phases(self) -> list[Phase]:
        """In order of time, without a hole from arrival to finish."""
        waits = self._waits()
        found: list[Phase] = []
        at = self.arrival_ns
        for start, end in waits:
            found += self._served(at, start)
            found.append(Phase(WAITING, start, end, int(((self.starts >= start) & (self.starts < end)).sum()), 0))
            at = end
        return found + self._served(at, self.finish_ns)

    def _waits(self) -> list[tuple[int, int]]:
        """From the arrival, or a preemption, to the next admission."""
        found: list[tuple[int, int]] = []
        since: int | None = self.arrival_ns
        for kind, time_ns in self.own_events:
            if kind == "admit" and since is not None:
                found.append((since, time_ns))
                since = None
            elif kind == "preempt":
                since = time_ns
        return found

    def _served(self, start_ns: int, end_ns: int) -> list[Phase]:
        """Stretches of steps in which the request did the same; time between steps belongs to the step behind it."""
        inside = np.flatnonzero((self.starts >= start_ns) & (self.ends <= end_ns))
        if len(inside) == 0:
            return [Phase(HELD_UP, start_ns, end_ns, 0, 0)] if end_ns > start_ns else []
        changes = np.flatnonzero(self.kinds[inside][1:] != self.kinds[inside][:-1]) + 1
        found, at = [], start_ns
        for group in np.split(inside, changes):
            end = end_ns if group[-1] == inside[-1] else int(self.ends[group[-1]])
            kind = str(self.kinds[group[0]])
            parts = {} if kind == HELD_UP else self._parts(group)
            found.append(Phase(kind, at, end, len(group), int(self.tokens[group].sum()), parts))
            at = end
        return found

    def _parts(self, steps: NDArray[np.int64]) -> dict[str, int]:
        return {part: int(integers(self.seen.steps, f"{part}_exposed_ns")[steps].sum()) for part in PARTS}

    def wait(self, at: int, phase: Phase) -> Wait:
        """Who was let in during a wait, and who held the pool."""
        inside = np.flatnonzero((self.starts >= phase.start_ns) & (self.starts < phase.end_ns))
        within = [row for time, row in self.admitted if phase.start_ns <= time <= phase.end_ns and row != self.row]
        ahead = tuple(dict.fromkeys(within))  # one that is preempted is let in more than once
        if len(inside) == 0:
            return Wait(phase, at > 0, ahead, (), 0, None, None)
        chosen = self.batch[np.isin(self.batch["step"], inside) & (self.batch["row"] != self.row)]
        weights = self.durations[chosen["step"]].astype(np.float64)
        rows, index = np.unique(chosen["row"], return_inverse=True)
        total = max(1.0, float(self.durations[inside].sum()))
        held = np.bincount(index, weights * chosen["blocks"], minlength=len(rows)) / total
        order = np.argsort(-held, kind="stable")[:NAMED]
        holders = tuple(Other(int(rows[which]), blocks=float(held[which])) for which in order)
        of_pool = numbers(self.seen.steps, "allocated_blocks")[inside]
        share = float(np.average(of_pool, weights=np.maximum(self.durations[inside], 1)) / self.seen.pool_blocks)
        return Wait(phase, at > 0, ahead, holders, len(rows), share, float(weights.sum() / total))

    def disturbances(self) -> tuple[NDArray[np.bool_], list[Other]]:
        """Decode steps with prompt tokens of others, and whose they were."""
        disturbed = (self.kinds == DECODE) & (integers(self.seen.steps, "prefill_tokens") > 0)
        chunks = self.batch[(self.batch["slot"] < 0) & disturbed[self.batch["step"]]]
        rows, index = np.unique(chunks["row"], return_inverse=True)
        tokens = np.bincount(index, chunks["tokens"], minlength=len(rows)).astype(np.int64)
        order = np.argsort(-tokens, kind="stable")
        return disturbed, [Other(int(rows[at]), tokens=int(tokens[at])) for at in order]

    def longest_gap(self) -> tuple[int, int] | None:
        """(from, length) of the longest time between two tokens."""
        tokens = [time for kind, time in self.own_events if kind == "first_token"]
        times = np.array(sorted({*tokens, *self.ends[self.kinds == DECODE].tolist()}), np.int64)
        if len(times) < 2:
            return None
        gaps = np.diff(times)
        at = int(gaps.argmax())
        return int(times[at]), int(gaps[at])


def _rank(run: NamedRun, key: str, request: Request) -> float | None:
    """Share of the requests that were faster; None for a request without the metric."""
    table = run.requests
    assert table is not None
    values = latencies_s(table, key)
    own = values[np.flatnonzero(table["row"].to_numpy() == request["row"])[0]]
    return None if np.isnan(own) else float(np.mean(values[~np.isnan(values)] < own))


def shares(phases: Sequence[Phase]) -> dict[str, int]:
    """Time by kind of phase, in the order in which they first come."""
    found: dict[str, int] = {}
    for phase in phases:
        found[phase.kind] = found.get(phase.kind, 0) + phase.duration_ns
    return found

"""Conversations: which requests continue which, how many turns there are, and how long after the one before.

A request names its conversation (``session_id``, the same in every turn) or the request that it continues (``parent``,
that one's ``session_id``); both forms are read. Memory grows with the conversations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvrm_traces.arrow import int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.tokens import Histogram, TokenCounter, TokenStats

if TYPE_CHECKING:
    from kvrm_traces.trace import Trace

#: Written for "no parent" by formats that have a number there.
NO_PARENT = "-1"

_MS_NS = 10**6

T = TypeVar("T")


def continues_another(own: str, parent: str | None) -> bool:
    """Whether a request says that it continues one of another name."""
    return parent is not None and parent not in (NO_PARENT, own)


def turn_before(latest: Mapping[str, T], own: str, parent: str | None) -> T | None:
    """Of the latest requests by name, the one that a request continues; None for the first of a conversation, and where
    the trace does not have it.
    """
    return latest.get(parent if parent is not None and continues_another(own, parent) else own)


class Latest(Generic[T]):
    """Something about the latest request of every name. Memory grows with the names."""

    def __init__(self) -> None:
        self._kept: dict[str, T] = {}

    def before(self, own: str | None, parent: str | None) -> T | None:
        """Of the request that one of these names continues; None where it continues none."""
        return None if own is None else turn_before(self._kept, own, parent)

    def keep(self, own: str | None, about: T) -> None:
        """From now on the latest of this name."""
        if own is not None:
            self._kept[own] = about


def names_in(batch: pa.RecordBatch) -> Iterator[tuple[str | None, str | None]]:
    """(session_id, parent) of each request."""
    ids = batch.column("session_id").to_pylist()
    parents = batch.column("parent").to_pylist() if "parent" in batch.schema.names else [None] * len(ids)
    return zip(ids, parents, strict=True)


def name_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Of a trace's columns, those that :func:`names_in` reads."""
    return tuple(name for name in ("session_id", "parent") if name in columns)


@dataclasses.dataclass(frozen=True)
class Turns:
    """Of each request, in order of arrival: the row of the one that it continues (int64, -1: none), and the time to
    think between that one's end and this arrival (int64 ns, 0 where none is).
    """

    before: NDArray[np.int64]
    think_ns: NDArray[np.int64]


def turns_of(trace: Trace) -> Turns:
    """Who continues whom, in memory that grows with the trace. Raises TraceError for a trace without conversations, or
    without the time to think, which cannot be told from arrivals: they hold the answer's time too.
    """
    wanted = (
        ("session_id", "conversations", "name it, --column session_id=NAME"),
        ("think_ms", "time to think between turns", "state it, --think constant:5, or name it, --column think_ms=NAME"),
    )
    for name, what, right in wanted:
        if name not in trace.info.columns:
            raise TraceError(
                f"{trace.info.name}: a closed loop needs the column {name} ({what}), and the trace has "
                f"{', '.join(trace.info.columns)}: {right}, or replay it open loop"
            )
    latest = Latest[int]()
    before: list[int] = []
    think: list[NDArray[np.int64]] = []
    for batch in trace.batches(columns=(*name_columns(trace.info.columns), "think_ms")):
        for own, parent in names_in(batch):
            found = latest.before(own, parent)
            latest.keep(own, len(before))
            before.append(-1 if found is None else found)
        think.append(int64_values(batch.column("think_ms").fill_null(0)))
    return Turns(np.array(before, np.int64), np.concatenate(think) * _MS_NS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionStats:
    """``turns``: requests a session. ``turn_gap_ms``: from the arrival of a turn to the next one's, which holds both
    the answer and the time to think; None without a follow-up. ``unknown_parents``: requests that continue one which
    the trace does not have. ``cumulative_share``: of the follow-ups, how many prompts are at least as long as prompt
    and output of the turn before, as they are where every prompt repeats the conversation.
    """

    sessions: int
    requests: int
    follow_ups: int
    unknown_parents: int
    turns: TokenStats
    turn_gap_ms: TokenStats | None
    cumulative_share: float | None


@dataclasses.dataclass(slots=True)
class _Turn:
    """The latest request under one name."""

    session: int
    arrival_ns: int
    context_tokens: int


class Sessions:
    """Fed batches in order of arrival, with ``session_id`` and perhaps ``parent``; requests without either count
    nowhere.
    """

    def __init__(self) -> None:
        self._latest = Latest[_Turn]()
        self._turns: list[int] = []
        self._gaps = TokenCounter()
        self._unknown = self._cumulative = self._follow_ups = 0

    def see(self, batch: pa.RecordBatch) -> None:
        """Take the next batch into account."""
        arrivals, prompts, outputs = (
            int64_values(batch.column(name)).tolist() for name in ("arrival_ns", "prompt_tokens", "output_tokens")
        )
        gaps: list[int] = []
        for (own, parent), arrival_ns, prompt, output in zip(names_in(batch), arrivals, prompts, outputs, strict=True):
            if own is None:
                continue
            before = self._latest.before(own, parent)
            self._unknown += before is None and continues_another(own, parent)
            if before is None:
                self._turns.append(0)
                session = len(self._turns) - 1
            else:
                session = before.session
                self._follow_ups += 1
                self._cumulative += prompt >= before.context_tokens
                gaps.append((arrival_ns - before.arrival_ns) // _MS_NS)
            self._turns[session] += 1
            self._latest.keep(own, _Turn(session, arrival_ns, prompt + output))
        if gaps:
            self._gaps.see(pa.array(gaps, pa.int64()).to_numpy())

    def stats(self) -> SessionStats | None:
        """Of all that was seen; None when no request names a session."""
        if not self._turns:
            return None
        turns = TokenCounter()
        turns.see(pa.array(self._turns, pa.int64()).to_numpy())
        return SessionStats(
            sessions=len(self._turns),
            requests=sum(self._turns),
            follow_ups=self._follow_ups,
            unknown_parents=self._unknown,
            turns=turns.stats(),
            turn_gap_ms=self._gaps.stats() if self._follow_ups else None,
            cumulative_share=self._cumulative / self._follow_ups if self._follow_ups else None,
        )

    def turns(self) -> Histogram:
        """Requests a session."""
        counter = TokenCounter()
        counter.see(pa.array(self._turns, pa.int64()).to_numpy())
        return counter.histogram()

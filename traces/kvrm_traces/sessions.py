"""Conversations: which requests continue which, how many turns there are, and how long after the one before.

A request names its conversation (``session_id``, the same in every turn) or the request that it continues (``parent``,
that one's ``session_id``); both forms are read. Memory grows with the conversations.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from kvrm_traces.arrow import int64_values
from kvrm_traces.tokens import Histogram, TokenCounter, TokenStats

#: Written for "no parent" by formats that have a number there.
NO_PARENT = "-1"

_MS_NS = 10**6


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
        self._latest: dict[str, _Turn] = {}
        self._turns: list[int] = []
        self._gaps = TokenCounter()
        self._unknown = self._cumulative = self._follow_ups = 0

    def see(self, batch: pa.RecordBatch) -> None:
        """Take the next batch into account."""
        names = batch.schema.names
        ids = batch.column("session_id").to_pylist()
        parents = batch.column("parent").to_pylist() if "parent" in names else [None] * len(ids)
        arrivals, prompts, outputs = (
            int64_values(batch.column(name)).tolist() for name in ("arrival_ns", "prompt_tokens", "output_tokens")
        )
        gaps: list[int] = []
        for own, parent, arrival_ns, prompt, output in zip(ids, parents, arrivals, prompts, outputs, strict=True):
            if own is None:
                continue
            before = self._before(own, parent)
            if before is None:
                self._turns.append(0)
                session = len(self._turns) - 1
            else:
                session = before.session
                self._follow_ups += 1
                self._cumulative += prompt >= before.context_tokens
                gaps.append((arrival_ns - before.arrival_ns) // _MS_NS)
            self._turns[session] += 1
            self._latest[own] = _Turn(session, arrival_ns, prompt + output)
        if gaps:
            self._gaps.see(pa.array(gaps, pa.int64()).to_numpy())

    def _before(self, own: str, parent: str | None) -> _Turn | None:
        if parent is not None and parent != NO_PARENT and parent != own:
            found = self._latest.get(parent)
            self._unknown += found is None
            return found
        return self._latest.get(own)

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

"""A closed loop: a turn of a conversation arrives when the one before it has ended and its user has thought.

The first request of each conversation arrives when the trace says; every other one at its predecessor's end (its last
token, or its refusal) plus the trace's time to think (docs/traces.md). Event by event; memory grows with the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.feed import arrival_chunks
from kvrm_traces import Trace
from kvrm_traces.sessions import turns_of

if TYPE_CHECKING:
    from kvrm_sim.engine import EventReplica


class ClosedLoop:
    """The requests of a trace as their users send them, into a replica that has no other arrivals."""

    def __init__(self, trace: Trace, *, with_ids: bool) -> None:
        """``with_ids``: with the trace's prefix hashes. Raises TraceError for a trace that has no turns."""
        turns = turns_of(trace)
        chunks = list(arrival_chunks(trace, with_ids=with_ids))
        self._arrivals = np.concatenate([chunk.arrivals for chunk in chunks])
        self._ids = [chunk.ids for chunk in chunks]
        #: Where each request's hashes lie: its chunk.
        self._chunk = np.repeat(np.arange(len(chunks)), [len(chunk.arrivals) for chunk in chunks])
        self._think_ns = turns.think_ns.tolist()
        self._next: dict[int, list[int]] = defaultdict(list)
        for row, before in enumerate(turns.before.tolist()):
            if before >= 0:
                self._next[before].append(row)
        self._first = np.flatnonzero(turns.before < 0).tolist()

    def start(self, events: EventReplica) -> None:
        """Send everything into this replica, in its environment: now, and as its answers come."""
        events.env.process(self._conversations(events))

    def _conversations(self, events: EventReplica) -> Generator[Any, Any, None]:
        """The first requests, at the trace's times; of equal ones in its order."""
        env = events.env
        for row in self._first:
            arrival_ns = int(self._arrivals[row]["arrival_ns"])
            if arrival_ns > env.now:
                yield env.timeout(arrival_ns - env.now)
            env.process(self._turn(events, row))

    def _turn(self, events: EventReplica, row: int, after_ns: int = 0) -> Generator[Any, Any, None]:
        if after_ns > 0:
            yield events.env.timeout(after_ns)
        request = self._arrivals[row]
        declared = int(request["declared_max_tokens"])
        told = events.submit(
            int(request["prompt_tokens"]),
            int(request["output_tokens"]),
            None if declared == st.NONE else declared,
            row,
            priority=int(request["priority"]),
            prefix_ids=self._hashes(row, request),
        )
        yield told.finished | told.rejected
        for follower in self._next.pop(row, ()):
            events.env.process(self._turn(events, follower, self._think_ns[follower]))

    def _hashes(self, row: int, request: st.Record) -> NDArray[np.int64]:
        first = int(request["ids_at"])
        hashes: NDArray[np.int64] = self._ids[self._chunk[row]][first : first + int(request["num_ids"])]
        return hashes

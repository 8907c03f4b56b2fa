"""Who reads and writes which block, and when: the events that order copies against steps and against each other.

Every piece of work that touches blocks gets a ticket of its stream, and an event is recorded behind it. A block
remembers, per stream, the last ticket that wrote it and the last that read it. A reader waits for the writers, a
writer for both; a stream is in order by itself, and what it has waited for once it need not wait for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend, Event, Stream

Blocks: TypeAlias = NDArray[np.int64]

MAX_STREAMS = 8
#: Events of a stream in turn. An old ticket's event has then been recorded again, for a later ticket: waiting for
#: that one is right too.
EVENTS_A_STREAM = 64


class StreamClock:
    """Tickets of streams, and which ticket of which other stream each has waited for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._streams: list[Stream] = []
        self._events: list[list[Event]] = []
        self._tickets = np.zeros(MAX_STREAMS, np.int64)
        #: [waiter, awaited]: everything of `awaited` up to this ticket precedes what `waiter` does from now on.
        self._seen = np.zeros((MAX_STREAMS, MAX_STREAMS), np.int64)

    def add(self, stream: Stream) -> int:
        """The number of a stream, given out when it is first seen. Raises ValueError beyond ``MAX_STREAMS``."""
        for at, known in enumerate(self._streams):
            if known is stream:
                return at
        if len(self._streams) == MAX_STREAMS:
            raise ValueError(f"more than {MAX_STREAMS} streams touch blocks")
        self._streams.append(stream)
        self._events.append([self._backend.event("blocks") for _ in range(EVENTS_A_STREAM)])
        return len(self._streams) - 1

    def tick(self, stream: Stream) -> int:
        """End a piece of work: its ticket, from 1 on."""
        at = self.add(stream)
        self._tickets[at] += 1
        ticket = int(self._tickets[at])
        self._backend.record(self._events[at][ticket % EVENTS_A_STREAM], stream)
        return ticket

    def wait(self, stream: Stream, needs: NDArray[np.int64]) -> None:
        """Hold a stream until ``needs`` (int64 [MAX_STREAMS]: a ticket of each stream, 0 for none) are done."""
        at = self.add(stream)
        for other in range(len(self._streams)):
            if other != at and needs[other] > self._seen[at, other]:
                self._backend.wait(stream, self._events[other][int(needs[other]) % EVENTS_A_STREAM])
                self._seen[at, other] = needs[other]

    def synchronize(self, needs: NDArray[np.int64]) -> None:
        """Hold the host until ``needs`` are done."""
        for other in range(len(self._streams)):
            if needs[other]:
                self._backend.synchronize(self._events[other][int(needs[other]) % EVENTS_A_STREAM])


class BlockOrder:
    """The last tickets that wrote and read each block of one pool."""

    def __init__(self, clock: StreamClock, num_blocks: int) -> None:
        self._clock = clock
        self._written = np.zeros((MAX_STREAMS, num_blocks), np.int64)
        self._read = np.zeros((MAX_STREAMS, num_blocks), np.int64)

    def before_read(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """What has to be done before these blocks are read: every write of them."""
        needs: NDArray[np.int64] = self._written[:, blocks].max(axis=1, initial=0)
        return needs

    def before_write(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """What has to be done before these blocks are written: every write and every read of them."""
        needs: NDArray[np.int64] = self._read[:, blocks].max(axis=1, initial=0)
        return np.maximum(self.before_read(blocks), needs)

    def read(self, blocks: NDArray[np.int64], stream: Stream, ticket: int) -> None:
        """These blocks are read by the work of this ticket."""
        self._read[self._clock.add(stream), blocks] = ticket

    def wrote(self, blocks: NDArray[np.int64], stream: Stream, ticket: int) -> None:
        """These blocks are written by the work of this ticket."""
        self._written[self._clock.add(stream), blocks] = ticket


@dataclass(frozen=True, slots=True)
class Touches:
    """What one piece of work reads and writes: the order of each pool, and blocks of it (int64 [n])."""

    reads: Sequence[tuple[BlockOrder, Blocks]] = ()
    writes: Sequence[tuple[BlockOrder, Blocks]] = ()

    def begin(self, clock: StreamClock, stream: Stream) -> None:
        """Hold a stream until everything that this work depends on is done; then enqueue the work."""
        needs = np.zeros(MAX_STREAMS, np.int64)
        for order, blocks in self.reads:
            needs = np.maximum(needs, order.before_read(blocks))
        for order, blocks in self.writes:
            needs = np.maximum(needs, order.before_write(blocks))
        clock.wait(stream, needs)

    def end(self, clock: StreamClock, stream: Stream) -> int:
        """The work is enqueued: its ticket, which whatever depends on these blocks waits for from now on."""
        ticket = clock.tick(stream)
        for order, blocks in self.reads:
            order.read(blocks, stream, ticket)
        for order, blocks in self.writes:
            order.wrote(blocks, stream, ticket)
        return ticket

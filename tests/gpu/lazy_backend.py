"""An adversarial scheduler: queued copies, kernels and graph nodes run as late and as much out of order as CUDA's
rules for streams and events allow, so that a missing event becomes a wrong number on the CPU.

What the rules are: a stream runs in order; between streams only an event orders; the host sees nothing but what it
waited for. A copy is not one moment: it runs in two halves. What is pending runs when somebody has to wait for it,
or when the seed says so. ``deaf_to`` takes events out by their label, as if whoever waits for them had forgotten to;
``without`` takes out one use of them, by its name in ``uses``.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from kvrm_gpu.backend import CopyPair
from kvrm_gpu.cpu_backend import CpuBackend


class LazyEvent:
    """``recorded`` counts calls of record, ``done`` those that were reached: a wait is for the latest at its call."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.recorded = 0
        self.done = 0
        self.stream: LazyStream | None = None
        self.time_ns = 0


class LazyStream:
    """Pending operations: ("work", callable), ("record", event, number) or ("wait", event, number)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pending: deque[tuple[Any, ...]] = deque()


class LazyBackend(CpuBackend):
    """``seed`` decides what runs when; ``laziness`` 1.0 runs nothing before it must.

    ``streams`` names the streams in the order of their making. ``uses``: every use of an event so far, as "record LABEL
    on STREAM", "wait for LABEL of STREAM on STREAM" or "synchronize with LABEL of STREAM"; ``sites``: the file and line
    of the code that made it.
    """

    name = "lazy"

    def __init__(
        self,
        seed: int,
        laziness: float | None = None,
        deaf_to: Collection[str] = (),
        without: str = "",
        streams: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._laziness = self._random.choice((0.5, 0.8, 1.0)) if laziness is None else laziness
        self._deaf_to = frozenset(deaf_to)
        self._without = without
        self._names = tuple(streams)
        self._streams: list[LazyStream] = []
        self._operations = 0
        self.uses: set[str] = set()
        self.sites: set[tuple[str, int]] = set()

    def stream(self) -> LazyStream:
        at = len(self._streams)
        self._streams.append(LazyStream(self._names[at] if at < len(self._names) else str(at)))
        return self._streams[-1]

    def event(self, label: str = "") -> LazyEvent:
        return LazyEvent(label)

    def record(self, event: LazyEvent, stream: LazyStream) -> None:
        if self._taken_out(f"record {event.label} on {stream.name}"):
            return
        event.recorded += 1
        event.stream = stream
        self._push(stream, ("record", event, event.recorded))

    def wait(self, stream: LazyStream, event: LazyEvent) -> None:
        if event.stream is None or event.label in self._deaf_to:
            return
        if not self._taken_out(f"wait for {event.label} of {event.stream.name} on {stream.name}"):
            self._push(stream, ("wait", event, event.recorded))

    def synchronize(self, event: LazyEvent) -> None:
        if event.stream is None or event.label in self._deaf_to:
            return
        if not self._taken_out(f"synchronize with {event.label} of {event.stream.name}"):
            self._reach(event, event.recorded)

    def _taken_out(self, use: str) -> bool:
        caller = sys._getframe(2)
        self.sites.add((Path(caller.f_code.co_filename).name, caller.f_lineno))
        self.uses.add(use)
        return use == self._without

    def finish(self) -> None:
        for stream in self._streams:
            while stream.pending:
                self._advance(stream)

    def elapsed_ns(self, start: LazyEvent, end: LazyEvent) -> int:
        return end.time_ns - start.time_ns

    def run(self, stream: LazyStream, work: Callable[[], None]) -> None:
        self._push(stream, ("work", work))

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, stream: LazyStream) -> None:
        half = destination.shape[0] // 2 if destination.dim() else 0
        parts = [slice(0, half), slice(half, None)] if half else [...]
        for part in parts:
            self._push(stream, ("work", lambda part=part: destination[part].copy_(source[part])))

    def _copy_batch(self, pairs: Sequence[CopyPair], stream: LazyStream) -> None:
        shuffled = list(pairs)  # the copies of one call are not ordered among themselves
        self._random.shuffle(shuffled)
        for destination, source in shuffled:
            self._copy(destination, source, stream)

    def _capture(self, stream: LazyStream, body: Callable[[], None]) -> Any:
        self.finish()
        return super()._capture(stream, body)

    def _replay(self, payload: Any, stream: LazyStream) -> None:
        for call in payload.calls:
            self._push(stream, ("work", call))

    def _push(self, stream: LazyStream, operation: tuple[Any, ...]) -> None:
        stream.pending.append(operation)
        while self._random.random() > self._laziness:
            ready = [other for other in self._streams if other.pending]
            if not ready:
                return
            self._advance(self._random.choice(ready))

    def _reach(self, event: LazyEvent, number: int) -> None:
        while event.done < number:
            assert event.stream is not None
            if self._random.random() > self._laziness:
                self._advance(self._random.choice([stream for stream in self._streams if stream.pending]))
            else:
                self._advance(event.stream)

    def _advance(self, stream: LazyStream) -> None:
        """Run the next operation of a stream, and first whatever it has to wait for."""
        if not stream.pending:
            return
        kind, *what = stream.pending[0]
        if kind == "wait":
            self._reach(*what)
            if stream.pending and stream.pending[0][0] == "wait" and stream.pending[0][1:] == tuple(what):
                stream.pending.popleft()
            return
        stream.pending.popleft()
        self._operations += 1
        if kind == "record":
            event, number = what
            event.done = max(event.done, number)
            event.time_ns = self._operations
        else:
            with torch.no_grad():
                what[0]()

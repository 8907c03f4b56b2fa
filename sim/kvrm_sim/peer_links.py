"""Links between replicas: transfers on one link share it fairly (docs/cluster.md).

As on the host link (links.py), a link keeps a virtual time, which is what every transfer on it has been served; a
transfer has been sent when that reaches its mark. Plain Python: a link acts once a request, not once a step.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class SharedLink(Generic[T]):
    """One link, one direction. Times are int64 ns and never go back; of equal marks the first to join is sent first."""

    _at_ns: int = 0
    _virtual_ns: float = 0.0
    _joined: int = 0
    _marks: list[tuple[float, int, T]] = field(default_factory=list)

    def join(self, time_ns: int, alone_ns: float, transfer: T) -> None:
        """A transfer that would take ``alone_ns`` on an idle link begins. Everything sent by now has been taken off."""
        if self._marks:
            self._virtual_ns += (time_ns - self._at_ns) / len(self._marks)
        self._at_ns = time_ns
        heapq.heappush(self._marks, (self._virtual_ns + alone_ns, self._joined, transfer))
        self._joined += 1

    @property
    def next_sent_ns(self) -> int | None:
        """When the next transfer has been sent, if nothing joins before; None: the link is idle."""
        if not self._marks:
            return None
        return self._at_ns + math.ceil((self._marks[0][0] - self._virtual_ns) * len(self._marks))

    def take_sent_by(self, time_ns: int) -> list[tuple[int, T]]:
        """Take off everything that has been sent by a time, in order, each with when it was."""
        taken = []
        while (sent_ns := self.next_sent_ns) is not None and sent_ns <= time_ns:
            mark, _, transfer = heapq.heappop(self._marks)
            self._at_ns, self._virtual_ns = sent_ns, mark if self._marks else 0.0
            taken.append((sent_ns, transfer))
        return taken

"""The reference's host link: transfers that share it in each direction, literal from docs/semantics.md section 3.

Times are int64 nanoseconds; virtual times are float64, in the operations and the order of the page, since a core that
adds in another order ends a nanosecond apart. Left out: what a transfer moves; whoever submits it knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.sim.reference_records import ReferenceConfig

OUT, IN = "out", "in"


def alone_ns(config: ReferenceConfig, direction: str, groups: int, blocks: int) -> int:
    """What a transfer takes alone on its link."""
    block_ns = config.host_out_block_ns if direction == OUT else config.host_in_block_ns
    layers = config.layers if config.layout == "layer_major" else 1
    return max(1, round(config.host_segment_ns * groups * layers + block_ns * blocks))


@dataclass(eq=False)
class Transfer:
    """A copy on the link."""

    number: int  # in the order of submission, over both directions
    direction: str
    row: int  # of the request that it belongs to
    blocks: int
    groups: int
    alone_ns: int
    submitted_ns: int
    mark: float  # the virtual time of its direction at which it is complete
    completed_ns: int | None = None
    noticed_ns: int | None = None


class Direction:
    """The transfers that share one direction, and its virtual time: what each of them would have had alone."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self.transfers: list[Transfer] = []  # as submitted
        self.virtual = 0.0

    def next(self) -> Transfer | None:
        """Who completes next: the least mark, of equal marks the first submitted."""
        return min(self.transfers, key=lambda transfer: (transfer.mark, transfer.number), default=None)


class Link:
    """Both directions, since each is slower while the other is busy."""

    def __init__(self, config: ReferenceConfig) -> None:
        self.config = config
        self.directions = {OUT: Direction(config.host_out_slowdown), IN: Direction(config.host_in_slowdown)}
        self.now_ns = 0  # u: the virtual times are as of now
        self.all: list[Transfer] = []  # as submitted
        self.completed: list[Transfer] = []  # and not noticed

    def submit(self, direction: str, row: int, *, groups: int, blocks: int, now_ns: int) -> Transfer:
        """A transfer joins its direction; what completes by now has completed."""
        self.advance(now_ns)
        self._move(now_ns)
        joined = self.directions[direction]
        alone = alone_ns(self.config, direction, groups, blocks)
        mark = joined.virtual + alone
        transfer = Transfer(len(self.all), direction, row, blocks, groups, alone, now_ns, mark)
        self.all.append(transfer)
        joined.transfers.append(transfer)
        return transfer

    def next_completion_ns(self) -> int | None:
        """When the next transfer completes, if nothing joins before; None: none is in flight."""
        return min((time for time in map(self._completion_ns, (OUT, IN)) if time is not None), default=None)

    def advance(self, until_ns: int) -> None:
        """Complete what completes until then, that instant too."""
        while (time_ns := self.next_completion_ns()) is not None and time_ns <= until_ns:
            # Of completions at one time those out come first.
            name = OUT if self._completion_ns(OUT) == time_ns else IN
            self._move(time_ns)
            direction = self.directions[name]
            transfer = direction.next()
            assert transfer is not None
            direction.virtual = transfer.mark
            direction.transfers.remove(transfer)
            if not direction.transfers:
                direction.virtual = 0.0
            transfer.completed_ns = time_ns
            took_ns = time_ns - transfer.submitted_ns
            assert took_ns >= transfer.alone_ns, f"a transfer took {took_ns} ns, alone it takes {transfer.alone_ns}"
            self.completed.append(transfer)

    def notice(self, horizon_ns: int, now_ns: int) -> list[Transfer]:
        """Take out what has completed by the horizon, in order of completion, then of submission."""
        self.advance(now_ns)
        found = [t for t in self.completed if t.completed_ns is not None and t.completed_ns <= horizon_ns]
        for transfer in found:
            self.completed.remove(transfer)
            transfer.noticed_ns = now_ns
        return sorted(found, key=lambda t: (t.completed_ns, t.number))

    def _rate(self, name: str) -> float:
        """k * slow: how many times longer than alone the transfers of a direction take now."""
        direction, other = self.directions[name], self.directions[IN if name == OUT else OUT]
        return len(direction.transfers) * (direction.slowdown if other.transfers else 1.0)

    def _completion_ns(self, name: str) -> int | None:
        direction = self.directions[name]
        transfer = direction.next()
        if transfer is None:
            return None
        left_ns = math.ceil((transfer.mark - direction.virtual) * self._rate(name))
        assert left_ns >= 0, f"a transfer should have completed {-left_ns} ns ago"
        return self.now_ns + left_ns

    def _move(self, time_ns: int) -> None:
        """Bring both virtual times to now."""
        assert time_ns >= self.now_ns, f"the link goes back from {self.now_ns} to {time_ns} ns"
        for name, direction in self.directions.items():
            if direction.transfers:
                direction.virtual += (time_ns - self.now_ns) / self._rate(name)
        self.now_ns = time_ns

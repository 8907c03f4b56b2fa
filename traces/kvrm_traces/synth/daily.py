"""A load that follows the hours of the day: any arrival process, run faster and slower.

The process keeps its own character. Its clock is stretched so that the rate at every hour is the mean rate times that
hour's share: bursts are as bursty by day as by night, only closer together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from kvrm_traces.synth.arrivals import ArrivalProcess, Times

DAY_NS = 86_400 * 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Daily:
    """``base`` under ``shares``: relative rates, each above 0, of equal parts of a day; the trace begins with the
    first.
    """

    base: ArrivalProcess
    shares: tuple[float, ...]

    @property
    def rate_per_s(self) -> float:
        """The mean over a day."""
        return self.base.rate_per_s

    def blocks(self, rng: np.random.Generator) -> Iterator[Times]:
        """See :class:`ArrivalProcess`."""
        ends = np.cumsum(self.shares) / sum(self.shares)
        work_ns = np.concatenate(([0.0], ends)) * DAY_NS  # of the process's own clock, at the edges of the parts
        edges_ns = np.arange(len(self.shares) + 1) * (DAY_NS / len(self.shares))
        for times_ns in self.base.blocks(rng):
            days, rest_ns = np.divmod(times_ns, DAY_NS)
            yield days * DAY_NS + np.rint(np.interp(rest_ns, work_ns, edges_ns)).astype(np.int64)

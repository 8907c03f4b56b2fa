"""Where the records of a replica go as its buffers fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st


class Target(Protocol):
    """What takes the records of a run: a RunWriter, or a Collector. Those of several replicas have ``replica``."""

    def requests(self, records: st.Records, /) -> None:
        """OUT records."""

    def windows(self, records: st.Records, /) -> None:
        """WINDOWS records."""

    def pool(self, samples: st.Records, classes: NDArray[np.int64], /) -> None:
        """POOL_SAMPLES records, and int64 [samples, RUN_CLASSES]."""


@dataclass(slots=True)
class Sinks:
    """Where records go as their buffers fill: each is called with a view that is valid during the call."""

    requests: Callable[[st.Records], None]
    windows: Callable[[st.Records], None]
    pool: Callable[[st.Records, NDArray[np.int64]], None]
    events: Callable[[st.Records], None] | None = None

    @classmethod
    def into(cls, target: Target) -> Sinks:
        """All into one target, as they come."""
        return cls(requests=target.requests, windows=target.windows, pool=target.pool)

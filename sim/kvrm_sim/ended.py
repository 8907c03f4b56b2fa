"""A run that has ended, as its summary sees it: what its replicas counted, and what is known besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.state import Record
from kvrm_sim.totals import Totals
from kvrm_traces import TraceInfo


@dataclass(frozen=True, kw_only=True)
class About:
    """What a summary says that no replica has counted: what was run on what, and what simulating it took."""

    config: ReplicaConfig
    #: The memory of each kind of replica, and how many replicas have it.
    plans: tuple[tuple[MemoryPlan, int], ...]
    trace: TraceInfo
    transforms: str | None = None
    wall_s: float
    peak_rss_bytes: int | None

    @property
    def plan(self) -> MemoryPlan:
        """Of those that decode, the last kind. What a block and a token take is the same for all."""
        return self.plans[-1][0]

    @property
    def replicas(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.plans)

    def total(self, of: Callable[[MemoryPlan], int]) -> int:
        """A figure of a replica's plan, added up over all replicas."""
        return sum(count * of(plan) for plan, count in self.plans)


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished (or stopped) run: what its replicas left behind, and what is known besides."""

    totals: Totals
    about: About

    @property
    def scalars(self) -> Record:
        """SCALARS."""
        return self.totals.scalars[0]

    @property
    def params(self) -> Record:
        """PARAMS."""
        return self.totals.params[0]

    def mean(self, accumulated: float, unit: int = 1) -> float | None:
        """Time-weighted mean over the span, of a sum of amount × ns."""
        return float(accumulated) / self.totals.span_ns * unit if self.totals.span_ns else None

    def per_second(self, amount: int) -> float | None:
        """Mean over the span of what happened so often."""
        return int(amount) / self.totals.span_ns * 1e9 if self.totals.span_ns else None

    def both(self, accumulated: float, peak: int, unit: int = 1) -> dict[str, float | int | None]:
        """Mean and peak of an amount over time. The peak of a sum is not had from the peaks of its parts."""
        return {
            "mean": self.mean(accumulated, unit),
            "peak": int(peak) * unit if self.about.replicas == 1 else None,
        }

"""A run's output, put together in one way whatever served the trace: its records, summary, run.toml and result.

One replica, a cluster, prefill apart from decode, replicas in other processes: what differs is data (:class:`Setup`)
and the function that sums up what was counted.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.ended import About
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.plugins import Part
from kvrm_sim.provenance import run_toml
from kvrm_sim.records import RunWriter
from kvrm_sim.result import Collector, RunResult
from kvrm_sim.routers import router_parts
from kvrm_sim.sinks import Target
from kvrm_traces import Trace


@dataclass(frozen=True, kw_only=True)
class Several:
    """What is more where several replicas serve the trace."""

    #: What records of requests have besides (columns.py).
    request_fields: tuple[str, ...]
    #: How many there are, and their router: ``[run.cluster]`` of run.toml, and the head of the summary's ``cluster``.
    described: Mapping[str, Any]

    @property
    def parts(self) -> tuple[type[Part], ...]:
        """The user's router, where it is one."""
        return router_parts(self.described["router"])


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is run, on what."""

    trace: Trace
    config: ReplicaConfig
    #: The memory of each kind of replica, and how many replicas have it.
    plans: tuple[tuple[MemoryPlan, int], ...]
    driver: str = "span"
    #: Simulated seconds after which nothing is waited for.
    stop_at_s: float | None = None
    #: None: one replica.
    several: Several | None = None

    @property
    def stop_ns(self) -> int:
        """NEVER without a stop."""
        return st.NEVER if self.stop_at_s is None else round(self.stop_at_s * 1e9)

    def run_toml(self) -> str:
        """The text of run.toml."""
        several = self.several
        return run_toml(
            self.trace,
            self.config,
            driver=self.driver,
            stop_at_s=self.stop_at_s,
            cluster=None if several is None else several.described,
            parts=() if several is None else several.parts,
        )


class RunOutput:
    """A context manager around a run: :attr:`target` takes its records, :meth:`result` ends it.

    The folder ``out`` appears when the run has ended, or never; None: tables are kept in memory, unless ``keep`` is
    false. Raises InputError as :class:`kvrm_sim.records.RunWriter` does.
    """

    def __init__(self, setup: Setup, out: Path | None, *, force: bool, keep: bool) -> None:
        fields = () if setup.several is None else setup.several.request_fields
        self._setup, self._out = setup, out
        self._writer = RunWriter(out, force=force, request_fields=fields)
        self._collector = Collector(request_fields=fields) if out is None and keep else None
        self._started_s = time.perf_counter()

    @property
    def target(self) -> Target:
        """Where the records go; without a folder, and nothing kept, the writer does nothing."""
        return self._writer if self._collector is None else self._collector

    def result(self, summarized: Callable[[About], dict[str, Any]]) -> RunResult:
        """Everything was served: sum it up, write what is written, and give it back."""
        setup = self._setup
        about = About(
            config=setup.config,
            plans=setup.plans,
            trace=setup.trace.info,
            transforms=setup.trace.transforms,
            wall_s=time.perf_counter() - self._started_s,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
        summary = summarized(about)
        self._writer.document(summary, setup.run_toml())
        self._writer.commit()
        return RunResult(
            summary=summary,
            memory_plan=setup.plans[0][0],
            config=setup.config,
            folder=self._out,
            _tables={} if self._collector is None else self._collector.tables(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)

"""Measured points: what was run, how often, and the median with p10 and p90 of its time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from kvrm_gpu.backend import Backend
from kvrm_gpu.live_cpu import LiveCpuBackend


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One cell of a measurement. ``x``: its sizes by name (rows, context_tokens, segments, bytes, …)."""

    part: str
    kind: str
    x: Mapping[str, int] = field(default_factory=dict)
    repeats: int
    p10_ns: float
    p50_ns: float
    p90_ns: float

    @classmethod
    def of(cls, part: str, kind: str, samples_ns: Sequence[int], **x: int) -> Point:
        """Summarise samples in nanoseconds."""
        p10, p50, p90 = np.percentile(np.asarray(samples_ns, np.float64), (10, 50, 90)).tolist()
        return cls(part=part, kind=kind, x=x, repeats=len(samples_ns), p10_ns=p10, p50_ns=p50, p90_ns=p90)


class Stopwatch:
    """Times work on a backend: CPU time of this thread on the CPU, the wall's with everything finished elsewhere."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.clock: Callable[[], int] = (
            time.thread_time_ns if isinstance(backend, LiveCpuBackend) else time.perf_counter_ns
        )

    def samples(
        self,
        work: Callable[[], object],
        *,
        repeats: int,
        warmup: int = 2,
        between: Callable[[], object] | None = None,
    ) -> list[int]:
        """Nanoseconds of each of ``repeats`` runs, after ``warmup`` that do not count.

        ``between``: done before each run and not timed, so that caches hold what they hold within a step.
        """
        taken = []
        for at in range(warmup + repeats):
            if between is not None:
                between()
            self._backend.finish()
            begun = self.clock()
            work()
            self._backend.finish()
            if at >= warmup:
                taken.append(self.clock() - begun)
        return taken


@contextmanager
def undisturbed() -> Iterator[None]:
    """No collection of garbage meanwhile: it would land on whichever step happens to run. Nested: the outer one's."""
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

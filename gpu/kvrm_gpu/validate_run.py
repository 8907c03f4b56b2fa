"""One run of a policy on its load: executed (lockstep or closed loop), re-run on recorded times, or simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.measure_pace import PacedExecutor
from kvrm_gpu.measure_points import undisturbed
from kvrm_gpu.validate_load import Load
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.distribution import Distribution
from kvrm_sim.executor import CostModelExecutor, Executor, RecordedExecutor, StepPlan, StepTiming, drive
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.moves import MOVE_KINDS
from kvrm_sim.replica import Replica
from kvrm_sim.state import H_ITL, H_TTFT

#: What is compared end to end: name -> (histogram, percentile); and throughput.
FIGURES = {
    "ttft_p50": (H_TTFT, "p50"),
    "ttft_p99": (H_TTFT, "p99"),
    "itl_p50": (H_ITL, "p50"),
    "itl_p99": (H_ITL, "p99"),
}


@dataclass(slots=True)
class Run:
    """``digests`` of every step's decisions; ``predicted_ns`` and ``measured_ns``: int64 [steps, parts]; ``raw_ns``: of
    executed steps, before the machine's pace was taken off; ``mixed``: which steps computed prompts; ``hit_tokens``:
    tokens of prompts that were found cached; ``moves``: blocks that were moved before steps, by kind; ``ended_rows``:
    tokens that rows computed behind their requests' ends.
    """

    digests: list[str] = field(default_factory=list)
    predicted: list[tuple[int, ...]] = field(default_factory=list)
    timings: list[StepTiming] = field(default_factory=list)
    raw_ns: list[int] = field(default_factory=list)
    mixed: list[bool] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    hit_tokens: int = 0
    moves: Counter[str] = field(default_factory=Counter)
    ended_rows: int = 0

    @property
    def predicted_ns(self) -> NDArray[np.int64]:
        """What the cost model gave each step."""
        return np.array(self.predicted, np.int64).reshape(-1, len(st.PARTS))

    @property
    def measured_ns(self) -> NDArray[np.int64]:
        """What each step took."""
        return np.array([timing.exposed_ns for timing in self.timings], np.int64).reshape(-1, len(st.PARTS))


class _Noting:
    """Notes the predicted and the measured time of each step, once it has ended: noting takes none of its time.

    ``lockstep``: the predicted time is what the clock hears.
    """

    def __init__(self, executor: Executor, run: Run, *, lockstep: bool) -> None:
        self._executor = executor
        self._run = run
        self._lockstep = lockstep
        self._steps: dict[int, st.Record] = {}

    def submit(self, plan: StepPlan) -> int:
        """Start the step."""
        ticket = self._executor.submit(plan)
        self._steps[ticket] = plan.step
        return ticket

    def wait(self, ticket: int) -> StepTiming:
        """The executor's time, or the predicted one."""
        timing = self._executor.wait(ticket)
        step = self._steps.pop(ticket)
        predicted = StepTiming.predicted(step)
        self._run.predicted.append(predicted.exposed_ns)
        self._run.timings.append(timing)
        self._run.mixed.append(int(step.prefill_rows) > 0)
        return predicted if self._lockstep else timing

    def poll_transfers(self) -> Sequence[int]:
        """The executor's."""
        return self._executor.poll_transfers()


def run_lockstep(config: ReplicaConfig, plan: MemoryPlan, load: Load, device: PacedExecutor) -> Run:
    """The simulator's own course, every step of it executed. Raises what the device raises."""
    return _run(config, plan, load, device, lockstep=True)


def run_closed(config: ReplicaConfig, plan: MemoryPlan, load: Load, device: PacedExecutor) -> Run:
    """Measured times drive the clock."""
    return _run(config, plan, load, device)


def run_recorded(config: ReplicaConfig, plan: MemoryPlan, load: Load, timings: list[StepTiming]) -> Run:
    """The core once more, on the times of an earlier run."""
    return _run(config, plan, load, RecordedExecutor(timings))


def run_simulated(config: ReplicaConfig, plan: MemoryPlan, load: Load) -> Run:
    """Predicted times, nothing executed."""
    return _run(config, plan, load, CostModelExecutor())


def _run(config: ReplicaConfig, plan: MemoryPlan, load: Load, executor: Executor, *, lockstep: bool = False) -> Run:
    run = Run()
    replica = load.replica(config, plan)
    device = executor if isinstance(executor, PacedExecutor) else None
    if device is not None:
        device.begin()
    with undisturbed() if device is not None else nullcontext():
        for planned, _ in drive(replica, iter(()), _Noting(executor, run, lockstep=lockstep)):
            run.digests.append(planned.digest())
            run.moves.update(MOVE_KINDS[kind] for kind in planned.moves[:, 0].tolist())
            if device is not None:
                device.resume()
    if device is not None:
        run.raw_ns = list(device.raw_ns)
    replica.close()
    run.figures = _figures(replica)
    run.hit_tokens = int(replica.scalars[0].hit_tokens)
    run.ended_rows = int(replica.scalars[0].ended_rows)
    return run


def _figures(replica: Replica) -> dict[str, float]:
    found = {}
    for name, (which, percentile) in FIGURES.items():
        value = Distribution.of(replica.arrays.tallies[which], replica.arrays.histograms[which]).percentile_ns(
            percentile
        )
        if value is not None:
            found[name] = value / 1e9
    s = replica.scalars[0]
    found["throughput"] = int(s.delivered_tokens) / max(1, int(s.last_finish_ns - s.first_arrival_ns)) * 1e9
    return found

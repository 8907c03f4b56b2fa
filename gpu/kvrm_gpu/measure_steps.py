"""Whole steps: designed batches go through the core and the executor, again and again, and each step keeps its median.

A cell is a number of requests of one prompt length that arrive together: first their prompts are computed, in chunks
beside the rows that decode already, then all decode. Cells are far apart in time, so decisions do not depend on how
long anything takes and every repeat makes the same steps.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend
from kvrm_gpu.device_executor import DeviceExecutor
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_pace import PacedExecutor, Yardstick
from kvrm_gpu.measure_points import undisturbed
from kvrm_gpu.profile_scale import Scale
from kvrm_gpu.prompts import random_prompt
from kvrm_sim import state as st
from kvrm_sim.config import HardwareProfile, ModelSpec, ReplicaConfig
from kvrm_sim.derivation import parameters_of
from kvrm_sim.errors import InvariantError
from kvrm_sim.executor import drive
from kvrm_sim.memory import MemoryPlan, plan_memory
from kvrm_sim.replica import Replica
from kvrm_sim.sinks import Sinks

#: Every n-th cell is kept out of the fit.
HELD_OUT_EVERY = 4
#: Output tokens of each request of a cell.
OUTPUT_TOKENS = 8
_APART_NS = 1_000_000_000_000

#: What a step's record says of its work; the rest are its times.
FEATURES = (
    "decode_rows", "prefill_rows", "prefill_tokens", "prefill_read_tokens", "prefill_pairs", "sampled_rows",
    "launch_kind", "padded_rows", "dense_tokens", "context_bucket", "read_tokens", "groups", "moved_blocks", "segments",
    "rounds", "blocks_taken", "blocks_freed",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """The steps of one policy. ``records``: STEP [steps], as decided; ``times_ns`` int64 [repeats, steps, parts];
    ``cells`` int64 [steps].
    """

    config: ReplicaConfig
    plan: MemoryPlan
    records: st.Records
    times_ns: NDArray[np.int64]
    cells: NDArray[np.int64]
    parts_known: bool
    captures_ns: tuple[int, ...] = ()
    #: Memory that the captures took, all together.
    captured_bytes: int = 0

    @cached_property
    def parts_ns(self) -> NDArray[np.float64]:
        """Median over the repeats, float64 [steps, parts]."""
        return np.asarray(np.median(self.times_ns, axis=0), np.float64)

    @cached_property
    def totals_ns(self) -> NDArray[np.float64]:
        """Whole steps: p10, median, p90 over the repeats, float64 [3, steps]."""
        return np.asarray(np.percentile(self.times_ns.sum(axis=2), (10, 50, 90), axis=0), np.float64)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """The steps of the cells that no fit may see."""
        return np.asarray(self.cells % HELD_OUT_EVERY == HELD_OUT_EVERY - 1, np.bool_)

    def column(self, name: str) -> NDArray[np.float64]:
        """One field of the records, float64 [steps]."""
        return np.asarray(self.records[name], np.float64)


def cells_of(scale: Scale) -> list[tuple[int, int]]:
    """(requests, prompt tokens) of each cell, in an order that spreads both over what is held out."""
    rows = sorted({1, 2, *(scale.slots * part // 8 for part in (2, 4, 5, 7, 8))})
    prompts = [max(1, scale.limit_tokens * part // 64) for part in (1, 8, 22, 54)]
    cells = [(count, prompt) for count in rows for prompt in prompts]
    order = np.random.default_rng(1).permutation(len(cells))
    return [cells[at] for at in order]


def arrivals_of(scale: Scale) -> st.Records:
    """Every cell's requests; outputs differ a little, so that rows leave one after another."""
    found: list[tuple[int, ...]] = []
    for cell, (count, prompt) in enumerate(cells_of(scale)):
        for at in range(count):
            output = OUTPUT_TOKENS + at % 3
            found.append((cell * _APART_NS, min(prompt, scale.limit_tokens - output), output))
    return st.arrivals(np.array(found, np.int64))


def steps_config(scale: Scale, policy: str, model: ModelSpec, hardware: HardwareProfile, seed: int) -> ReplicaConfig:
    """The replica whose steps are measured: its pool holds every slot at the limit, so that nobody waits for blocks."""
    most = scale.slots * scale.limit_tokens // scale.block_size_tokens
    return scale.config(policy, model, hardware, pool_blocks=most, seed=seed)


class StepMeasurement:
    """All cells of one policy, run as often as :meth:`once` is called: repeats of several policies can take turns, so
    that a machine that is slower for a while is so for all of them. The first run only warms up.
    """

    def __init__(
        self,
        backend: Backend,
        model: Llama,
        scale: Scale,
        policy: str,
        hardware: HardwareProfile,
        yardstick: Yardstick,
        seed: int = 0,
    ) -> None:
        self._scale = scale
        self._config = steps_config(scale, policy, model.spec, hardware, seed)
        self._plan = plan_memory(self._config)
        held = held_bytes(backend)
        prompt = random_prompt(model.spec.vocab_size, seed)
        self._executor = DeviceExecutor(backend, self._config, self._plan, prompt, model=model)
        self._captured_bytes = max(0, held_bytes(backend) - held - pool_bytes(self._executor))
        self._paced = PacedExecutor(self._executor, yardstick)
        self._runs: list[_StepRun] = []

    def once(self) -> None:
        """Run every cell. Raises InvariantError when the same arrivals are decided differently than before."""
        with undisturbed():
            run = _run(self._config, self._plan, self._paced, self._scale)
        if self._runs and run.digests != self._runs[0].digests:
            raise InvariantError(
                f"policy {self._config.policy.name!r}: a repeat of the same arrivals was decided otherwise"
            )
        self._runs.append(run)

    def measured(self) -> MeasuredSteps:
        """Everything so far but the first run."""
        first, *timed = self._runs
        return MeasuredSteps(
            config=self._config,
            plan=self._plan,
            records=np.array(first.records, st.STEP),
            times_ns=np.array([run.times for run in timed], np.int64),
            cells=np.array(first.cells, np.int64),
            parts_known=self._executor.parts_known,
            captures_ns=tuple(self._executor.captures_ns),
            captured_bytes=self._captured_bytes,
        )


@dataclass(slots=True)
class _StepRun:
    digests: list[str] = field(default_factory=list)
    records: list[st.Record] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    times: list[tuple[int, ...]] = field(default_factory=list)


def _run(config: ReplicaConfig, plan: MemoryPlan, executor: PacedExecutor, scale: Scale) -> _StepRun:
    replica = Replica(parameters_of(config, plan, span_ns=None, log_moves=True), quiet_sinks())
    replica.supply(arrivals_of(scale), known_until_ns=st.NEVER)
    run = _StepRun()
    executor.begin()
    for planned, timing in drive(replica, iter(()), executor):
        run.digests.append(planned.digest())
        run.records.append(np.array(planned.step, st.STEP))
        run.cells.append(int(planned.step.start_ns) // _APART_NS)
        run.times.append(timing.exposed_ns)
        executor.resume()
    return run


def held_bytes(backend: Backend) -> int:
    """Memory in use: of the process on the CPU, of the device elsewhere."""
    if backend.name == "cuda":
        free, total = torch.cuda.mem_get_info()
        return int(total - free)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def pool_bytes(executor: DeviceExecutor) -> int:
    """Bytes of an executor's pool, which are no graph's."""
    return int(executor.pool.storage.numel() * executor.pool.storage.element_size())


def quiet_sinks() -> Sinks:
    """Nothing is kept of the requests."""

    def ignore(*_: Any) -> None:
        return None

    return Sinks(requests=ignore, windows=ignore, pool=ignore)

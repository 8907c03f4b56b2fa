"""A small replica and its requests, run through the device's executor; and the tokens that must come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from kvrm_gpu.backend import Backend
from kvrm_gpu.device_executor import DeviceExecutor
from kvrm_gpu.llama import Llama
from kvrm_gpu.prompts import random_prompt
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy
from kvrm_sim.derivation import parameters_of
from kvrm_sim.executor import StepPlan, StepTiming, drive
from kvrm_sim.memory import MemoryPlan, plan_memory
from kvrm_sim.replica import Replica, Sinks
from tests.gpu.devices import on_cpu
from tests.gpu.plain_llama import continuation

MODEL = load_model("tiny-llama").model_copy(
    update={
        "hidden_size": 32,
        "intermediate_size": 48,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 97,
        "max_context_tokens": 64,
    }
)
PROMPTS = random_prompt(MODEL.vocab_size, 3)

#: (arrival, prompt, output): mixed lengths, one-token outputs, prompts on and off a block's edge.
REQUESTS = [
    (0, 9, 12), (0, 4, 3), (0, 17, 20), (10, 1, 1), (20, 8, 25), (30, 3, 9),
    (400, 5, 2), (10_000_000, 23, 17), (10_000_000, 2, 30), (10_000_000, 12, 6),
]  # fmt: skip


def config_of(policy: str, pool_blocks: int, **schedule: object) -> ReplicaConfig:
    """A preset on a small replica: 4 slots, blocks of 4 tokens, and a pool so small that paged presets preempt."""
    preset = load_policy(policy)
    changed = preset.override({f"schedule.{key}": value for key, value in {"slots": 4, **schedule}.items()})
    if changed.launch.mixed == "piecewise":  # not executed
        changed = changed.override({"launch.mixed": "eager"})
    return ReplicaConfig(
        model=MODEL,
        hardware=load_hardware("h200"),
        policy=changed.override({"pager.block_size_tokens": 4}),
        pool_blocks=pool_blocks,
        max_context_tokens=48,
        check=True,
    )


def replica_of(config: ReplicaConfig, rows: int = len(REQUESTS)) -> tuple[Replica, MemoryPlan]:
    plan = plan_memory(config)
    sinks = Sinks(requests=lambda _: None, windows=lambda _: None, pool=lambda _records, _classes: None)
    replica = Replica(parameters_of(config, plan, span_ns=None), sinks)
    replica.supply(st.arrivals(np.array(REQUESTS[:rows])), known_until_ns=st.NEVER)
    return replica, plan


class Poisoning:
    """An executor that puts NaN into the null block and every block that no running row holds, before each step."""

    def __init__(self, replica: Replica, executor: DeviceExecutor) -> None:
        self._replica = replica
        self._executor = executor

    def submit(self, plan: StepPlan) -> int:
        executor, free = self._executor, torch.from_numpy(np.flatnonzero(~self._held()))
        where = free.to(executor.backend.device)
        executor.backend.run(executor.stream, lambda: executor.pool.poison(where))
        return executor.submit(plan)

    def wait(self, ticket: int) -> StepTiming:
        return self._executor.wait(ticket)

    def poll_transfers(self) -> Sequence[int]:
        return self._executor.poll_transfers()

    def _held(self) -> np.ndarray:
        held = np.zeros(self._executor.pool.num_blocks, bool)
        row = int(self._replica.scalars[0].running_head)
        while row != st.NONE:
            record = self._replica.rows[row]
            count, start = int(record.blocks), int(record.run_start)
            paged = self._replica.parameters.paged
            held[self._replica.table[row, :count] if paged else slice(start, start + count)] = True
            row = int(record.next)
        return held


def run(
    config: ReplicaConfig,
    backend: Backend,
    *,
    rows: int = len(REQUESTS),
    before: Callable[[DeviceExecutor], None] = lambda _: None,
    **options: Any,
) -> tuple[Replica, DeviceExecutor, list[tuple[str, StepTiming]]]:
    """Run the first ``rows`` requests; measured times drive the clock. ``before`` gets the executor first."""
    replica, plan = replica_of(config, rows)
    executor = DeviceExecutor(backend, config, plan, PROMPTS, **options)
    before(executor)
    steps = []
    for planned, timing in drive(replica, iter(()), Poisoning(replica, executor)):
        steps.append((planned.digest(), timing))
        executor.resume()
    return replica, executor, steps


@cache
def wanted(device: str = "cpu") -> dict[int, list[int]]:
    """The oracle's tokens, with the weights that this device draws; each leads by far more than float32 errs."""
    model = on_cpu(Llama(MODEL, torch.device(device), 0))
    tokens = {}
    for row, (_, prompt, output) in enumerate(REQUESTS):
        start = PROMPTS(row, prompt).tolist()
        generated, lead = continuation(model, start, output)
        assert lead > 1e-4
        tokens[row] = start + generated
    return tokens

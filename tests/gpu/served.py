"""A small replica and its requests, run through the device's executor; and the tokens that must come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from kvrm_gpu.backend import Backend
from kvrm_gpu.device_executor import DeviceExecutor
from kvrm_gpu.llama import Llama
from kvrm_gpu.prompts import hashed_prompt, random_prompt
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy
from kvrm_sim.decoding import row_computed
from kvrm_sim.derivation import parameters_of
from kvrm_sim.executor import StepPlan, StepTiming, drive
from kvrm_sim.memory import MemoryPlan, plan_memory
from kvrm_sim.pager import blocks_for
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


@dataclass(frozen=True)
class Requests:
    """``rows``: (arrival, prompt, output); ``ids``: the prefix hashes of each, of ``hash_block_tokens`` tokens."""

    rows: tuple[tuple[int, int, int], ...]
    ids: tuple[tuple[int, ...], ...] = ()
    hash_block_tokens: int | None = None

    @cached_property
    def arrivals(self) -> st.Records:
        records = st.arrivals(np.array(self.rows))
        if self.ids:
            records["num_ids"] = [len(own) for own in self.ids]
            records["ids_at"] = np.cumsum(records["num_ids"]) - records["num_ids"]
        return records

    @cached_property
    def flat_ids(self) -> np.ndarray:
        return np.array([id_ for own in self.ids for id_ in own], np.int64)

    @cached_property
    def prompt(self) -> Callable[[int, int], np.ndarray]:
        if self.hash_block_tokens is None:
            return PROMPTS
        return hashed_prompt(MODEL.vocab_size, 3, self.arrivals, self.flat_ids, self.hash_block_tokens)


PLAIN = Requests(tuple(REQUESTS))


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


def replica_of(
    config: ReplicaConfig, rows: int | None = None, requests: Requests = PLAIN
) -> tuple[Replica, MemoryPlan]:
    plan = plan_memory(config)
    sinks = Sinks(requests=lambda _: None, windows=lambda _: None, pool=lambda _records, _classes: None)
    parameters = parameters_of(config, plan, span_ns=None, hash_block_tokens=requests.hash_block_tokens)
    replica = Replica(parameters, sinks)
    replica.supply(requests.arrivals[:rows], known_until_ns=st.NEVER, ids=requests.flat_ids)
    return replica, plan


class Poisoning:
    """An executor that puts NaN into every block whose entries nobody may read any more, before each step: the null
    block, what is free, and what a row holds and has not written. Not what is cached, and not the sources of tails.
    """

    def __init__(self, replica: Replica, executor: DeviceExecutor, watch: Callable[[Replica, StepPlan], None]) -> None:
        self._replica = replica
        self._executor = executor
        self._watch = watch

    def submit(self, plan: StepPlan) -> int:
        self._watch(self._replica, plan)
        written = self._written()
        copied = [chunk for chunk in plan.chunks if chunk.copied_from]
        written[[chunk.table[-1] for chunk in copied]] = False
        written[[chunk.copied_from for chunk in copied]] = True
        executor, dead = self._executor, torch.from_numpy(np.flatnonzero(~written))
        where = dead.to(executor.backend.device)
        executor.backend.run(executor.stream, lambda: executor.pool.poison(where))
        return executor.submit(plan)

    def wait(self, ticket: int) -> StepTiming:
        return self._executor.wait(ticket)

    def poll_transfers(self) -> Sequence[int]:
        return self._executor.poll_transfers()

    def _written(self) -> np.ndarray:
        replica = self._replica
        written = np.zeros(self._executor.pool.num_blocks, bool)
        if replica.parameters.record[0].sharing:
            blocks = replica.blocks[: len(written)]
            written |= (blocks["key"] != st.NONE) & (blocks["refs"] == 0)
            written[0] = False
        row = int(replica.scalars[0].running_head)
        while row != st.NONE:
            record = replica.rows[row]
            computed = int(row_computed(replica.scalars[0], replica.rows, row))
            count = blocks_for(replica.parameters.record[0], computed) - int(record.dropped)
            start = int(record.run_start)
            written[replica.table[row, :count] if replica.parameters.paged else slice(start, start + count)] = True
            row = int(record.next)
        return written


def run(
    config: ReplicaConfig,
    backend: Backend,
    *,
    rows: int | None = None,
    requests: Requests = PLAIN,
    before: Callable[[DeviceExecutor], None] = lambda _: None,
    watch: Callable[[Replica, StepPlan], None] = lambda _replica, _plan: None,
    **options: Any,
) -> tuple[Replica, DeviceExecutor, list[tuple[str, StepTiming]]]:
    """Run the first ``rows`` requests; measured times drive the clock. ``before`` gets the executor first, ``watch``
    every step that was decided, before it runs.
    """
    replica, plan = replica_of(config, rows, requests)
    executor = DeviceExecutor(backend, config, plan, requests.prompt, **options)
    before(executor)
    steps = []
    for planned, timing in drive(replica, iter(()), Poisoning(replica, executor, watch)):
        steps.append((planned.digest(), timing))
        executor.resume()
    return replica, executor, steps


@cache
def wanted(device: str = "cpu", requests: Requests = PLAIN) -> dict[int, list[int]]:
    """The oracle's tokens, with the weights that this device draws; each leads by far more than float32 errs."""
    model = on_cpu(Llama(MODEL, torch.device(device), 0))
    tokens = {}
    for row, (_, prompt, output) in enumerate(requests.rows):
        start = requests.prompt(row, prompt).tolist()
        generated, lead = continuation(model, start, output)
        assert lead > 1e-4
        tokens[row] = start + generated
    return tokens

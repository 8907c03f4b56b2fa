"""A small replica and its requests, run through the device's executor; and the tokens that must come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from kvrm_gpu.backend import Backend
from kvrm_gpu.block_order import Touches
from kvrm_gpu.device_executor import DeviceExecutor
from kvrm_gpu.kv_pool import KvPool
from kvrm_gpu.llama import Llama
from kvrm_gpu.prompts import hashed_prompt, random_prompt
from kvrm_gpu.transfer import Space
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy
from kvrm_sim.decoding import row_computed
from kvrm_sim.derivation import parameters_of
from kvrm_sim.executor import StepPlan, StepTiming, drive
from kvrm_sim.links import IN
from kvrm_sim.memory import MemoryPlan, plan_memory
from kvrm_sim.moves import MOVE_KINDS
from kvrm_sim.pager import blocks_for
from kvrm_sim.replica import Replica
from kvrm_sim.sinks import Sinks
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
    config: ReplicaConfig,
    rows: int | None = None,
    requests: Requests = PLAIN,
    costs_ns: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Replica, MemoryPlan]:
    """``costs_ns``: fields of the core's parameters that are not as the hardware has them."""
    plan = plan_memory(config)
    sinks = Sinks(requests=lambda _: None, windows=lambda _: None, pool=lambda _records, _classes: None)
    parameters = parameters_of(config, plan, span_ns=None, hash_block_tokens=requests.hash_block_tokens, log_moves=True)
    for name, value in costs_ns.items():
        parameters.record[name] = value
    replica = Replica(parameters, sinks)
    replica.supply(requests.arrivals[:rows], known_until_ns=st.NEVER, ids=requests.flat_ids)
    return replica, plan


class Poisoning:
    """An executor that puts NaN into every block whose entries nobody may read any more, before each step: the null
    block, what is free, what a row holds and has not written, what is to be moved over; on the host too. Not what is
    cached, and not what has to be moved first.
    """

    def __init__(
        self,
        replica: Replica,
        executor: DeviceExecutor,
        watch: Callable[[Replica, StepPlan], None],
        *,
        poisons: bool,
        lockstep: bool,
    ) -> None:
        self._replica, self._executor, self._watch = replica, executor, watch
        self._poisons, self._lockstep = poisons, lockstep
        self._predicted: dict[int, StepTiming] = {}

    def submit(self, plan: StepPlan) -> int:
        self._watch(self._replica, plan)
        if self._poisons:
            self._poison_before(plan)
        ticket = self._executor.submit(plan)
        self._predicted[ticket] = StepTiming.predicted(plan.step)
        return ticket

    def _poison_before(self, plan: StepPlan) -> None:
        device, host = self._written(), self._kept_on_host()
        for kind, source, target in plan.moves[::-1].tolist():
            come = device if MOVE_KINDS[kind] in ("compact", "tail", "out", "offload") else host
            go = host if MOVE_KINDS[kind] in ("out", "offload") else device
            needed, go[target] = go[target], False
            come[source] |= needed
        executor, moves = self._executor, self._executor.moves
        self._poison(executor.pool, ~device, None if moves is None else moves.pool)
        if moves is not None and moves.host is not None:
            self._poison(moves.host.pool, ~host, moves.host)

    def _poison(self, pool: KvPool, dead: np.ndarray, space: Space | None) -> None:
        """On the steps' stream, in the order of what else touches these blocks."""
        backend, stream = self._executor.backend, self._executor.stream
        blocks = np.flatnonzero(dead)
        where = torch.from_numpy(blocks).to(pool.storage.device)
        touches = Touches() if space is None else Touches(writes=((space.order, blocks),))
        if space is not None:
            touches.begin(space.clock, stream)
        backend.run(stream, lambda: pool.poison(where))
        if space is not None:
            touches.end(space.clock, stream)

    def wait(self, ticket: int) -> StepTiming:
        measured, predicted = self._executor.wait(ticket), self._predicted.pop(ticket)
        return predicted if self._lockstep else measured

    def poll_transfers(self) -> Sequence[int]:
        return self._executor.poll_transfers()

    def _written(self) -> np.ndarray:
        replica = self._replica
        written = np.zeros(self._executor.pool.num_blocks, bool)
        if replica.parameters.record[0].sharing:
            blocks = replica.blocks[: len(written)]
            written |= blocks["key"] != st.NONE
            written[0] = False
        for row in self._rows():
            record = replica.rows[row]
            computed = int(row_computed(replica.scalars[0], replica.rows, row))
            count = blocks_for(replica.parameters.record[0], computed) - int(record.dropped)
            start = int(record.run_start)
            written[replica.table[row, :count] if replica.parameters.paged else slice(start, start + count)] = True
        return written

    def _rows(self) -> Iterator[int]:
        """Rows in running, and those that come in."""
        rows, s = self._replica.rows, self._replica.scalars[0]
        row = int(s.running_head)
        while row != st.NONE:
            yield row
            row = int(rows[row].next)
        yield from (row for row in rows["moving"][: int(s.num_moving)].tolist() if rows[row].direction == IN)

    def _kept_on_host(self) -> np.ndarray:
        """Blocks of requests that were swapped out, and those that have a key."""
        blocks = self._replica.arrays.host_blocks
        kept = np.zeros(int(self._replica.parameters.record[0].host_blocks) + 1, bool)
        kept |= (blocks["key"][: len(kept)] != st.NONE) & (np.arange(len(kept)) > 0)
        for block in self._replica.requests["host_first"].tolist():
            while block != 0:
                kept[block] = True
                block = int(blocks[block].next)
        return kept


def run(
    config: ReplicaConfig,
    backend: Backend,
    *,
    rows: int | None = None,
    requests: Requests = PLAIN,
    before: Callable[[DeviceExecutor], None] = lambda _: None,
    watch: Callable[[Replica, StepPlan], None] = lambda _replica, _plan: None,
    poisons: bool = True,
    lockstep: bool = False,
    costs_ns: Mapping[str, float] = MappingProxyType({}),
    **options: Any,
) -> tuple[Replica, DeviceExecutor, list[tuple[str, StepTiming]]]:
    """Run the first ``rows`` requests; measured times drive the clock, or in ``lockstep`` the predicted ones.
    ``before`` gets the executor first, ``watch`` every step that was decided, before it runs.
    """
    replica, plan = replica_of(config, rows, requests, costs_ns)
    executor = DeviceExecutor(backend, config, plan, requests.prompt, **options)
    before(executor)
    steps = []
    poisoning = Poisoning(replica, executor, watch, poisons=poisons, lockstep=lockstep)
    for planned, timing in drive(replica, iter(()), poisoning):
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

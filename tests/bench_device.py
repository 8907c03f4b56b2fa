"""Host time that a device waits for: deciding, describing and committing a step, and planning transfers.

A section of ``make bench``; runs where torch is installed, on the CPU backend, one thread, whose own time is taken. A
real replica decodes 256 rows whose blocks fill most of their table; each repeat is the mean over many steps. The upload
itself is a copy in the host's memory here: on CUDA it is one asynchronous call instead.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SLOTS, BLOCK_SIZE = 256, 16
TABLE_WIDTHS = (512, 8192)
#: (rows, blocks of each) whose product is the number of mappings.
MAPPINGS = ((16, 16), (256, 16), (256, 256))
REPEATS, STEPS = 9, 64
GOAL_US = 20


def spread_us(name: str, seconds: list[float]) -> str:
    low, middle, high = np.percentile(np.array(seconds) * 1e6, (10, 50, 90))
    return f"  {name:44s} {middle:,.1f} µs (p10 {low:,.1f}, p90 {high:,.1f}, n {len(seconds)})"


@dataclass
class Spent:
    """Seconds of each repeat, by what was done."""

    decide: list[float] = field(default_factory=list)
    describe: list[float] = field(default_factory=list)
    delta: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    uploaded_bytes: int = 0


def decoding_replica(width: int) -> Any:
    """A replica whose 256 rows all decode, their tables of ``width`` blocks filled but for what the bench will add."""
    from kvrm_sim import state as st
    from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy
    from kvrm_sim.derivation import parameters_of
    from kvrm_sim.memory import plan_memory
    from kvrm_sim.replica import Replica
    from kvrm_sim.sinks import Sinks

    limit = width * BLOCK_SIZE
    output = 2 * REPEATS * STEPS + 1024  # the first rows decode while the last prompts are computed
    policy = load_policy("graph-paged").override(
        {"schedule.slots": SLOTS, "schedule.token_budget": 65_536, "pager.block_size_tokens": BLOCK_SIZE}
    )
    config = ReplicaConfig(
        model=load_model("tiny-llama").model_copy(update={"max_context_tokens": limit}),
        hardware=load_hardware("h200"),
        policy=policy,
        pool_blocks=SLOTS * width,
        max_context_tokens=limit,
    )
    sinks = Sinks(requests=lambda _: None, windows=lambda _: None, pool=lambda _records, _classes: None)
    replica = Replica(parameters_of(config, plan_memory(config), span_ns=None), sinks)
    # Prompts end at every place of a block: each step some rows take one.
    requests = [(0, limit - output - row % BLOCK_SIZE, output) for row in range(SLOTS)]
    replica.supply(st.arrivals(np.array(requests)), known_until_ns=st.NEVER)
    return replica


def decide(replica: Any) -> bool:
    """To the next decision; whether all rows decode in it."""
    from kvrm_sim import state as st

    while (reason := replica.advance(st.NEVER, max_steps=1 << 30, flags=st.STOP_AT_DECISIONS)) == st.WORK:
        continue
    assert reason == st.DECIDED, reason
    step = replica.steps[0]
    return bool(step.decode_rows == SLOTS and step.prefill_rows == 0)


def step_times(width: int) -> Spent:
    """Deciding (scheduler, pager and cost model, compiled), describing and committing a step of 256 rows."""
    from kvrm_gpu.commit import Committer
    from kvrm_gpu.cpu_backend import CpuBackend
    from kvrm_gpu.device_executor import PATCH_CAPACITY
    from kvrm_gpu.wire import WireShape
    from kvrm_sim.descriptor import CommitDescriptor

    replica = decoding_replica(width)
    while not decide(replica):
        continue
    backend = CpuBackend()
    wire = WireShape(slots=SLOTS, table_width=width, group_capacity=1, patch_capacity=PATCH_CAPACITY)
    committer = Committer(backend, wire, backend.stream(), block_size=BLOCK_SIZE)
    descriptor = CommitDescriptor.for_parameters(replica.parameters.record)
    owners, tokens = np.arange(1, SLOTS + 1), np.full(SLOTS, 7, np.int64)
    spent, clock = Spent(), time.thread_time
    state = (
        replica.parameters.record,
        replica.scalars,
        replica.steps,
        replica.rows,
        replica.blocks,
        replica.keys,
        replica.table,
    )
    for delta in (False, True):  # the first whole one brings the tables; the first of each kind compiles
        for repeat in range(REPEATS + 1):
            marks = np.zeros(3)
            for _ in range(STEPS if repeat else 1):
                begun = clock()
                assert decide(replica)
                decided = clock()
                descriptor.fill(*state)
                described = clock()
                counts = -(-descriptor.lengths // BLOCK_SIZE)
                packing = clock()
                commitment = committer.commit(descriptor, tokens, owners, counts, delta=delta)
                marks += (decided - begun, described - decided, clock() - packing)
                assert (commitment.patches is not None) == delta
            if repeat:
                spent.decide.append(marks[0] / STEPS)
                spent.describe.append(marks[1] / STEPS)
                (spent.delta if delta else spent.whole).append(marks[2] / STEPS)
        spent.uploaded_bytes = commitment.uploaded_bytes
    return spent


def planner(rows: int, blocks: int) -> Callable[[], int]:
    """A call of the merge planner over rows of scattered runs of 8 blocks; returns the number of groups."""
    from kvrm_sim import state as st
    from kvrm_sim.compiled import entry
    from kvrm_sim.decoding import FULL
    from kvrm_sim.transport import MERGE_ADJACENT, plan_groups

    @entry
    def planned(params: Any, scalars: Any, rows: Any, table: Any, groups: Any) -> int:
        return plan_groups(params[0], scalars[0], rows, table, groups)

    params, scalars, records = np.zeros(1, st.PARAMS), np.zeros(1, st.SCALARS), np.zeros(rows, st.ROWS)
    params["block_size"], params["stage_width"] = BLOCK_SIZE, blocks
    params["staging"], params["merge"] = FULL, MERGE_ADJACENT
    runs = np.random.default_rng(1).permutation(rows * blocks // 8)
    # Runs lie 9 blocks apart: none abuts on another.
    table = (runs[:, None] * 9 + np.arange(1, 9)).reshape(rows, blocks)
    for row in range(rows):
        records[row]["decoding"], records[row]["origin"] = 1, blocks * BLOCK_SIZE
        records[row]["next"] = row + 1 if row + 1 < rows else st.NONE
    groups = np.zeros((rows * blocks, 3), np.int64)
    return lambda: int(planned(params, scalars, records, table, groups))


def planner_times(rows: int, blocks: int) -> list[float]:
    plan, clock = planner(rows, blocks), time.thread_time
    assert plan() == rows * blocks // 8
    calls = max(10, 2_000_000 // (rows * blocks))
    seconds = []
    for _ in range(REPEATS):
        begun = clock()
        for _ in range(calls):
            plan()
        seconds.append((clock() - begun) / calls)
    return seconds


def lines() -> Iterator[str]:
    """The section, line by line."""
    if importlib.util.find_spec("torch") is None:
        yield "host time a step on a device: not measured, torch is not installed (extra `gpu`)"
        return
    import torch

    torch.set_num_threads(1)
    yield f"host time a step on a device, {SLOTS} slots (each repeat the mean of {STEPS} steps, on the CPU backend)"
    for width in TABLE_WIDTHS:
        spent = step_times(width)
        yield f" tables of {width:,} blocks"
        yield spread_us("pack and commit, delta", spent.delta) + f", {spent.uploaded_bytes:,} bytes"
        yield spread_us("pack and commit, whole", spent.whole)
        yield spread_us("decide: scheduler, pager, cost model", spent.decide)
        yield spread_us("describe: fill the descriptor's tables", spent.describe)
        both = np.median(spent.delta) + np.median(spent.decide)
        yield f"  delta commit and decide: {both * 1e6:,.1f} µs; wanted: at most {GOAL_US} µs"
    yield " merge planner, runs of 8 blocks"
    for rows, blocks in MAPPINGS:
        yield spread_us(f"{rows * blocks:,} mappings ({rows} rows)", planner_times(rows, blocks))


if __name__ == "__main__":
    import sys

    for line in lines():
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

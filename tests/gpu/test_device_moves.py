"""Blocks that move on the device: swapping, offload and loads, compaction, in whatever order they were decided.

Tokens are those of a plain forward, with NaN in every block, here and on the host, whose entries nobody may read any
more. Predicted times drive the clock where what happens has to be certain.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvrm_gpu.backend import Backend
from kvrm_gpu.block_moves import BlockMoves, grouped
from kvrm_gpu.block_order import MAX_STREAMS, BlockOrder, StreamClock
from kvrm_gpu.device_executor import DeviceExecutor
from kvrm_gpu.errors import DeviceError
from kvrm_gpu.kv_pool import KvPool, KvShape
from kvrm_gpu.live_cpu import LiveCpuBackend
from kvrm_gpu.transfer import Space
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.executor import RecordedExecutor, StepPlan, drive
from kvrm_sim.memory import GIB, plan_memory
from kvrm_sim.moves import MOVE_KINDS
from kvrm_sim.policy_parts import Host
from kvrm_sim.replica import Replica
from tests.gpu.descriptors import empty_descriptor
from tests.gpu.devices import DEVICES, backend_of
from tests.gpu.lazy_backend import LazyBackend
from tests.gpu.served import PLAIN, Requests, config_of, replica_of, run, wanted
from tests.gpu.test_device_sharing import requests_of

#: The link takes about a step for a block, and computing a token longer than loading one.
SLOW_LINK = {"host_out_block_ns": 2e5, "host_in_block_ns": 2e5, "dense_token_ns": 1e6}
#: Transfers are done, as far as decisions know, before the next step begins.
FAST_LINK = {"host_out_block_ns": 1e2, "host_in_block_ns": 1e2, "dense_token_ns": 1e6}

SWAP: dict[str, object] = {"schedule.preempt": "swap"}
COMPACT: dict[str, object] = {"pager.compaction": "threshold", "pager.compaction_ratio": 0.0}
SHARE: dict[str, object] = {"pager.prefix_sharing": True, "pager.partial_tail": "copy"}
#: What is on -> (changes of the policy, of [host], kinds of moves that happen).
CASES: dict[str, tuple[dict[str, object], dict[str, object] | None, set[str]]] = {
    "swap": (SWAP, {"overlap": False}, {"out", "in"}),
    "swap beside the steps": (SWAP, {"overlap": True}, {"out", "in"}),
    "compaction": (COMPACT, None, {"compact"}),
    "swap and compaction": (SWAP | COMPACT, {"overlap": True, "submission": "per_copy"}, {"out", "in", "compact"}),
    "offload": (SHARE, {"overlap": False, "offload": True, "merge": "none"}, {"offload", "load", "tail"}),
    "everything": (
        SHARE | SWAP | COMPACT,
        {"overlap": False, "offload": True},
        {"out", "in", "offload", "load", "tail", "compact"},
    ),
    "everything beside the steps": (
        SHARE | SWAP | COMPACT,
        {"overlap": True, "offload": True},
        {"out", "in", "offload", "load", "tail", "compact"},
    ),
}
POLICIES = ("dynamic", "graph-paged", "kv-rm", "kv-rm-delta")


def with_host(config: ReplicaConfig, changes: dict[str, object], host: dict[str, object] | None) -> ReplicaConfig:
    """A policy with changes, and a host pool of 12 blocks."""
    if host is not None:
        changes = changes | {"host": {"memory_gib": 12.5 * plan_memory(config).block_bytes / GIB, **host}}
    return config.model_copy(update={"policy": config.policy.override(changes)})


def case_of(policy: str, case: str) -> tuple[ReplicaConfig, Requests]:
    changes, host, _ = CASES[case]
    shares = "pager.prefix_sharing" in changes
    config = config_of(policy, 16 if shares else 14, token_budget=16)
    return with_host(config, changes, host), requests_of(4) if shares else PLAIN


class Seen:
    """What was moved, and (``staging = delta``) that a row is staged once an admission, whatever moves."""

    def __init__(self, config: ReplicaConfig) -> None:
        self.kinds: Counter[str] = Counter()
        self.stalled = self.ended = 0
        self._delta = config.policy.staged and config.policy.transport.staging == "delta"
        self._staged: set[tuple[int, int]] = set()

    def __call__(self, replica: Replica, plan: StepPlan) -> None:
        self.kinds.update(MOVE_KINDS[kind] for kind in plan.moves[:, 0].tolist())
        self.stalled += int(plan.step.stalled_rows)
        self.ended += len(plan.ended)
        if not self._delta or plan.chunks:
            return
        groups = plan.descriptor.groups[: plan.descriptor.num_groups]
        width = int(replica.parameters.record[0].stage_width)
        asks = {
            stage: (row, int(replica.requests[replica.rows[stage].request].preemptions)) for stage, row in plan.decoding
        }
        fresh = {stage for stage, admission in asks.items() if admission not in self._staged}
        assert set((groups[:, 1] // width).tolist()) == fresh
        self._staged |= set(asks.values())


def check_run(
    backend: Backend, config: ReplicaConfig, requests: Requests, costs_ns: dict[str, float], *, lockstep: bool = True
) -> tuple[Replica, Seen]:
    """Tokens are right, and the core decides the same again on the recorded times."""
    seen = Seen(config)
    replica, executor, steps = run(config, backend, requests=requests, watch=seen, lockstep=lockstep, costs_ns=costs_ns)
    assert executor.sequences == wanted(backend.device.type, requests)
    assert replica.scalars[0].completed == len(requests.rows)
    again, _ = replica_of(config, requests=requests, costs_ns=costs_ns)
    recorded = RecordedExecutor([timing for _, timing in steps])
    assert [plan.digest() for plan, _ in drive(again, iter(()), recorded)] == [digest for digest, _ in steps]
    return replica, seen


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_tokens_are_those_of_a_plain_forward_and_decisions_replay(device: str, policy: str, case: str) -> None:
    config, requests = case_of(policy, case)
    replica, seen = check_run(backend_of(device), config, requests, SLOW_LINK)
    assert set(seen.kinds) == CASES[case][2]
    s = replica.scalars[0]
    assert s.groups > 0 or not config.policy.staged
    if config.policy.host is not None and config.policy.host.overlap:
        assert s.transfers > 0, "nothing went over the link"


@pytest.mark.parametrize("policy", ["dynamic", "kv-rm-delta"])
def test_measured_times_drive_the_clock(policy: str) -> None:
    config, requests = case_of(policy, "everything beside the steps")
    _, seen = check_run(LiveCpuBackend(), config, requests, SLOW_LINK | {"dense_token_ns": 1e9}, lockstep=False)
    assert set(seen.kinds) >= {"offload", "tail", "compact"}


LAZY = ("swap beside the steps", "everything", "everything beside the steps")


@pytest.mark.parametrize("policy", ["dynamic", "kv-rm-delta"])
@pytest.mark.parametrize("case", LAZY)
def test_tokens_do_not_depend_on_the_schedule_of_the_device(policy: str, case: str) -> None:
    """Under the adversarial scheduler, with transfers that are still under way on the device when decisions have long
    given their blocks to others.
    """
    for seed in range(2):
        assert not wrong_rows(policy, case, LazyBackend(seed))


def wrong_rows(
    policy: str, case: str, backend: Backend, before: Callable[[DeviceExecutor], None] = lambda _: None
) -> set[int]:
    """Requests with a token that is not the plain forward's; nothing is poisoned, which would order what it touches."""
    config, requests = case_of(policy, case)
    _, executor, _ = run(
        config, backend, requests=requests, before=before, poisons=False, lockstep=True, costs_ns=FAST_LINK
    )
    return {row for row, tokens in wanted(requests=requests).items() if executor.sequences[row] != tokens}


def any_wrong(case: str, before: Callable[[DeviceExecutor], None], backends: Iterable[Backend]) -> bool:
    return any(wrong_rows(policy, case, backend, before) for backend in backends for policy in ("dynamic", "kv-rm"))


def writers_only(order: BlockOrder) -> None:
    """Whoever writes a block waits for those who wrote it, and not for those who read it."""
    order.before_write = order.before_read  # type: ignore[method-assign]


@pytest.mark.parametrize("guard", ["the steps wait for the link", "a writer waits for the readers"])
def test_without_any_one_guard_something_is_wrong(guard: str) -> None:
    """GPU failure 9, in whole runs: a block is read before its copy came, or written while it is copied out."""

    def before(executor: DeviceExecutor) -> None:
        moves = executor.moves
        assert moves is not None
        if guard == "the steps wait for the link":
            moves.before_step = moves._touched  # type: ignore[method-assign]
        else:
            writers_only(moves.pool.order)

    assert any_wrong("swap beside the steps", before, map(LazyBackend, range(8)))


@pytest.mark.parametrize("case", ["everything", "everything beside the steps"])
def test_moves_in_another_order_are_wrong(case: str) -> None:
    """GPU failure 9: what comes in would be overwritten by what has not gone out yet."""

    def before(executor: DeviceExecutor) -> None:
        moves = executor.moves
        assert moves is not None
        carry_out = moves.carry_out
        moves.carry_out = lambda plan: carry_out(replace(plan, moves=plan.moves[::-1]))  # type: ignore[method-assign]

    assert any_wrong(case, before, [backend_of("cpu")])


def same_numbers(executor: DeviceExecutor) -> None:
    executor._renumber = lambda plan: None  # type: ignore[method-assign]


def test_a_table_whose_blocks_were_moved_is_compared_whole() -> None:
    """GPU failure 6."""
    assert any_wrong("compaction", same_numbers, [backend_of("cpu")])


@pytest.mark.parametrize("guarded", [True, False])
def test_the_table_of_a_row_that_comes_back_is_compared_whole(guarded: bool) -> None:
    """GPU failure 6: it takes the place of a shorter row that was there in the step before, and has other blocks."""
    requests = Requests(((0, 3, 21), (0, 30, 12)))
    changes = SWAP | {"pager.placement": "fifo"}  # a stack would give it the very blocks that the other gave back
    config = with_host(config_of("dynamic", 12, token_budget=48, slots=2), changes, {"overlap": False})
    before = (lambda _: None) if guarded else same_numbers
    replica, executor, _ = run(config, backend_of("cpu"), requests=requests, before=before, lockstep=True)
    assert replica.scalars[0].swaps == 1
    assert (executor.sequences == wanted(requests=requests)) is guarded


BLOCKS, HOST_BLOCKS, STEPS = 5, 4, 30
SHAPE = KvShape(layers=2, block_size=4, kv_heads=1, head_dim=4, dtype=torch.float32)
BETWEEN = {"compact": (BLOCKS, BLOCKS), "out": (BLOCKS, HOST_BLOCKS), "in": (HOST_BLOCKS, BLOCKS),
           "offload": (BLOCKS, HOST_BLOCKS), "load": (HOST_BLOCKS, BLOCKS)}  # fmt: skip


class Program:
    """Random moves between random blocks, each followed by a step that sums some blocks and writes others. The host
    waits for nothing, so it is many steps ahead; the end is the same on every backend.
    """

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend, self.random = backend, random.Random(seed)
        self.stream, clock = backend.stream(), StreamClock(backend)
        pool = Space(KvPool(backend, SHAPE, BLOCKS), clock)
        self.moves = BlockMoves(backend, clock, pool, self.stream, Host(memory_gib=1.0), HOST_BLOCKS)
        assert self.moves.host is not None
        self.pools = [pool.pool, self.moves.host.pool]
        self.sums = torch.zeros(STEPS)

    def run(self) -> list[list[float]]:
        """All memory at the end, and what the steps have read."""
        for number in range(STEPS):
            self.step(number)
        self.backend.finish()
        return [self.sums.tolist(), *(pool.storage.flatten().tolist() for pool in self.pools)]

    def step(self, number: int) -> None:
        plan = self.plan(number)
        read, write = (torch.tensor(self.random.sample(range(1, BLOCKS + 1), 2)) for _ in range(2))
        d = plan.descriptor
        d.active[:], d.slot_mapping[:], d.block_tables[:, 0] = 1, write.numpy() * SHAPE.block_size, read.numpy()
        self.moves.carry_out(plan)
        touches = self.moves.before_step(plan)
        layers = self.pools[0].layers

        def body() -> None:
            self.sums[number] = layers[:, read].sum()
            layers[:, write] = number + 1.0

        self.backend.run(self.stream, body)
        self.moves.after_step(touches)

    def plan(self, number: int) -> StepPlan:
        moves = []
        for _ in range(self.random.randrange(4)):
            kind = self.random.choice(sorted(BETWEEN))
            source, target = (self.random.randint(1, blocks) for blocks in BETWEEN[kind])
            if kind != "compact" or source != target:
                moves.append((MOVE_KINDS.index(kind), source, target))
        kinds = Counter(MOVE_KINDS[kind] for kind, _, _ in moves)
        step = np.zeros(1, st.STEP)[0]
        step.compacted_blocks, step.host_out_blocks = kinds["compact"], kinds["out"]
        step.host_in_blocks, step.offload_blocks = kinds["in"] + kinds["load"], kinds["offload"]
        return StepPlan(number, step, empty_descriptor(2, 1, 1), (), (), (), np.array(moves, np.int64).reshape(-1, 3))


def is_wrong(seed: int, before: Callable[[BlockMoves], None] = lambda _: None) -> bool:
    program = Program(LazyBackend(seed), seed)
    before(program.moves)
    return program.run() != Program(backend_of("cpu"), seed).run()


def test_no_schedule_of_moves_and_steps_is_wrong() -> None:
    assert not any(is_wrong(seed) for seed in range(30))


def steps_do_not_wait(moves: BlockMoves) -> None:
    moves.before_step = moves._touched  # type: ignore[method-assign]


def steps_say_nothing(moves: BlockMoves) -> None:
    moves.after_step = lambda touches: None  # type: ignore[method-assign]


def host_blocks_are_written_while_they_are_read(moves: BlockMoves) -> None:
    assert moves.host is not None
    writers_only(moves.host.order)


def host_blocks_are_read_before_they_are_written(moves: BlockMoves) -> None:
    assert moves.host is not None
    moves.host.order.before_read = lambda blocks: np.zeros(MAX_STREAMS, np.int64)  # type: ignore[method-assign]


def blocks_are_written_while_they_are_read(moves: BlockMoves) -> None:
    writers_only(moves.pool.order)


@pytest.mark.parametrize(
    "without",
    [
        steps_do_not_wait,
        steps_say_nothing,
        host_blocks_are_written_while_they_are_read,
        host_blocks_are_read_before_they_are_written,
        blocks_are_written_while_they_are_read,
    ],
)
def test_without_any_one_order_a_schedule_is_wrong(without: Callable[[BlockMoves], None]) -> None:
    """GPU failures 7, 9 and 10: a block, here or on the host, is reused under a copy or a step that still needs it."""
    assert any(is_wrong(seed, without) for seed in range(30))


def test_a_plan_that_does_not_list_its_moves_is_an_error() -> None:
    config, _ = case_of("dynamic", "swap")

    def unlisted(executor: DeviceExecutor) -> None:
        submit = executor.submit
        executor.submit = lambda plan: submit(replace(plan, moves=plan.moves[:0]))  # type: ignore[method-assign]

    with pytest.raises(DeviceError, match=r"step \d+: 0 moves 'out' are listed, its record counts \d+: .*log_moves"):
        run(config, backend_of("cpu"), before=unlisted, lockstep=True)


def test_neighbours_on_both_sides_are_one_group() -> None:
    pairs = np.array([(3, 7), (4, 8), (5, 9), (6, 11), (8, 12), (7, 13)])
    assert grouped(pairs, merges=True).tolist() == [[3, 7, 3], [6, 11, 1], [8, 12, 1], [7, 13, 1]]
    assert grouped(pairs, merges=False).tolist() == [[*pair, 1] for pair in pairs.tolist()]

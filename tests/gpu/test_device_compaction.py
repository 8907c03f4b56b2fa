"""Compaction of contiguous reservations on the device: what the core moves is what rows then read (B20, B21)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvrm_gpu.backend import Backend
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.executor import StepPlan
from kvrm_sim.replica import Replica
from tests.gpu.devices import DEVICES, backend_of
from tests.gpu.lazy_backend import LazyBackend
from tests.gpu.served import Requests, config_of, run, wanted
from tests.gpu.test_device_moves import check_run, with_host


def reserved(
    pool_blocks: int, compaction: str, slots: int = 6, policy: str = "orca-oracle", **pager: object
) -> ReplicaConfig:
    changes = {"pager.placement": "contiguous", "pager.compaction": compaction}
    config = config_of(policy, pool_blocks, slots=slots)
    return with_host(config, changes | {f"pager.{key}": value for key, value in pager.items()}, None)


class Watch:
    """The moves of each step that has some, in order, and the step in which each request began."""

    def __init__(self) -> None:
        self.moves: list[list[list[int]]] = []
        self.began: dict[int, int] = {}

    def __call__(self, _replica: Replica, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            self.began.setdefault(chunk.row, plan.number)
        if len(plan.moves):
            self.moves.append(plan.moves[:, 1:].tolist())


def watched(config: ReplicaConfig, requests: Requests, backend: Backend) -> tuple[Watch, Replica]:
    watch = Watch()
    replica, executor, _ = run(config, backend, requests=requests, watch=watch, lockstep=True)
    assert executor.sequences == wanted(backend.device.type, requests)
    return watch, replica


#: Five reservations of 20 cells in a pool of 100, three of which end after two tokens; then one of 30 cells.
HOLES = Requests(((0, 19, 2), (0, 8, 13), (0, 19, 2), (0, 8, 13), (0, 19, 2), (1, 20, 11)))


@pytest.mark.parametrize("device", DEVICES)
def test_b20_three_holes_of_20_and_30_are_asked(device: str) -> None:
    """Without compaction the request waits until a neighbour ends; with it, the higher of those left moves into
    the lowest hole first, and its next tokens are read from where it is then.
    """
    waits, _ = watched(reserved(25, "none"), HOLES, backend_of(device))
    watch, replica = watched(reserved(25, "demand"), HOLES, backend_of(device))
    assert (waits.moves, watch.moves) == ([], [[[16 + at, 1 + at] for at in range(5)]])
    assert watch.began[5] < waits.began[5]
    assert (replica.scalars[0].compacted_blocks, replica.scalars[0].compaction_groups) == (5, 1)


#: Reservations of 8 blocks each in a pool of 20: the first ends early, or the second.
@pytest.mark.parametrize(("requests", "moved"), [(((0, 31, 2), (0, 8, 25)), 8), (((0, 8, 25), (0, 31, 2)), 0)])
def test_b21_one_hole_and_one_move_or_none(requests: tuple[tuple[int, int, int], ...], moved: int) -> None:
    """(i) One hole of 8 below a row of 8, one move allowed: done, and all that is free is one run. (ii) Free blocks at
    the pool's end only are no hole, however many a row reserves and does not use.
    """
    config = reserved(20, "threshold", compaction_ratio=0.25, compaction_max_moves=1)
    watch, replica = watched(config, Requests(requests), backend_of("cpu"))
    assert replica.scalars[0].compacted_blocks == moved
    assert replica.scalars[0].compaction_groups == min(moved, 1)
    assert watch.moves == ([[[9 + at, 1 + at] for at in range(8)]] if moved else [])


def random_requests() -> Requests:
    drawn = random.Random(0)
    return Requests(tuple((0, drawn.randint(1, 24), drawn.choice((1, 2, 6, 20))) for _ in range(20)))


@pytest.mark.parametrize("policy", ["orca-oracle", "orca-pow2"])
@pytest.mark.parametrize(("compaction", "pager"), [("demand", {}), ("threshold", {"compaction_ratio": 0.0})])
@pytest.mark.parametrize("device", DEVICES)
def test_tokens_are_those_of_a_plain_forward_and_decisions_replay(
    device: str, policy: str, compaction: str, pager: dict[str, object]
) -> None:
    config = reserved(24, compaction, 4, policy, **pager)
    replica, seen = check_run(backend_of(device), config, random_requests(), {})
    assert set(seen.kinds) == {"compact"}
    assert replica.scalars[0].compacted_blocks == seen.kinds["compact"]


def test_tokens_do_not_depend_on_the_schedule_of_the_device() -> None:
    for seed in range(3):
        watched(reserved(25, "demand"), HOLES, LazyBackend(seed))


def test_without_its_moves_a_reservation_is_read_where_nothing_is() -> None:
    def unmoved(executor: Any) -> None:
        executor.moves.carry_out = lambda plan: None

    _, executor, _ = run(reserved(25, "demand"), CpuBackend(), requests=HOLES, lockstep=True, before=unmoved)
    assert executor.sequences != wanted(requests=HOLES)

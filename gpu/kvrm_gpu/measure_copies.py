"""Copies: memory on each side of the link and within the device, and the planner's groups by each route."""

from __future__ import annotations

from functools import partial
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend
from kvrm_gpu.block_order import StreamClock
from kvrm_gpu.kv_pool import KvPool, KvShape
from kvrm_gpu.llama import Llama
from kvrm_gpu.measure_kernels import dense_pass
from kvrm_gpu.measure_points import Point, Stopwatch
from kvrm_gpu.profile_scale import Scale
from kvrm_gpu.transfer import Route, Space, TransferEngine

#: Bytes of one copy. The largest stays within the cache of a large CPU, where the small models' working sets are.
SIZES = {"cpu": (1 << 10, 1 << 14, 1 << 18, 1 << 21), "cuda": (1 << 12, 1 << 18, 1 << 24, 1 << 28)}
#: Sources in turn, so that a copy does not always find its bytes in the innermost cache.
ROTATE = 4


def measure_memory(backend: Backend, repeats: int) -> list[Point]:
    """One copy of some bytes: host to device, device to host, within the device."""
    watch, stream = Stopwatch(backend), backend.stream()
    points = []
    for size in SIZES.get(backend.name, SIZES["cpu"]):
        devices = [backend.zeros((size,), torch.uint8) for _ in range(ROTATE + 1)]
        host = backend.pinned((size,), torch.uint8)
        turn = iter(range(1 << 30))

        def within(devices: list[torch.Tensor] = devices, turn: object = turn) -> None:
            at = next(turn) % ROTATE  # type: ignore[call-overload]  # an iterator of int
            backend.copy(devices[-1], devices[at], stream)

        for kind, work in (
            ("h2d", partial(backend.upload, devices[0], host, stream)),
            ("d2h", partial(backend.download, host, devices[0], stream)),
            ("d2d", within),
        ):
            points.append(Point.of("copy", kind, watch.samples(work, repeats=repeats), bytes=size))
    return points


def measure_routes(backend: Backend, model: Llama, scale: Scale, repeats: int) -> list[Point]:
    """Groups of blocks within the device, all layers: segments x blocks a group, by every route that works here.

    Each move follows a pass of the model, as it does in a step.
    """
    watch, stream = Stopwatch(backend), backend.stream()
    blocks = scale.slots * scale.limit_tokens // scale.block_size_tokens
    shape = KvShape.of(model.spec, scale.block_size_tokens)
    rows = torch.zeros(scale.slots, dtype=torch.int64, device=backend.device)
    between = partial(backend.run, stream, partial(dense_pass, model, rows))
    points = []
    for route in get_args(Route):
        clock = StreamClock(backend)
        come, go = (Space(KvPool(backend, shape, blocks), clock) for _ in range(2))
        engine = TransferEngine(backend, clock, stream, route)
        for groups, run in ((1, 1), (1, 16), (8, 1), (8, 16), (32, 1), (32, 4), (64, 2)):
            if groups * run > blocks:
                continue
            table = _groups(groups, run, blocks)
            work = partial(engine.move, come, go, table)
            taken = watch.samples(work, repeats=repeats, between=between)
            x = {"segments": groups * shape.layers, "blocks": groups * run, "groups": groups}
            points.append(Point.of("transfer", route, taken, **x))
    return points


def _groups(groups: int, run: int, blocks: int) -> NDArray[np.int64]:
    """Runs in a shuffled order, so that no two groups abut on both sides."""
    starts = np.random.default_rng(0).permutation(blocks // run)[:groups] * run + 1
    table = np.empty((groups, 3), np.int64)
    table[:, 0] = starts
    table[:, 1] = np.arange(groups) * run
    table[:, 2] = run
    return table

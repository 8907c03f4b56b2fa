"""Copies: memory on each side of the link (one way, and both ways at once) and within the device, and the planner's
groups by each route.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend, Stream
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
#: Copies the other way that a copy runs beside: more than one where streams run at the same time, so that the link is
#: never free of them, however much longer the measured one takes. One thread that copies has to do them first.
OPPOSITE = {"cpu": 1, "cuda": 3}

Copy = Callable[[Stream], None]


def measure_memory(backend: Backend, repeats: int) -> list[Point]:
    """One copy of some bytes: host to device, device to host, within the device; and each way of the link while copies
    run the other way (``h2d_duplex``, ``d2h_duplex``).
    """
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
        back = backend.pinned((size,), torch.uint8)
        up, down = partial(backend.upload, devices[0], host), partial(backend.download, back, devices[1])
        for kind, measured, opposite in (("h2d_duplex", up, down), ("d2h_duplex", down, up)):
            taken = _both_ways(backend, measured, opposite, repeats)
            points.append(Point.of("copy", kind, taken, bytes=size))
    return points


def _both_ways(backend: Backend, measured: Copy, opposite: Copy, repeats: int, warmup: int = 2) -> list[int]:
    """Nanoseconds of a copy while copies the other way run as well, from before any is enqueued to its own end."""
    clock = Stopwatch(backend).clock
    stream, other, end = backend.stream(), backend.stream(), backend.event("copy")
    taken = []
    for at in range(warmup + repeats):
        backend.finish()
        begun = clock()
        for _ in range(OPPOSITE.get(backend.name, OPPOSITE["cpu"])):
            opposite(other)
        measured(stream)
        backend.record(end, stream)
        backend.synchronize(end)
        if at >= warmup:
            taken.append(clock() - begun)
    backend.finish()
    return taken


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

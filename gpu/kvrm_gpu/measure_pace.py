"""How fast the machine is just now: two yardsticks beside each step, and step times as on an undisturbed machine.

A CPU that is shared runs the same instructions at different speeds, for seconds at a time: a neighbour takes half of a
core, or of the cache. CPU time does not hide that, and it slows many small operations by more than long loops. So two
fixed pieces of work are timed after each step, outside of its time: *operations* (a layer on two rows: calls and small
products, as in the host's part and a decode step) and *loop* (a chunk of attention). Each part of the step is divided
by how much slower than undisturbed its yardstick was (:data:`OPERATIONS_SHARE`). What the undisturbed machine needs is
kept in the profile, so that a validation compares with the machine as it was calibrated. A device of its own has no
yardstick: its pace is 1.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend
from kvrm_gpu.device_executor import DeviceExecutor
from kvrm_gpu.kv_pool import KvPool, KvShape
from kvrm_gpu.live_attention import chunk_attention
from kvrm_gpu.live_cpu import LiveCpuBackend
from kvrm_gpu.llama import Llama
from kvrm_sim import state as st
from kvrm_sim.executor import StepPlan, StepTiming

YARDSTICKS = ("operations", "loop")
#: Share of a part that slows down as *operations* do; the rest does as *loop* does. Attention is that of a decode
#: step, loops over memory that neighbours push out of the cache: beside other work its pace was between the two. Over
#: prompts it is all loop. The dense part holds both calls and products.
OPERATIONS_SHARE = {
    "host": 1.0, "commit": 1.0, "launch": 1.0, "transport": 1.0, "attention": 0.4, "dense": 0.5, "collectives": 0.5,
}  # fmt: skip
#: Rows of the yardstick's layer, tokens of its chunk and of the chunk's prefix.
ROWS, CHUNK, PREFIX = 2, 12, 48
#: Steps over which the pace is smoothed: a slow spell lasts longer, a single interruption does not count.
SMOOTH = 7
#: Which percentile of the warm-up's samples stands for the undisturbed machine.
UNDISTURBED_PERCENT = 5.0

Floats = NDArray[np.float64]


class Yardstick:
    """Call :meth:`sample` after each step. Until :meth:`settle`, after a warm-up, every pace is 1."""

    def __init__(self, backend: Backend, model: Llama, undisturbed_ns: Mapping[str, float] | None = None) -> None:
        """``undisturbed_ns``: by the names of YARDSTICKS, from a profile; else the warm-up's fastest samples."""
        self.used = isinstance(backend, LiveCpuBackend)
        self._model = model
        self._known = undisturbed_ns
        self._undisturbed: Floats | None = None
        self._warm_up: list[tuple[int, int]] = []
        self._recent: deque[tuple[int, int]] = deque(maxlen=SMOOTH)
        self._paces: list[Floats] = []
        if self.used:
            spec = model.spec
            pages = -(-(CHUNK + PREFIX) // 16)
            self._cache = KvPool(backend, KvShape.of(spec, 16), pages).layer(0)
            self._query = torch.ones(CHUNK, spec.heads, spec.head_dim)
            self._pages = torch.arange(1, pages + 1)
            self._tokens = torch.zeros(ROWS, dtype=torch.int64)

    @property
    def undisturbed_ns(self) -> dict[str, float] | None:
        """What each yardstick takes on the undisturbed machine; None before it is settled and where there is none."""
        if self._undisturbed is None:
            return None
        return dict(zip(YARDSTICKS, self._undisturbed.tolist(), strict=True))

    def sample(self) -> None:
        """Time both yardsticks once."""
        if not self.used:
            return
        begun = time.thread_time_ns()
        self._operations()
        between = time.thread_time_ns()
        chunk_attention(self._query, self._cache, self._pages, PREFIX)
        taken = between - begun, time.thread_time_ns() - between
        self._recent.append(taken)
        if self._undisturbed is None:
            self._warm_up.append(taken)

    def _operations(self) -> None:
        model = self._model
        with torch.no_grad():
            hidden = model.embed(self._tokens)
            query, _, _ = model.project(model.layers[0], hidden, self._tokens)
            model.finish_layer(model.layers[0], hidden, query)

    def settle(self) -> None:
        """The steps so far warmed the machine up: from now on they are compared with the undisturbed one."""
        if self._known is not None and self.used:
            self._undisturbed = np.array([self._known[name] for name in YARDSTICKS])
        elif self._warm_up:
            self._undisturbed = np.percentile(np.array(self._warm_up, np.float64), UNDISTURBED_PERCENT, axis=0)

    def pace(self) -> tuple[float, float]:
        """How many times slower than undisturbed, by yardstick, over the last few steps."""
        if self._undisturbed is None:
            return 1.0, 1.0
        paces = np.median(np.array(self._recent, np.float64), axis=0) / self._undisturbed
        self._paces.append(paces)
        return float(paces[0]), float(paces[1])

    def report(self) -> dict[str, Any] | None:
        """By yardstick: ns on the undisturbed machine, and p10, p50, p90 of the paces. None without yardsticks."""
        if not self._paces or self._undisturbed is None:
            return None
        low, middle, high = np.percentile(np.array(self._paces), (10, 50, 90), axis=0)
        return {
            name: {"undisturbed_ns": float(self._undisturbed[at]), "p10": low[at], "p50": middle[at], "p90": high[at]}
            for at, name in enumerate(YARDSTICKS)
        }


def undisturbed_timing(timing: StepTiming, pace: tuple[float, float], *, mixed: bool) -> StepTiming:
    """The step's parts, each divided by its pace. ``mixed``: it computes prompts."""
    operations, loop = pace
    parts = []
    for part, ns in zip(st.PARTS, timing.exposed_ns, strict=True):
        share = 0.0 if mixed and part == "attention" else OPERATIONS_SHARE[part]
        parts.append(round(ns / (share * operations + (1.0 - share) * loop)))
    return StepTiming(tuple(parts))


class PacedExecutor:
    """A device whose times are those of the undisturbed machine. ``raw_ns``: whole steps, as they were."""

    def __init__(self, device: DeviceExecutor, yardstick: Yardstick) -> None:
        self._device = device
        self._yardstick = yardstick
        self._mixed: dict[int, bool] = {}
        self.raw_ns: list[int] = []

    @property
    def sequences(self) -> dict[int, list[int]]:
        """The device's: prompt and delivered tokens by request row."""
        return self._device.sequences

    def begin(self) -> None:
        """Forget earlier requests: their rows come again."""
        self._device.sequences.clear()
        self.raw_ns.clear()
        self._device.resume()

    def submit(self, plan: StepPlan) -> int:
        """Start the step."""
        ticket = self._device.submit(plan)
        self._mixed[ticket] = bool(plan.chunks)
        return ticket

    def wait(self, ticket: int) -> StepTiming:
        """The step's time, divided by the pace just after it."""
        timing = self._device.wait(ticket)
        self.raw_ns.append(timing.duration_ns)
        self._yardstick.sample()
        return undisturbed_timing(timing, self._yardstick.pace(), mixed=self._mixed.pop(ticket))

    def resume(self) -> None:
        """As the device's: what the host did since the last step is no step's time."""
        self._device.resume()

    def poll_transfers(self) -> Sequence[int]:
        """The device's."""
        return self._device.poll_transfers()

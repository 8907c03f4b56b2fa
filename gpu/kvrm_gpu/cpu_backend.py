"""The CPU as a device: every call is done when it returns, so events only keep the time.

It is stricter than it needs to be, so that what runs here also runs on CUDA: host memory counts as pinned only when
:meth:`CpuBackend.pinned` gave it out, a capture refuses what CUDA cannot capture, and a replay reads the buffers
that were captured and no others. Left out: any concurrency (the lazy backend of the tests is for that).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from kvrm_gpu.backend import Backend, CopyPair, Event, Stream, Work
from kvrm_gpu.ops import reference_ops
from kvrm_gpu.recording import Recorder, current_recorder


class CpuStream:
    """A stream; nothing is ever pending on it."""


class CpuEvent:
    """When it was last recorded, by the monotonic clock."""

    def __init__(self) -> None:
        self.time_ns: int | None = None


class CpuBackend(Backend):
    """torch on the CPU."""

    name = "cpu"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.ops = reference_ops()
        self._default = CpuStream()
        self._pinned: dict[int, torch.Tensor] = {}

    @property
    def capturing(self) -> bool:
        return current_recorder() is not None

    @property
    def default_stream(self) -> Stream:
        return self._default

    def stream(self) -> Stream:
        return CpuStream()

    def event(self, label: str = "") -> Event:  # noqa: ARG002  # nothing is pending that it could guard
        return CpuEvent()

    def record(self, event: Event, stream: Stream) -> None:  # noqa: ARG002  # one thread: the stream is empty
        event.time_ns = time.perf_counter_ns()

    def wait(self, stream: Stream, event: Event) -> None:
        """Whatever was recorded is done."""

    def synchronize(self, event: Event) -> None:
        """Whatever was recorded is done."""

    def finish(self) -> None:
        """Every stream is empty."""

    def elapsed_ns(self, start: Event, end: Event) -> int:
        if start.time_ns is None or end.time_ns is None:
            raise ValueError("elapsed_ns: an event was never recorded")
        return int(end.time_ns - start.time_ns)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros(tuple(shape), dtype=dtype)
        self._pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def run(self, stream: Stream, work: Work) -> None:  # noqa: ARG002  # one thread: the stream is empty
        with torch.no_grad():
            work()

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:  # noqa: ARG002
        destination.copy_(source)

    def _copy_batch(self, pairs: Sequence[CopyPair], stream: Stream) -> None:
        for destination, source in pairs:
            self._copy(destination, source, stream)

    def _capture(self, stream: Stream, body: Work) -> Any:  # noqa: ARG002
        recorder = Recorder()
        with torch.no_grad(), recorder:
            body()
        return recorder

    def _replay(self, payload: Any, stream: Stream) -> None:  # noqa: ARG002
        with torch.no_grad():
            payload.replay()

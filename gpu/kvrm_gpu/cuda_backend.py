"""CUDA through torch: streams, events, graphs, and the driver's batch copy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from kvrm_gpu.backend import Backend, CopyPair, Event, Stream, Work
from kvrm_gpu.batch_copy import BatchCopy
from kvrm_gpu.ops import triton_ops

#: Runs of a body before its capture: they compile kernels and let libraries take their workspaces.
WARM_UP_RUNS = 2


class CudaBackend(Backend):
    """One CUDA device. Raises RuntimeError when torch sees none."""

    name = "cuda"

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self.ops = triton_ops()
        self._default = torch.cuda.default_stream(self.device)
        self._batch: BatchCopy | None = None
        # Graphs are replayed one after another on one stream and keep nothing between replays outside static
        # buffers, so all of them may share the memory of their temporaries.
        self._graph_pool = torch.cuda.graph_pool_handle()

    @property
    def capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    @property
    def default_stream(self) -> Stream:
        return self._default

    def stream(self) -> Stream:
        return torch.cuda.Stream(self.device)

    def event(self, label: str = "") -> Event:  # noqa: ARG002  # CUDA's events have no names
        return torch.cuda.Event(enable_timing=True)

    def record(self, event: Event, stream: Stream) -> None:
        event.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def synchronize(self, event: Event) -> None:
        event.synchronize()

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)

    def elapsed_ns(self, start: Event, end: Event) -> int:
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1e6)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_pinned())

    def named_range(self, name: str) -> AbstractContextManager[Any]:
        ranged: AbstractContextManager[Any] = torch.cuda.nvtx.range(name)
        return ranged

    def run(self, stream: Stream, work: Work) -> None:
        with torch.no_grad(), torch.cuda.stream(stream):
            work()

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Zeroed device memory; filled when this returns: torch's streams do not wait for the default one."""
        tensor = super().zeros(shape, dtype)
        torch.cuda.current_stream(self.device).synchronize()
        return tensor

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        with torch.cuda.stream(stream):
            destination.copy_(source, non_blocking=True)

    def _copy_batch(self, pairs: Sequence[CopyPair], stream: Stream) -> None:
        if self._batch is None:
            self._batch = BatchCopy()
        self._batch.submit(pairs, stream.cuda_stream)

    def _capture(self, stream: Stream, body: Work) -> Any:
        for _ in range(WARM_UP_RUNS):
            self.run(stream, body)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Another thread (a profiler, a loader) may allocate meanwhile: only this one's calls can break the capture.
        with (
            torch.no_grad(),
            torch.cuda.graph(graph, pool=self._graph_pool, stream=stream, capture_error_mode="thread_local"),
        ):
            body()
        return graph

    def _replay(self, payload: Any, stream: Stream) -> None:
        with torch.cuda.stream(stream):
            payload.replay()

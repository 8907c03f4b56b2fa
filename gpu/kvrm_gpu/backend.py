"""One interface to what runs the work: streams, events, pinned memory, copies, captured graphs, time.

Everything that touches device memory goes through :class:`Backend`, so that the same code runs on CUDA, on the CPU,
and under the tests' adversarial scheduler. Work on one stream runs in order; between streams, and between the device
and the host, only events order anything. Three implementations: cuda_backend.py, cpu_backend.py, and the lazy one of
the tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from kvrm_gpu.errors import CaptureError, PageableMemoryError, StreamError
from kvrm_gpu.ops import Ops
from kvrm_sim.cost import BATCH_DESCRIPTORS

#: What a backend hands out; opaque to everybody else.
Stream: TypeAlias = Any
Event: TypeAlias = Any

Work: TypeAlias = Callable[[], None]
Inputs: TypeAlias = Mapping[str, torch.Tensor]
CopyPair: TypeAlias = tuple[torch.Tensor, torch.Tensor]

#: Descriptors in one call of the driver's batch copy, as its cost counts them; crashes were seen above about 50,000.
MAX_BATCH_DESCRIPTORS = BATCH_DESCRIPTORS


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured body. ``inputs``: name -> (address, shape, strides, dtype) of each static buffer that it reads."""

    payload: Any
    inputs: Mapping[str, tuple[object, ...]]


def identity(tensor: torch.Tensor) -> tuple[object, ...]:
    """What a captured graph froze of a buffer."""
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


class Backend(ABC):
    """Streams, events, pinned memory, asynchronous copies, capture and replay, and time."""

    name: str
    device: torch.device
    #: The kernels of this backend: Triton's, or the torch references.
    ops: Ops

    @property
    @abstractmethod
    def capturing(self) -> bool:
        """Whether a capture is being made now."""

    @property
    @abstractmethod
    def default_stream(self) -> Stream:
        """The stream that the driver's batch copy refuses (CUDA's legacy stream)."""

    @abstractmethod
    def stream(self) -> Stream:
        """A new stream."""

    @abstractmethod
    def event(self, label: str = "") -> Event:
        """A new event with a time; one that was never recorded counts as done. ``label`` says what it guards."""

    @abstractmethod
    def record(self, event: Event, stream: Stream) -> None:
        """Record what is on the stream so far."""

    @abstractmethod
    def wait(self, stream: Stream, event: Event) -> None:
        """Hold later work of the stream until the event; the host goes on."""

    @abstractmethod
    def synchronize(self, event: Event) -> None:
        """Hold the host until the event."""

    @abstractmethod
    def finish(self) -> None:
        """Hold the host until every stream is empty."""

    @abstractmethod
    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Nanoseconds between two events that are done."""

    @abstractmethod
    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Zeroed page-locked host memory."""

    @abstractmethod
    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether this is (a view of) page-locked host memory."""

    @abstractmethod
    def run(self, stream: Stream, work: Work) -> None:
        """Enqueue the device work that ``work`` launches."""

    @abstractmethod
    def _copy(self, destination: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Enqueue one copy; the checks are done."""

    @abstractmethod
    def _copy_batch(self, pairs: Sequence[CopyPair], stream: Stream) -> None:
        """Enqueue at most ``MAX_BATCH_DESCRIPTORS`` copies in one call; the checks are done."""

    @abstractmethod
    def _capture(self, stream: Stream, body: Work) -> Any:
        """Capture; the payload of the graph."""

    @abstractmethod
    def _replay(self, payload: Any, stream: Stream) -> None:
        """Enqueue a captured body."""

    def named_range(self, name: str) -> AbstractContextManager[Any]:
        """A stretch of the host's time that profilers show by this name: torch.profiler here, NVTX on CUDA."""
        ranged: AbstractContextManager[Any] = torch.profiler.record_function(name)
        return ranged

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Zeroed device memory."""
        return torch.zeros(tuple(shape), dtype=dtype, device=self.device)

    def upload(self, destination: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Host to device, asynchronously. Raises PageableMemoryError, CaptureError (it would freeze the address)."""
        self._check_host_copy(source)
        _check_pair(destination, source)
        self._copy(destination, source, stream)

    def download(self, destination: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Device to host, asynchronously: read it after an event. Raises PageableMemoryError, CaptureError."""
        self._check_host_copy(destination)
        _check_pair(destination, source)
        self._copy(destination, source, stream)

    def copy(self, destination: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Within the device, asynchronously."""
        _check_pair(destination, source)
        self._copy(destination, source, stream)

    def copy_batch(self, pairs: Sequence[CopyPair], stream: Stream) -> int:
        """Many copies of contiguous memory through the driver's batch call; returns how many calls it took.

        Raises StreamError on the default stream and CaptureError inside a capture: the driver rejects both, and a
        rejected call inside a capture would drop the copies silently.
        """
        if stream == self.default_stream:
            raise StreamError("a batch copy cannot go to the default stream: the driver rejects it")
        if self.capturing:
            raise CaptureError("a batch copy cannot be captured: the driver would drop it silently")
        for destination, source in pairs:
            _check_pair(destination, source)
            if not (destination.is_contiguous() and source.is_contiguous()):
                raise ValueError("a batch copy takes contiguous memory on both sides")
        calls = 0
        for first in range(0, len(pairs), MAX_BATCH_DESCRIPTORS):
            self._copy_batch(pairs[first : first + MAX_BATCH_DESCRIPTORS], stream)
            calls += 1
        return calls

    def capture(self, stream: Stream, body: Work, inputs: Inputs) -> Graph:
        """Capture ``body``. It runs at least once meanwhile: call this with a descriptor that is all padding.

        ``inputs`` are the static buffers that the host rewrites between replays. Raises CaptureError for what CUDA
        cannot capture (reading a value on the host, shapes that depend on data, copies from the host).
        """
        if self.capturing:
            raise CaptureError("a capture inside a capture")
        payload = self._capture(stream, body)
        return Graph(payload=payload, inputs={name: identity(tensor) for name, tensor in inputs.items()})

    def replay(self, graph: Graph, stream: Stream, inputs: Inputs) -> None:
        """Enqueue a captured body. Raises CaptureError when an input is not the very buffer that was captured."""
        if inputs.keys() != graph.inputs.keys():
            raise CaptureError(f"captured with inputs {sorted(graph.inputs)}, replayed with {sorted(inputs)}")
        for name, tensor in inputs.items():
            if identity(tensor) != graph.inputs[name]:
                raise CaptureError(f"input {name!r} is not the buffer that was captured: write into that one instead")
        self._replay(graph.payload, stream)

    def _check_host_copy(self, host: torch.Tensor) -> None:
        if self.capturing:
            raise CaptureError("a copy from or to the host inside a capture would freeze the host's address")
        if not self.is_pinned(host):
            raise PageableMemoryError(
                f"an asynchronous copy needs pinned host memory; this {tuple(host.shape)} {host.dtype} is pageable"
            )


def _check_pair(destination: torch.Tensor, source: torch.Tensor) -> None:
    if destination.shape != source.shape or destination.dtype != source.dtype:
        raise ValueError(
            f"copy of {tuple(source.shape)} {source.dtype} into {tuple(destination.shape)} {destination.dtype}"
        )

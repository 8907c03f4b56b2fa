"""Results of steps on their way to the host: one copy a step behind it on its stream, read after its event."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend, Event, Stream
from kvrm_gpu.errors import DeviceError


class ResultRing:
    """``depth`` pinned buffers; as many steps may be in flight before the first is read."""

    def __init__(self, backend: Backend, source: torch.Tensor, stream: Stream, depth: int = 2) -> None:
        self._backend = backend
        self._source = source
        self._stream = stream
        self._buffers = [backend.pinned(source.shape, source.dtype) for _ in range(depth)]
        self._done: list[Event] = [backend.event("results") for _ in range(depth)]
        self._unread = [False] * depth
        self._next = 0

    def fetch(self) -> int:
        """Enqueue the copy of the static results, before the next step overwrites them. Returns its number.

        Raises DeviceError when the buffer's last results were not taken: they would be lost.
        """
        at = self._next
        if self._unread[at]:
            raise DeviceError(f"results: {len(self._buffers)} steps are in flight and none was read")
        self._next = (at + 1) % len(self._buffers)
        self._unread[at] = True
        self._backend.download(self._buffers[at], self._source, self._stream)
        self._backend.record(self._done[at], self._stream)
        return at

    def take(self, number: int) -> NDArray[np.int64]:
        """Wait for a step's results and return a copy of them, int64."""
        if not self._unread[number]:
            raise DeviceError(f"results {number} were taken already, or never fetched")
        self._backend.synchronize(self._done[number])
        self._unread[number] = False
        return np.array(self._buffers[number].numpy(), dtype=np.int64)

"""Capture on the CPU: torch's operations and the kernels that a body launches, recorded and replayed in place.

Replay runs each recorded operation again on the same tensors and puts the result into the memory of the first one,
so that it is bit-equal to running the body, and reads whatever the static buffers hold by then. What CUDA cannot
capture is refused by what torch itself says of an operation: its output depends on data, or its shape does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvrm_gpu.errors import CaptureError

_current: list[Recorder] = []


def current_recorder() -> Recorder | None:
    """The recorder of the capture that is being made, if any."""
    return _current[-1] if _current else None


def call_kernel(kernel: Callable[..., None], /, *args: Any, **kwargs: Any) -> None:
    """Run a kernel's reference; inside a capture, record it whole, whatever torch operations it is made of."""
    recorder = current_recorder()
    if recorder is None:
        kernel(*args, **kwargs)
    else:
        recorder.kernel(kernel, args, kwargs)


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is an extra: without it this base is Any
    """Records what runs inside ``with``; :meth:`replay` runs it again."""

    def __init__(self) -> None:
        super().__init__()
        #: What was recorded, in order; each writes where it wrote when it was captured.
        self.calls: list[Callable[[], object]] = []
        self._inside_kernel = False

    def __enter__(self) -> Recorder:
        _current.append(self)
        super().__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        _current.remove(self)

    def kernel(self, kernel: Callable[..., None], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Run and record one kernel."""
        self._inside_kernel = True
        try:
            kernel(*args, **kwargs)
        finally:
            self._inside_kernel = False
        self.calls.append(lambda: kernel(*args, **kwargs))

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Torch calls this for each of its operations."""
        kwargs = kwargs or {}
        if self._inside_kernel:
            return func(*args, **kwargs)
        _refuse_data_dependence(func, args)
        result = func(*args, **kwargs)
        self._record(func, args, kwargs, result)
        return result

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        if func._schema.is_mutable:
            self.calls.append(lambda: func(*args, **kwargs))
            return
        outputs = _tensors(result)
        storages = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, tuple(kwargs.values())))}
        if all(output.untyped_storage().data_ptr() in storages for output in outputs):
            return  # a view: whoever writes the memory under it is recorded

        def again() -> None:
            for output, value in zip(outputs, _tensors(func(*args, **kwargs)), strict=True):
                output.copy_(value)

        self.calls.append(again)

    def replay(self) -> None:
        """Run everything again, against the same memory."""
        for call in self.calls:
            call()


def _refuse_data_dependence(func: Any, args: tuple[Any, ...]) -> None:
    tags = func.tags
    if torch.Tag.data_dependent_output in tags:
        raise CaptureError(f"{func}: reads a value on the host, which a captured graph cannot")
    indexed = func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
    if indexed:
        if any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors(args[1])):
            raise CaptureError(f"{func}: a mask as an index gives a shape that depends on data")
    elif torch.Tag.dynamic_output_shape in tags:
        raise CaptureError(f"{func}: its shape depends on data, which a captured graph cannot have")


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [tensor for entry in tree for tensor in _tensors(entry)]
    return []

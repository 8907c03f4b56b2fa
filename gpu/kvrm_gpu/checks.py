"""What the kernels' wrappers refuse: a wrong shape, dtype or stride, named, before any address is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

#: What the kernels take. Triton's interpreter computes bfloat16 wrongly, so it is refused there.
FLOATS = (torch.float32, torch.float16, *(() if triton.knobs.runtime.interpret else (torch.bfloat16,)))


def jit(function: Callable[..., None]) -> Any:
    """Triton's compiler, as a decorator that keeps a typed signature for the checker."""
    return triton.jit(function)


def require(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int | None, ...],
    dtype: torch.dtype | tuple[torch.dtype, ...],
    *,
    contiguous_from: int = 0,
) -> None:
    """Raise ValueError unless ``tensor`` has this shape (None: any size) and dtype, dense from one dimension on."""
    if tensor.dim() != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, tensor.shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: shape {tuple(tensor.shape)}, should be ({wanted})")
    allowed = dtype if isinstance(dtype, tuple) else (dtype,)
    if tensor.dtype not in allowed:
        raise ValueError(f"{name}: {tensor.dtype}, should be {' or '.join(map(str, allowed))}")
    expected = 1
    for dimension in range(tensor.dim() - 1, contiguous_from - 1, -1):
        if tensor.shape[dimension] > 1 and tensor.stride(dimension) != expected:
            raise ValueError(f"{name}: strides {tensor.stride()}, should be dense from dimension {contiguous_from} on")
        expected *= tensor.shape[dimension]


def require_power_of_two(name: str, value: int, least: int) -> None:
    """Raise ValueError for a size that the tiles of a kernel cannot have."""
    if value < least or value & (value - 1):
        raise ValueError(f"{name} = {value}: the kernels take powers of two from {least} on")

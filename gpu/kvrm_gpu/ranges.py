"""Named ranges for profilers: which part of a step (``state.PARTS``) a stretch of time belongs to.

The methods and kernels of one executor are wrapped when it is made with ``ranges=True``; without, nothing is in the
way. A range is what the host does: on CUDA it covers the launches, and a captured graph is one range, ``kvrm.launch``,
since no host code runs inside it. Left out: collectives (there are none on one device), and what no part is about (the
check of the descriptor, the stores, the merges), which shows as the rest of its ``kvrm.launch``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from kvrm_gpu.backend import Backend
from kvrm_gpu.llama import Llama
from kvrm_gpu.ops import Kernel
from kvrm_gpu.recording import call_kernel

#: Kernels of the table of operations that a part is about.
KERNEL_PARTS = {"gather_groups": "transport", "paged_attention": "attention", "contiguous_attention": "attention"}
MODEL_METHODS = ("embed", "project", "finish_layer", "greedy")


def range_name(part: str) -> str:
    """What a profiler shows for a part of a step."""
    return f"kvrm.{part}"


def in_range(backend: Backend, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, inside a range named after a part."""
    name = range_name(part)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with backend.named_range(name):
            return function(*args, **kwargs)

    return run


def name_methods(backend: Backend, owner: object, parts: dict[str, str]) -> None:
    """Put methods of one object (name: part) inside ranges; its class stays as it is."""
    for method, part in parts.items():
        setattr(owner, method, in_range(backend, part, getattr(owner, method)))


def with_named_kernels(backend: Backend) -> Backend:
    """A view of a backend (same streams, memory and device) whose kernels are inside ranges, replayed ones too."""
    view = copy.copy(backend)
    named = {name: in_range(backend, part, _bare(getattr(backend.ops, name))) for name, part in KERNEL_PARTS.items()}
    view.ops = replace(backend.ops, **{name: partial(call_kernel, kernel) for name, kernel in named.items()})
    return view


def _bare(kernel: Kernel) -> Kernel:
    """A kernel without its recording: the range goes inside it, so that a replay on the CPU has it too."""
    recorded = isinstance(kernel, partial) and kernel.func is call_kernel
    return kernel.args[0] if recorded else kernel  # type: ignore[attr-defined]  # a partial's own


def with_named_methods(backend: Backend, model: Llama) -> Llama:
    """A view of a model (same weights) whose dense layers are inside ranges."""
    view = copy.copy(model)
    name_methods(backend, view, dict.fromkeys(MODEL_METHODS, "dense"))
    return view

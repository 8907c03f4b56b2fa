"""The CPU backend whose attention and store do only what they should, with a clock on each part of a step.

What is validated here against the cost model has to have a device's shape of cost: live_attention.py has the kernels.
Time is the calling thread's CPU time: what the processor spent on the step, whatever else the machine runs. torch has
to be held to one thread, or work on others goes unseen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kvrm_gpu import live_attention, reference
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.errors import DeviceError
from kvrm_gpu.ops import Kernel
from kvrm_gpu.recording import call_kernel


class PartClock:
    """Nanoseconds spent inside kernels since the last :meth:`reset`, by part (attention, transport)."""

    def __init__(self) -> None:
        self.spent_ns = {"attention": 0, "transport": 0}

    def reset(self) -> None:
        """Start again from 0."""
        self.spent_ns["attention"] = self.spent_ns["transport"] = 0

    def timed(self, part: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The same kernel, its time added to a part."""

        def run(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time_ns()
            result = kernel(*args, **kwargs)
            self.spent_ns[part] += time.thread_time_ns() - begun
            return result

        return run


class LiveCpuBackend(CpuBackend):
    """:class:`CpuBackend` with timed, live-reading kernels; float32 models only."""

    def __init__(self) -> None:
        super().__init__()
        if torch.get_num_threads() != 1:
            raise DeviceError(
                f"torch uses {torch.get_num_threads()} threads: measuring on the CPU needs torch.set_num_threads(1)"
            )
        self.parts = PartClock()
        rows, chunk, stored = (
            self.parts.timed("attention", loop)
            for loop in (live_attention.attend_rows, live_attention.attend_chunk, live_attention.store_rows)
        )
        self.ops = replace(
            self.ops,
            gather_groups=_kernel(self.parts.timed("transport", reference.gather_groups)),
            store_kv=_kernel(partial(live_attention.store_kv, loop=stored)),
            paged_attention=_kernel(partial(live_attention.paged_attention, loop=rows)),
            contiguous_attention=_kernel(partial(live_attention.contiguous_attention, loop=rows)),
        )
        self.chunk_attention = partial(live_attention.chunk_attention, loop=chunk)


def _kernel(kernel: Callable[..., None]) -> Kernel:
    return partial(call_kernel, kernel)

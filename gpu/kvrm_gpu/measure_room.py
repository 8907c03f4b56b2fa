"""Whether a model and the pools that are measured fit what this device has free: asked before any work is done."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from kvrm_gpu.backend import Backend
from kvrm_gpu.live_cpu import LiveCpuBackend
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.errors import ConfigError, DoesNotFitError
from kvrm_sim.memory import GIB, plan_memory
from kvrm_sim.model import ModelSpec

MEMINFO = Path("/proc/meminfo")


def free_bytes(backend: Backend) -> int:
    """Memory that can still be taken: of the device, or of the machine, without what other processes hold."""
    if backend.name == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    for line in MEMINFO.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise DoesNotFitError(f"{MEMINFO}: no MemAvailable, so how much memory is free is unknown")


def require_room(backend: Backend, model: ModelSpec, configs: Iterable[ReplicaConfig]) -> None:
    """Refuse a model that this device cannot run with every policy's pool and staging: all of them are held at once,
    so that repeats can take turns.

    Raises DoesNotFitError, with the sizes, when they are more than is free, and ConfigError for a dtype that this
    backend's kernels do not take.
    """
    _require(backend, model, 0, "")
    if isinstance(backend, LiveCpuBackend) and model.dtype != "float32":
        message = f"model.dtype = {model.dtype!r}: on the CPU only float32 models are measured"
        raise ConfigError(message, "model.dtype", model.dtype)
    plans = [plan_memory(config) for config in configs]
    held = sum(plan.pool_bytes + plan.block_bytes + plan.factors.staging_bytes for plan in plans)
    what = "KV pools and staging"
    if backend.name != "cuda":  # there, pools in host memory are none of the device's
        held += sum((plan.host_blocks + 1) * plan.block_bytes for plan in plans if plan.host_blocks > 0)
        what = "KV pools, those of the host and staging" if any(plan.host_blocks for plan in plans) else what
    _require(backend, model, held, f", {what} of {len(plans)} policies {_gib(held)}")


def _require(backend: Backend, model: ModelSpec, pools_bytes: int, pools: str) -> None:
    weights, free = model.parameters * model.dtype_bytes, free_bytes(backend)
    if weights + pools_bytes > free:
        raise DoesNotFitError(
            f"model {model.name!r} does not fit this device ({backend.name}): weights {_gib(weights)}{pools}, and "
            f"{_gib(free)} are free: take a smaller --model"
            + (", or fewer policies or a smaller --scale" if pools else "")
        )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"

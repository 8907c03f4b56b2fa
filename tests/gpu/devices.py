"""The backends that a test runs on: the CPU always, CUDA where there is a device (else that case is skipped)."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import pytest
import torch

from kvrm_gpu.backend import Backend
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.llama import Llama

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))
DEVICES = ["cpu", CUDA]


def backend_of(device: str) -> Backend:
    if device == "cpu":
        return CpuBackend()
    from kvrm_gpu.cuda_backend import CudaBackend

    return CudaBackend()


def on_cpu(model: Llama) -> Llama:
    """A copy of a model whose weights are on the CPU, for the oracle."""
    moved = copy.copy(model)
    for name in ("embedding", "final_norm", "head", "cosines", "sines"):
        setattr(moved, name, getattr(model, name).cpu())
    moved.layers = [
        replace(
            layer,
            **{
                field.name: getattr(layer, field.name).cpu()
                for field in fields(layer)
                if getattr(layer, field.name) is not None
            },
        )
        for layer in model.layers
    ]
    return moved

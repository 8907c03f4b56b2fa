"""The whole step with Triton's kernels in the place of the references: tokens are those of a plain forward."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import pytest

from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.ops import Ops, triton_ops
from kvrm_gpu.recording import call_kernel
from tests.gpu.device_cases import DEVICE
from tests.gpu.served import config_of, run, wanted

pytestmark = pytest.mark.skipif(DEVICE.type == "cuda", reason="with a device test_device_executor runs the kernels")


class InterpretedBackend(CpuBackend):
    """The CPU, with Triton's kernels under the interpreter."""

    def __init__(self) -> None:
        super().__init__()
        kernels = triton_ops()
        self.ops = Ops(**{field.name: partial(call_kernel, getattr(kernels, field.name)) for field in fields(Ops)})


@pytest.mark.parametrize(("policy", "pool_blocks"), [("graph-paged", 7), ("kv-rm", 7), ("static", 24)])
def test_tokens_through_the_kernels(policy: str, pool_blocks: int) -> None:
    """Two requests of unequal length, so that the batch ends with padding."""
    config = config_of(policy, pool_blocks, **({} if policy == "static" else {"token_budget": 16}))
    replica, executor, _ = run(config, InterpretedBackend(), rows=2)
    assert executor.sequences == {row: wanted()[row] for row in range(2)}
    assert replica.scalars[0].graph_steps > 0

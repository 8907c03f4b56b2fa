"""The whole step with Triton's kernels in the place of the references: tokens are those of a plain forward."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import pytest

from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.ops import Ops, triton_ops
from kvrm_gpu.recording import call_kernel
from tests.gpu.device_cases import DEVICE
from tests.gpu.far_oracle import FarOracle
from tests.gpu.served import config_of, run, wanted
from tests.gpu.test_device_far_history import CLOSE, far_config, model
from tests.gpu.test_device_sharing import requests_of, sharing

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


@pytest.mark.parametrize("policy", ["kv-rm-window", "kv-rm model scope"])
def test_tokens_through_the_kernels_with_far_history(policy: str) -> None:
    """The first two requests reach five blocks and keep three: positions are ahead of lengths."""
    config = far_config(policy, 8, 1)
    assert config.policy.far_history is not None
    oracle = FarOracle(config.policy.far_history)
    replica, executor, _ = run(config, InterpretedBackend(), rows=2, watch=lambda _, plan: oracle.watch(plan))
    behind = [oracle.behind(model("cpu"), row, executor.sequences[row]) for row in range(2)]
    assert max(ours for ours, _ in behind) < CLOSE
    assert max(plain for _, plain in behind) > 0.1
    assert replica.scalars[0].graph_steps > 0


def test_tokens_through_the_kernels_with_shared_prefixes() -> None:
    """The second prompt is the first one: its tail is copied by the gather's kernel, within one pool."""
    requests = requests_of(8)
    replica, executor, _ = run(sharing("graph-paged", "copy"), InterpretedBackend(), rows=2, requests=requests)
    assert executor.sequences == {row: wanted(requests=requests)[row] for row in range(2)}
    assert replica.scalars[0].copied_blocks == 1

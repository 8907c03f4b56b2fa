"""The kernels that receive a descriptor equal their oracles."""

from __future__ import annotations

import pytest
import torch

from kvrm_gpu import commit_kernels, reference
from kvrm_gpu.commit import Committer
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.wire import ECHO_WORDS, WireShape
from tests.gpu.descriptors import BLOCK_SIZE, Scene
from tests.gpu.device_cases import DEVICE


@pytest.mark.parametrize(
    "wire",
    [
        WireShape(slots=1, table_width=1, group_capacity=1, patch_capacity=1),
        WireShape(slots=5, table_width=9, group_capacity=4, patch_capacity=20),
        WireShape(slots=7, table_width=300, group_capacity=3, patch_capacity=2500),
    ],
    ids=["least", "odd", "wide"],
)
def test_patches_and_check(wire: WireShape) -> None:
    """Junk in what is not in use (patches, groups) changes nothing."""
    backend = CpuBackend()
    committer = Committer(backend, wire, backend.stream(), block_size=BLOCK_SIZE)
    scene = Scene(wire, 6, pool_blocks=3000)
    previous = torch.zeros((wire.num_bytes,), dtype=torch.uint8, device=DEVICE)
    for _ in range(3):
        scene.step()
        commitment = committer.commit(scene.descriptor, scene.tokens, scene.owners, scene.counts, delta=True)
        got = previous
        got[: commitment.uploaded_bytes] = committer.resident[: commitment.uploaded_bytes].to(DEVICE)
        wanted = got.clone()
        commit_kernels.apply_patches(got, wire=wire)
        reference.apply_patches(wanted, wire=wire)
        assert torch.equal(got, wanted)
        echo = torch.full((ECHO_WORDS,), -1, dtype=torch.int64, device=DEVICE)
        oracle = torch.full((ECHO_WORDS,), -1, dtype=torch.int64, device=DEVICE)
        commit_kernels.check_descriptor(got, echo, wire=wire)
        reference.check_descriptor(wanted, oracle, wire=wire)
        assert torch.equal(echo, oracle)
        committer.verify(echo.cpu(), commitment)
        previous = got


def test_a_buffer_of_another_wire_is_refused() -> None:
    wire = WireShape(slots=2, table_width=3, group_capacity=1, patch_capacity=1)
    buffer = torch.zeros(wire.num_bytes + 256, dtype=torch.uint8, device=DEVICE)
    echo = torch.zeros(ECHO_WORDS, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="buffer: shape"):
        commit_kernels.apply_patches(buffer, wire=wire)
    with pytest.raises(ValueError, match="buffer: shape"):
        commit_kernels.check_descriptor(buffer, echo, wire=wire)

"""The CPU's compiled loops against the torch references: same results, and timed apart from the call around them."""

from __future__ import annotations

import pytest
import torch

from kvrm_gpu import live_attention, reference
from kvrm_gpu.calibrate import backend_for

BLOCKS, BLOCK, HEADS, WIDTH = 6, 16, 2, 32


def cache(layers: int = 1) -> torch.Tensor:
    """A layer of a pool in which the blocks of a layer lie apart, as in block-major order when ``layers`` > 1."""
    return torch.zeros(BLOCKS, layers, 2, BLOCK, HEADS, WIDTH)[:, 0]


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("staged", [False, True])
def test_each_rows_entry_is_stored_where_the_reference_stores_it(layers: int, staged: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    fused = torch.randn(5, 3, HEADS, WIDTH, generator=generator)
    key, value = fused[:, 1], fused[:, 2]
    slots = torch.tensor([17, 40, 0, -1, BLOCKS * BLOCK - 1])
    stage_slots = torch.tensor([-1, 3, 64, -16, 16]) if staged else None
    found, wanted = ([cache(layers), cache(layers)] for _ in range(2))
    for store, (pool, staging) in ((live_attention.store_kv, found), (reference.store_kv, wanted)):
        store(key, value, slots, pool, stage_slots, staging if staged else None)
    for own, right in zip(found, wanted, strict=True):
        assert torch.equal(own, right)
    assert bool(found[1].any()) == staged


def test_only_the_loop_counts_as_attention() -> None:
    """The call around it is a launch: it takes as long whatever there is to do."""
    ran = []

    def loop(*_: object) -> None:
        ran.append(len(ran))

    key = torch.zeros(2, HEADS, WIDTH)
    slots = torch.tensor([1, 2])
    live_attention.store_kv(key, key, slots, cache(), slots, cache(), loop=loop)
    assert ran == [0, 1], "once into the pool, once into staging"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here: its clock is another")
def test_storing_is_timed_with_attention() -> None:
    backend = backend_for("cpu")
    parts = backend.parts  # type: ignore[attr-defined]  # the CPU's backend has a clock on each part
    parts.reset()
    key = torch.zeros(2, HEADS, WIDTH)
    backend.ops.store_kv(key, key, torch.tensor([1, 2]), cache())
    assert parts.spent_ns["attention"] > 0
    assert parts.spent_ns["transport"] == 0

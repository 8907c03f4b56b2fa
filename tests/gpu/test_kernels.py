"""The kernels that move KV equal their oracles: Triton's interpreter where there is no device, else the device."""

from __future__ import annotations

import pytest
import torch

from kvrm_gpu import kernels, reference
from tests.gpu.device_cases import DEVICE, group_table, random

HALF, SINGLE = torch.float16, torch.float32


@pytest.mark.parametrize(
    ("layers", "block", "dtype", "groups", "capacity"),
    [
        (1, (16, 1, 64), HALF, [(1, 0, 1)], 1),
        (2, (16, 2, 64), SINGLE, [(3, 2, 4), (9, 0, 1), (1, 7, 2)], 3),
        (1, (16, 3, 32), HALF, [(5, 5, 7)], 8),  # 3,072 elements: the second tile of a block is partial
        (3, (4, 1, 32), SINGLE, [(9, 0, 1), (8, 1, 1), (1, 2, 3), (4, 6, 2)], 64),
        (1, (64, 1, 128), HALF, [(2, 3, 2), (1, 0, 1)], 5),
        (1, (16, 1, 64), SINGLE, [], 4),
    ],
)
def test_gather_copies_exactly_the_groups(
    layers: int,
    block: tuple[int, int, int],
    dtype: torch.dtype,
    groups: list[tuple[int, int, int]],
    capacity: int,
) -> None:
    """Also: nothing outside the destinations changes, and NaN is copied as it is."""
    source = random((layers, 13, 2, *block), dtype, 1)
    source[:, 3] = float("nan")
    table, header = group_table(groups, capacity)
    got = torch.full((layers, 12, 2, *block), -7.0, dtype=dtype, device=DEVICE)
    wanted = got.clone()
    kernels.gather_groups(source, got, table, header)
    reference.gather_groups(source, wanted, table, header)
    assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))
    moved = {at for _, first, count in groups for at in range(first, first + count)}
    untouched = [at for at in range(12) if at not in moved]
    assert bool((got[:, untouched] == -7.0).all())


def test_gather_from_a_block_major_pool() -> None:
    """Blocks lie layers apart: the kernel takes the distance, whatever the layout."""
    storage = random((9, 2, 2, 16, 1, 64), SINGLE, 2)
    source = storage.transpose(0, 1)
    table, header = group_table([(4, 1, 3), (1, 0, 1)], 4)
    got = torch.zeros((2, 6, 2, 16, 1, 64), device=DEVICE)
    wanted = got.clone()
    kernels.gather_groups(source, got, table, header)
    reference.gather_groups(source, wanted, table, header)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("block_size", "kv_heads", "head_dim", "dtype"),
    [(16, 1, 64, HALF), (16, 3, 64, SINGLE), (64, 2, 128, HALF), (4, 5, 32, SINGLE)],
)
def test_store_writes_each_row_once(block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    rows = 5
    # One allocation for queries, keys and values, as a fused projection gives: rows are strided.
    fused = random((rows, 3, kv_heads, head_dim), dtype, 3)
    slots = torch.tensor([0, block_size, 3 * block_size + 1, 5 * block_size - 1, 2 * block_size + 2], device=DEVICE)
    stage = torch.tensor([-1, 0, 2 * block_size, 3 * block_size + 1, 7], device=DEVICE)
    got = torch.full((6, 2, block_size, kv_heads, head_dim), -7.0, dtype=dtype, device=DEVICE)
    staged = torch.full((4, *got.shape[1:]), -7.0, dtype=dtype, device=DEVICE)
    wanted, wanted_staged = got.clone(), staged.clone()
    kernels.store_kv(fused[:, 1], fused[:, 2], slots, got, stage, staged)
    reference.store_kv(fused[:, 1], fused[:, 2], slots, wanted, stage, wanted_staged)
    assert torch.equal(got, wanted)
    assert torch.equal(staged, wanted_staged)
    assert int((got[:, 0, :, 0, 0] != -7.0).sum()) == rows
    assert int((staged[:, 0, :, 0, 0] != -7.0).sum()) == rows - 1


def test_a_slot_of_minus_one_is_not_the_last_block() -> None:
    """Seen to fail with the kernel's `slot >= 0` taken out: the last block was overwritten."""
    cache = torch.full((4, 2, 16, 1, 64), -7.0, device=DEVICE)
    # The kernel must not write before the cache either: a larger buffer shows it.
    room = torch.full((6, 2, 16, 1, 64), -7.0, device=DEVICE)
    for implementation in (kernels, reference):
        inner = room[1:5] if implementation is kernels else cache
        key = random((2, 1, 64), SINGLE, 4)
        implementation.store_kv(key, key, torch.tensor([-1, -16], device=DEVICE), inner)
    assert bool((cache == -7.0).all())
    assert bool((room == -7.0).all())


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a device computes bfloat16 rightly")
def test_bfloat16_is_refused_under_the_interpreter() -> None:
    """GPU failure 17. Seen to fail with bfloat16 among the types under the interpreter."""
    key = torch.zeros(2, 1, 64, dtype=torch.bfloat16)
    cache = torch.zeros(4, 2, 16, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"cache: torch.bfloat16, should be torch.float32 or torch.float16"):
        kernels.store_kv(key, key, torch.zeros(2, dtype=torch.int64), cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": torch.zeros(2, 1, 32)}, "key: shape"),
        ({"key": torch.zeros(2, 1, 64, dtype=HALF)}, "key: torch.float16"),
        ({"value": torch.zeros(2, 64, 1).transpose(1, 2)[:, :, ::1]}, None),
        ({"value": torch.zeros(2, 1, 128)[:, :, ::2]}, "value: strides"),
        ({"slot_mapping": torch.zeros(2, dtype=torch.int32)}, "slot_mapping: torch.int32"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int64)}, "slot_mapping: shape"),
        ({"cache": torch.zeros(4, 2, 16, 64, 1).transpose(3, 4)[..., :1]}, "cache: strides"),
        ({"stage_slots": torch.zeros(2, dtype=torch.int64)}, "give both or neither"),
    ],
)
def test_the_wrapper_refuses_what_the_kernel_would_misread(
    change: dict[str, torch.Tensor], message: str | None
) -> None:
    arguments = {
        "key": torch.zeros(2, 1, 64),
        "value": torch.zeros(2, 1, 64),
        "slot_mapping": torch.zeros(2, dtype=torch.int64),
        "cache": torch.zeros(4, 2, 16, 1, 64),
    } | change
    arguments = {name: tensor.to(DEVICE) for name, tensor in arguments.items()}
    if message is None:
        kernels.store_kv(**arguments)
    else:
        with pytest.raises(ValueError, match=message):
            kernels.store_kv(**arguments)

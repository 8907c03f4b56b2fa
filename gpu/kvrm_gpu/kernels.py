"""Triton kernels that move KV: the group gather and the store, each beside the wrapper that checks what it is given.

The gather's grid is over equal tiles of the bytes to be moved, never a program a group: one layer of a merged group
of 512 blocks is tens of MiB, a short one is one block. A tile finds its group in the table's running sum of blocks.
How much there is to move is read from the descriptor on the device, so a captured graph serves every step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrm_gpu.checks import FLOATS, jit, require
from kvrm_gpu.wire import H_BLOCKS, H_GROUPS

#: Elements of a tile, and programs of a layer's grid: each strides over the tiles.
TILE_ELEMENTS = 2048
GATHER_PROGRAMS = 512

_GROUPS = tl.constexpr(H_GROUPS)
_BLOCKS = tl.constexpr(H_BLOCKS)


@jit
def gather_kernel(  # type: ignore[no-untyped-def]  # numbers and addresses of the device
    source, destination, groups, header,
    source_layer, source_block, destination_layer, destination_block,
    block_elements, tiles_a_block,
    search_steps: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Tiles of one layer, one program after another until all groups are copied."""
    layer = tl.program_id(1).to(tl.int64)
    num_groups = tl.load(header + _GROUPS).to(tl.int32)
    total = tl.load(header + _BLOCKS) * tiles_a_block
    offsets = tl.arange(0, tile)
    for at in range(tl.program_id(0), total, tl.num_programs(0)):
        block = (at // tiles_a_block).to(tl.int32)
        low = 0
        high = num_groups
        for _ in range(search_steps):  # the last group whose first block is not after this one
            middle = (low + high) // 2
            first = tl.load(groups + middle * 4 + 3, mask=middle < num_groups, other=0x7FFFFFFF)
            keep = first <= block
            low = tl.where(keep & (middle > low), middle, low)
            high = tl.where(keep, high, middle)
        inside = block - tl.load(groups + low * 4 + 3)
        come = (tl.load(groups + low * 4) + inside).to(tl.int64)
        go = (tl.load(groups + low * 4 + 1) + inside).to(tl.int64)
        element = (at % tiles_a_block).to(tl.int32) * tile + offsets
        within = element < block_elements
        moved = tl.load(source + layer * source_layer + come * source_block + element, mask=within)
        tl.store(destination + layer * destination_layer + go * destination_block + element, moved, mask=within)


def gather_groups(source: torch.Tensor, destination: torch.Tensor, groups: torch.Tensor, header: torch.Tensor) -> None:
    """See :func:`kvrm_gpu.reference.gather_groups`. Raises ValueError for wrong shapes, dtypes or strides."""
    require("source", source, (None,) * 6, FLOATS, contiguous_from=2)
    layers, _, *block = source.shape
    require("destination", destination, (layers, None, *block), source.dtype, contiguous_from=2)
    require("groups", groups, (None, 4), torch.int32)
    require("header", header, (None,), torch.int64)
    elements = source[0, 0].numel()
    tiles = triton.cdiv(elements, TILE_ELEMENTS)
    capacity = groups.shape[0]
    gather_kernel[(min(GATHER_PROGRAMS, tiles * max(1, destination.shape[1])), layers)](
        source, destination, groups, header,
        source.stride(0), source.stride(1), destination.stride(0), destination.stride(1),
        elements, tiles,
        search_steps=capacity.bit_length() + 1, tile=TILE_ELEMENTS,
    )  # fmt: skip


@jit
def store_kernel(  # type: ignore[no-untyped-def]  # numbers and addresses of the device
    key, value, slot_mapping, cache, stage_slots, staging,
    cache_block, staging_block, key_row, value_row, block_size, width,
    staged: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One row's new entry."""
    row = tl.program_id(0)
    offsets = tl.arange(0, tile)
    inside = offsets < width
    k = tl.load(key + row * key_row + offsets, mask=inside)
    v = tl.load(value + row * value_row + offsets, mask=inside)
    slot = tl.load(slot_mapping + row)
    at = cache + (slot // block_size) * cache_block + (slot % block_size) * width + offsets
    # A negative slot would be the last block; the packer refuses it, and this is the second guard.
    if slot >= 0:
        tl.store(at, k, mask=inside)
        tl.store(at + block_size * width, v, mask=inside)
    if staged:
        slot = tl.load(stage_slots + row)
        at = staging + (slot // block_size) * staging_block + (slot % block_size) * width + offsets
        if slot >= 0:
            tl.store(at, k, mask=inside)
            tl.store(at + block_size * width, v, mask=inside)


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    stage_slots: torch.Tensor | None = None,
    staging: torch.Tensor | None = None,
) -> None:
    """See :func:`kvrm_gpu.reference.store_kv`. Raises ValueError for wrong shapes, dtypes or strides."""
    require("cache", cache, (None, 2, None, None, None), FLOATS, contiguous_from=1)
    _, _, block_size, kv_heads, head_dim = cache.shape
    require("key", key, (None, kv_heads, head_dim), cache.dtype, contiguous_from=1)
    rows = key.shape[0]
    require("value", value, (rows, kv_heads, head_dim), cache.dtype, contiguous_from=1)
    require("slot_mapping", slot_mapping, (rows,), torch.int64)
    if (stage_slots is None) != (staging is None):
        raise ValueError("stage_slots and staging: give both or neither")
    staged = staging is not None
    second = cache if staging is None else staging
    second_slots = slot_mapping if stage_slots is None else stage_slots
    require("stage_slots", second_slots, (rows,), torch.int64)
    require("staging", second, (None, *cache.shape[1:]), cache.dtype, contiguous_from=1)
    width = kv_heads * head_dim
    store_kernel[(rows,)](
        key, value, slot_mapping, cache, second_slots, second,
        cache.stride(0), second.stride(0), key.stride(0), value.stride(0), block_size, width,
        staged=staged, tile=triton.next_power_of_2(width),
    )  # fmt: skip

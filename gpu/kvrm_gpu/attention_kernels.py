"""Triton kernels of decode attention: split over the context, through a block table or over contiguous blocks, and
the merge of the splits.

One program a (row, KV head, split); the query heads that share the KV head are one tile, padded to what a tensor
core multiplies. Lengths are data: a program stops at its row's length, or (``read_all``) at the captured extent, as
masked attention does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrm_gpu.checks import FLOATS, jit, require, require_power_of_two
from kvrm_gpu.reference import split_tokens

#: The least side of a tile that `tl.dot` multiplies.
LEAST_DOT = 16
#: Elements of a tile of keys: with twice as many, heads of 128 spill registers where addresses are not aligned.
TILE_ELEMENTS = 4096


def tile_tokens(head_dim: int) -> int:
    """Tokens of a tile."""
    return max(LEAST_DOT, TILE_ELEMENTS // head_dim)


@jit
def attention_kernel(  # type: ignore[no-untyped-def]  # numbers and addresses of the device
    query, cache, pages, lengths, sums, stats,
    scale, query_row, pages_row, cache_block, num_blocks, extent, share,
    block_size: tl.constexpr, kv_heads: tl.constexpr, ratio: tl.constexpr, padded: tl.constexpr,
    head_dim: tl.constexpr, splits: tl.constexpr, paged: tl.constexpr, read_all: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One split of one KV head of one row."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + row)
    low = split * share
    high = tl.minimum(low + share, extent)
    if not read_all:
        high = tl.minimum(high, length)
    member = tl.arange(0, padded)
    dim = tl.arange(0, head_dim)
    head = kv_head * ratio + member
    real = member < ratio
    q = tl.load(query + row * query_row + head[:, None] * head_dim + dim[None, :], mask=real[:, None], other=0.0)
    greatest = tl.full([padded], float("-inf"), tl.float32)
    total = tl.zeros([padded], tl.float32)
    gathered = tl.zeros([padded, head_dim], tl.float32)
    for start in range(low, high, tile):
        token = start + tl.arange(0, tile)
        read = token < high
        live = read & (token < length)
        if paged:
            block = tl.load(pages + row * pages_row + token // block_size, mask=read, other=0)
        else:
            block = tl.minimum(tl.load(pages + row) + token // block_size, num_blocks - 1)
        at = block.to(tl.int64) * cache_block + (token % block_size) * (kv_heads * head_dim) + kv_head * head_dim
        where = cache + at[:, None] + dim[None, :]
        k = tl.load(where, mask=read[:, None], other=0.0)
        v = tl.load(where + block_size * kv_heads * head_dim, mask=read[:, None], other=0.0)
        # What is read beyond the length may be anything, and 0 x NaN is NaN: the values are cut as the scores are.
        v = tl.where(live[:, None], v, 0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(live[None, :], scores, float("-inf"))
        newest = tl.maximum(greatest, tl.max(scores, 1))
        safe = tl.where(newest == float("-inf"), 0.0, newest)
        fade = tl.exp(greatest - safe)
        weights = tl.exp(scores - safe[:, None])
        total = total * fade + tl.sum(weights, 1)
        gathered = gathered * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        greatest = newest
    place = (row * (kv_heads * ratio) + head) * splits + split
    tl.store(sums + place[:, None] * head_dim + dim[None, :], gathered, mask=real[:, None])
    tl.store(stats + place * 2, greatest, mask=real)
    tl.store(stats + place * 2 + 1, total, mask=real)


def _attend(
    query: torch.Tensor,
    cache: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    sums: torch.Tensor,
    stats: torch.Tensor,
    extent_tokens: int,
    *,
    paged: bool,
    read_all: bool,
) -> None:
    require("cache", cache, (None, 2, None, None, None), FLOATS, contiguous_from=1)
    num_blocks, _, block_size, kv_heads, head_dim = cache.shape
    require("query", query, (None, None, head_dim), cache.dtype, contiguous_from=1)
    rows, heads, _ = query.shape
    if heads % kv_heads:
        raise ValueError(f"query: {heads} heads, should be a multiple of the cache's {kv_heads}")
    require_power_of_two("head_dim", head_dim, LEAST_DOT)
    require("lengths", lengths, (rows,), torch.int32)
    require("sums", sums, (rows, heads, None, head_dim), torch.float32)
    splits = sums.shape[2]
    require("stats", stats, (rows, heads, splits, 2), torch.float32)
    ratio = heads // kv_heads
    attention_kernel[(rows, kv_heads, splits)](
        query, cache, pages, lengths, sums, stats,
        head_dim**-0.5, query.stride(0), pages.stride(0), cache.stride(0), num_blocks,
        extent_tokens, split_tokens(extent_tokens, splits),
        block_size=block_size, kv_heads=kv_heads, ratio=ratio, padded=max(LEAST_DOT, triton.next_power_of_2(ratio)),
        head_dim=head_dim, splits=splits, paged=paged, read_all=read_all, tile=tile_tokens(head_dim),
    )  # fmt: skip


def paged_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    sums: torch.Tensor,
    stats: torch.Tensor,
    *,
    extent_tokens: int,
    read_all: bool,
) -> None:
    """See :func:`kvrm_gpu.reference.paged_attention`. Raises ValueError for wrong shapes, dtypes or strides."""
    require("block_tables", block_tables, (query.shape[0], None), torch.int32, contiguous_from=1)
    if block_tables.shape[1] * cache.shape[2] < extent_tokens:
        raise ValueError(f"extent_tokens = {extent_tokens}: the table has {block_tables.shape[1]} blocks a row")
    _attend(query, cache, block_tables, lengths, sums, stats, extent_tokens, paged=True, read_all=read_all)


def contiguous_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    first_blocks: torch.Tensor,
    lengths: torch.Tensor,
    sums: torch.Tensor,
    stats: torch.Tensor,
    *,
    extent_tokens: int,
    read_all: bool,
) -> None:
    """See :func:`kvrm_gpu.reference.contiguous_attention`. Raises ValueError for wrong shapes, dtypes or strides."""
    require("first_blocks", first_blocks, (query.shape[0],), torch.int32)
    _attend(query, cache, first_blocks, lengths, sums, stats, extent_tokens, paged=False, read_all=read_all)


@jit
def merge_kernel(  # type: ignore[no-untyped-def]  # numbers and addresses of the device
    sums, stats, out, out_row, heads,
    head_dim: tl.constexpr, splits: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """One head of one row: the splits weighed by their greatest scores."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.arange(0, padded)
    dim = tl.arange(0, head_dim)
    real = split < splits
    place = (row * heads + head) * splits + split
    greatest = tl.load(stats + place * 2, mask=real, other=float("-inf"))
    total = tl.load(stats + place * 2 + 1, mask=real, other=0.0)
    part = tl.load(sums + place[:, None] * head_dim + dim[None, :], mask=real[:, None], other=0.0)
    most = tl.max(greatest, 0)
    weights = tl.exp(greatest - tl.where(most == float("-inf"), 0.0, most))
    whole = tl.sum(weights * total, 0)
    merged = tl.sum(weights[:, None] * part, 0) / tl.where(whole == 0.0, 1.0, whole)
    tl.store(out + row * out_row + head * head_dim + dim, merged.to(out.dtype.element_ty))


def merge_splits(sums: torch.Tensor, stats: torch.Tensor, out: torch.Tensor) -> None:
    """See :func:`kvrm_gpu.reference.merge_splits`. Raises ValueError for wrong shapes, dtypes or strides."""
    require("sums", sums, (None,) * 4, torch.float32)
    rows, heads, splits, head_dim = sums.shape
    require_power_of_two("head_dim", head_dim, 1)
    require("stats", stats, (rows, heads, splits, 2), torch.float32)
    require("out", out, (rows, heads, head_dim), FLOATS, contiguous_from=1)
    merge_kernel[(rows, heads)](
        sums, stats, out, out.stride(0), heads,
        head_dim=head_dim, splits=splits, padded=triton.next_power_of_2(splits),
    )  # fmt: skip

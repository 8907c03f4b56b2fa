"""Attention on the CPU that reads what it says it reads, and the store that precedes it: compiled loops over tokens.

The torch references gather every page of the extent for every row, so their time does not depend on the lengths, and
that of their store hardly on the rows. These cost what a device's kernels cost in kind: in proportion to the tokens
read (live extents), or to rows x extent (a whole captured extent, ``read_all``), for a prefill chunk to its (query,
key) pairs, and to the entries stored. Each function takes its ``loop``, so that it can be timed apart from the call
around it, which is a launch. float32 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from kvrm_gpu.reference import split_tokens
from kvrm_sim import compiled

Loop: TypeAlias = Callable[..., None]

if compiled.MODE == "interpreted":

    def _compiled(function: Any) -> Any:
        return function
else:
    import numba

    def _compiled(function: Any) -> Any:
        # Sums may be reordered, so that they are vectors; NaN keeps its meaning (what is masked may hold it).
        return numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})(function)


@_compiled
def attend_rows(
    query: Any,
    cache: Any,
    tables: Any,
    paged: bool,
    lengths: Any,
    sums: Any,
    stats: Any,
    extent: int,
    share: int,
    read_all: bool,
) -> None:
    """The loop of decode attention, one token a row. ``tables`` [rows, width]: every block of a row, or only its first
    (not ``paged``).
    """
    rows, heads, width = query.shape
    block_size, kv_heads = cache.shape[2], cache.shape[3]
    scale = np.float32(width**-0.5)
    scores = np.empty(share, np.float32)
    # What is masked is computed too, into the second row, and thrown away: `read_all` has to cost what it reads.
    totals = np.empty((2, width), np.float32)
    for row in range(rows):
        length = min(lengths[row], extent)
        for split in range(sums.shape[2]):
            start = split * share
            live_end = min(start + share, length)
            end = min(start + share, extent) if read_all else live_end
            for head in range(heads):
                kv = head // (heads // kv_heads)
                greatest = np.float32(-math.inf)
                for token in range(start, end):
                    logical = token // block_size
                    block = tables[row, logical] if paged else min(tables[row, 0] + logical, cache.shape[0] - 1)
                    offset = token - logical * block_size
                    score = np.float32(0.0)
                    for at in range(width):
                        score += query[row, head, at] * cache[block, 0, offset, kv, at]
                    score *= scale
                    scores[token - start] = score
                    if token < live_end and score > greatest:
                        greatest = score
                totals[:] = 0.0
                weights = np.float32(0.0)
                # Of a row without a live token nothing is kept, but it has to cost as much: no exp(inf).
                peak = greatest if live_end > start else np.float32(0.0)
                for token in range(start, end):
                    logical = token // block_size
                    block = tables[row, logical] if paged else min(tables[row, 0] + logical, cache.shape[0] - 1)
                    offset = token - logical * block_size
                    weight = np.float32(math.exp(scores[token - start] - peak))
                    part = 0 if token < live_end else 1
                    if part == 0:
                        weights += weight
                    for at in range(width):
                        totals[part, at] += weight * cache[block, 1, offset, kv, at]
                for at in range(width):
                    sums[row, head, split, at] = totals[0, at]
                stats[row, head, split, 0] = greatest
                stats[row, head, split, 1] = weights


@_compiled
def attend_chunk(query: Any, cache: Any, pages: Any, before: int, out: Any) -> None:
    """The loop of a chunk's attention: token i of the chunk attends to entries [0, before + i]."""
    count, heads, width = query.shape
    block_size, kv_heads = cache.shape[2], cache.shape[3]
    scale = np.float32(width**-0.5)
    scores = np.empty(before + count, np.float32)
    totals = np.empty(width, np.float32)
    for row in range(count):
        end = before + row + 1
        for head in range(heads):
            kv = head // (heads // kv_heads)
            greatest = np.float32(-math.inf)
            for token in range(end):
                logical = token // block_size
                offset = token - logical * block_size
                score = np.float32(0.0)
                for at in range(width):
                    score += query[row, head, at] * cache[pages[logical], 0, offset, kv, at]
                score *= scale
                scores[token] = score
                greatest = max(greatest, score)
            totals[:] = 0.0
            weights = np.float32(0.0)
            for token in range(end):
                logical = token // block_size
                offset = token - logical * block_size
                weight = np.float32(math.exp(scores[token] - greatest))
                weights += weight
                for at in range(width):
                    totals[at] += weight * cache[pages[logical], 1, offset, kv, at]
            for at in range(width):
                out[row, head, at] = totals[at] / weights


@_compiled
def store_rows(key: Any, value: Any, slots: Any, cache: Any) -> None:
    """The loop of the store: each row's entry, to where ``slots`` says; negative ones are skipped."""
    block_size = cache.shape[2]
    for row in range(key.shape[0]):
        slot = slots[row]
        if slot < 0:
            continue
        block = slot // block_size
        offset = slot - block * block_size
        for head in range(key.shape[1]):
            for at in range(key.shape[2]):
                cache[block, 0, offset, head, at] = key[row, head, at]
                cache[block, 1, offset, head, at] = value[row, head, at]


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    stage_slots: torch.Tensor | None = None,
    staging: torch.Tensor | None = None,
    *,
    loop: Loop = store_rows,
) -> None:
    """As :func:`kvrm_gpu.reference.store_kv`."""
    loop(key.numpy(), value.numpy(), slot_mapping.numpy(), cache.numpy())
    if stage_slots is not None and staging is not None:
        loop(key.numpy(), value.numpy(), stage_slots.numpy(), staging.numpy())


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
    loop: Loop = attend_rows,
) -> None:
    """As :func:`kvrm_gpu.reference.paged_attention`; a row past its length is not read unless ``read_all``."""
    _rows(loop, query, cache, block_tables, True, lengths, sums, stats, extent_tokens, read_all)


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
    loop: Loop = attend_rows,
) -> None:
    """As :func:`kvrm_gpu.reference.contiguous_attention`."""
    _rows(loop, query, cache, first_blocks[:, None], False, lengths, sums, stats, extent_tokens, read_all)


def _rows(
    loop: Loop,
    query: torch.Tensor,
    cache: torch.Tensor,
    tables: torch.Tensor,
    paged: bool,
    lengths: torch.Tensor,
    sums: torch.Tensor,
    stats: torch.Tensor,
    extent_tokens: int,
    read_all: bool,
) -> None:
    loop(
        query.numpy(),
        cache.numpy(),
        tables.numpy(),
        paged,
        lengths.numpy(),
        sums.numpy(),
        stats.numpy(),
        extent_tokens,
        split_tokens(extent_tokens, sums.shape[2]),
        read_all,
    )


def chunk_attention(
    query: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, before: int, *, loop: Loop = attend_chunk
) -> torch.Tensor:
    """``query`` float32 [n, heads, head_dim] of a chunk that is entries ``before``, … of ``pages`` int64, against all
    of them up to its own in one layer's ``cache``; returns the same shape.
    """
    out = torch.empty(query.shape)
    loop(query.numpy(), cache.numpy(), pages.numpy(), before, out.numpy())
    return out

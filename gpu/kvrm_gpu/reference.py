"""The torch oracle of each kernel, with the same signature: what the CPU backend runs and what tests compare with.

Shapes: ``cache`` is one layer of blocks, [blocks, 2, block_size, kv_heads, head_dim] (keys, then values), its blocks
contiguous inside and any distance apart. Attention accumulates in float32. Every function writes into the tensors
that it is given; nothing is returned.
"""

from __future__ import annotations

import torch

from kvrm_gpu.wire import (
    E_CHECKSUM,
    E_EPOCH,
    E_MAGIC,
    G_BLOCKS,
    G_DESTINATION,
    G_SOURCE,
    H_CHECKSUM,
    H_EPOCH,
    H_GROUPS,
    H_MAGIC,
    H_PATCHES,
    WEIGHT,
    WireShape,
)


def gather_groups(source: torch.Tensor, destination: torch.Tensor, groups: torch.Tensor, header: torch.Tensor) -> None:
    """Copy the descriptor's groups of blocks: ``source`` and ``destination`` are [layers, blocks, 2, block_size,
    kv_heads, head_dim] of one dtype, ``groups`` int32 [capacity, 4], ``header`` int64 (how many are in use).
    """
    for group in groups[: int(header[H_GROUPS])].tolist():
        first, to, blocks = group[G_SOURCE], group[G_DESTINATION], group[G_BLOCKS]
        destination[:, to : to + blocks].copy_(source[:, first : first + blocks])


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    stage_slots: torch.Tensor | None = None,
    staging: torch.Tensor | None = None,
) -> None:
    """Write each row's new entry: ``key`` and ``value`` [rows, kv_heads, head_dim], to entry ``slot_mapping`` (int64
    [rows], block * block_size + offset) of ``cache``, and to entry ``stage_slots`` of ``staging``. Negative entries
    are skipped.
    """
    _store(key, value, slot_mapping, cache)
    if stage_slots is not None and staging is not None:
        _store(key, value, stage_slots, staging)


def _store(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor) -> None:
    kept = slots >= 0
    block = slots[kept] // cache.shape[2]
    offset = slots[kept] % cache.shape[2]
    cache[block, 0, offset] = key[kept]
    cache[block, 1, offset] = value[kept]


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
    """One new token a row against its pages: ``query`` [rows, heads, head_dim], ``block_tables`` int32 [rows, width],
    ``lengths`` int32 [rows].

    Split over the context: part s of ``sums`` float32 [rows, heads, splits, head_dim] and ``stats`` float32 [rows,
    heads, splits, 2] (greatest score, sum of exponentials) covers an equal share of ``extent_tokens``. ``read_all``
    reads the whole extent whatever the lengths; the result is the same. A row of length 0 gives -inf and 0.
    """
    del read_all  # only bytes differ
    block = cache.shape[2]
    width = -(-extent_tokens // block)
    pages = block_tables[:, :width].long()
    _attend(query, cache, pages, lengths, sums, stats, extent_tokens)


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
    """As :func:`paged_attention`, a row's blocks following one another from ``first_blocks`` (int32 [rows]) on: a
    contiguous reservation, or staging. Reads past the end of the cache are of its last block, and masked.
    """
    del read_all
    width = -(-extent_tokens // cache.shape[2])
    pages = first_blocks.long()[:, None] + torch.arange(width, device=query.device)[None, :]
    _attend(query, cache, pages.clamp(max=cache.shape[0] - 1), lengths, sums, stats, extent_tokens)


def split_tokens(extent_tokens: int, splits: int) -> int:
    """Tokens of one split: equal shares of the extent in whole tiles of 16."""
    share = -(-extent_tokens // splits)
    return -(-share // 16) * 16


def _attend(
    query: torch.Tensor,
    cache: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    sums: torch.Tensor,
    stats: torch.Tensor,
    extent_tokens: int,
) -> None:
    rows, heads, head_dim = query.shape
    kv_heads = cache.shape[3]
    splits = sums.shape[2]
    share = split_tokens(extent_tokens, splits)
    history = cache[pages].float()  # [rows, width, 2, block, kv_heads, head_dim]
    keys = history[:, :, 0].flatten(1, 2)
    values = history[:, :, 1].flatten(1, 2)
    position = torch.arange(keys.shape[1], device=query.device)
    live = (position[None, :] < lengths[:, None]) & (position < extent_tokens)[None, :]
    # Freed blocks and the null block may hold anything: 0 x NaN is NaN, so they are cut out of the values too.
    values = torch.where(live[:, :, None, None], values, 0.0)
    grouped = query.float().view(rows, kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("rkgd,rtkd->rkgt", grouped, keys) * head_dim**-0.5
    scores = torch.where(live[:, None, None, :], scores, float("-inf"))
    for split in range(splits):
        part = slice(split * share, (split + 1) * share)
        score = scores[..., part]
        if score.shape[-1] == 0:
            sums[:, :, split] = 0.0
            stats[:, :, split, 0] = float("-inf")
            stats[:, :, split, 1] = 0.0
            continue
        greatest = score.amax(-1)
        weights = torch.exp(score - torch.where(greatest == float("-inf"), 0.0, greatest)[..., None])
        total = torch.einsum("rkgt,rtkd->rkgd", weights, values[:, part])
        sums[:, :, split] = total.reshape(rows, heads, head_dim)
        stats[:, :, split, 0] = greatest.reshape(rows, heads)
        stats[:, :, split, 1] = weights.sum(-1).reshape(rows, heads)


def merge_splits(sums: torch.Tensor, stats: torch.Tensor, out: torch.Tensor) -> None:
    """Put the splits together into ``out`` [rows, heads, head_dim]; zeros for a row of length 0."""
    greatest = stats[..., 0].amax(-1, keepdim=True)
    safe = torch.where(greatest == float("-inf"), 0.0, greatest)
    weights = torch.exp(stats[..., 0] - safe)
    total = (weights * stats[..., 1]).sum(-1)
    merged = (weights[..., None] * sums).sum(-2)
    out.copy_(merged / torch.where(total == 0.0, 1.0, total)[..., None])


def apply_patches(buffer: torch.Tensor, *, wire: WireShape) -> None:
    """Bring the block tables of a resident descriptor (uint8 [bytes]) up to date: entry ``patch[0]`` of the flattened
    tables becomes ``patch[1]``, for the patches in use.
    """
    header = wire.fields["header"].tensor(buffer)
    patches = wire.fields["patches"].tensor(buffer)[: int(header[H_PATCHES])]
    tables = wire.fields["block_tables"].tensor(buffer).view(-1)
    tables[patches[:, 0].long()] = patches[:, 1]


def check_descriptor(buffer: torch.Tensor, echo: torch.Tensor, *, wire: WireShape) -> None:
    """Write to ``echo`` (int64 [3]) the epoch and the magic found in a resident descriptor, and its checksum."""
    header = wire.fields["header"].tensor(buffer)
    total = header_sum(header)
    groups = wire.groups_word
    for first, end in (*wire.checked_words, (groups, groups + 4 * int(header[H_GROUPS]))):
        total = total + word_sum(buffer.view(torch.int32)[first:end], first)
    echo[E_EPOCH] = header[H_EPOCH]
    echo[E_MAGIC] = header[H_MAGIC]
    echo[E_CHECKSUM] = total


def header_sum(header: torch.Tensor) -> torch.Tensor:
    """The header's part of the checksum: its words in use but the checksum itself."""
    weights = 2 * torch.arange(H_CHECKSUM, device=header.device, dtype=torch.int64) + 1
    return (header[:H_CHECKSUM] * weights * WEIGHT).sum()


def word_sum(words: torch.Tensor, first: int) -> torch.Tensor:
    """The part of the checksum of int32 ``words``, the first of which is word ``first`` of the buffer."""
    weights = 2 * torch.arange(first, first + len(words), device=words.device, dtype=torch.int64) + 1
    return (words.long() * weights * WEIGHT).sum()

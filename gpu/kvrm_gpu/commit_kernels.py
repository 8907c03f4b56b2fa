"""Triton kernels that receive a commit descriptor: patches to the block tables, and the check of what arrived."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvrm_gpu.checks import jit, require
from kvrm_gpu.wire import (
    E_CHECKSUM,
    E_EPOCH,
    E_MAGIC,
    ECHO_WORDS,
    H_CHECKSUM,
    H_EPOCH,
    H_GROUPS,
    H_MAGIC,
    H_PATCHES,
    WEIGHT,
    WireShape,
)

TILE_WORDS = 1024
CHECK_PROGRAMS = 256

_MAGIC = tl.constexpr(H_MAGIC)
_EPOCH = tl.constexpr(H_EPOCH)
_GROUPS = tl.constexpr(H_GROUPS)
_PATCHES = tl.constexpr(H_PATCHES)
_CHECKSUM = tl.constexpr(H_CHECKSUM)
_TO_EPOCH = tl.constexpr(E_EPOCH)
_TO_MAGIC = tl.constexpr(E_MAGIC)
_TO_CHECKSUM = tl.constexpr(E_CHECKSUM)
_WEIGHT = tl.constexpr(WEIGHT)


@jit
def patch_kernel(header, patches, tables, entries, tile: tl.constexpr):  # type: ignore[no-untyped-def]  # as the device's
    """Entries of the block tables that changed."""
    count = tl.load(header + _PATCHES)
    at = tl.program_id(0) * tile + tl.arange(0, tile)
    real = at < count
    entry = tl.load(patches + at * 2, mask=real, other=-1)
    block = tl.load(patches + at * 2 + 1, mask=real, other=0)
    tl.store(tables + entry, block, mask=real & (entry >= 0) & (entry < entries))


def apply_patches(buffer: torch.Tensor, *, wire: WireShape) -> None:
    """See :func:`kvrm_gpu.reference.apply_patches`. Raises ValueError for a buffer of another shape."""
    require("buffer", buffer, (wire.num_bytes,), torch.uint8)
    patches = wire.fields["patches"].tensor(buffer)
    tables = wire.fields["block_tables"].tensor(buffer)
    tile = min(TILE_WORDS, triton.next_power_of_2(patches.shape[0]))
    patch_kernel[(triton.cdiv(patches.shape[0], tile),)](
        wire.fields["header"].tensor(buffer), patches, tables, tables.numel(), tile=tile
    )


@jit
def check_kernel(  # type: ignore[no-untyped-def]  # numbers and addresses of the device
    header, words, echo,
    rows_first, rows_end, tables_first, tables_end, groups_first,
    tile: tl.constexpr, header_words: tl.constexpr,
):  # fmt: skip
    """What the header says, and the checksum of what arrived, one share a program."""
    program = tl.program_id(0)
    step = tl.num_programs(0) * tile
    lanes = tl.arange(0, tile)
    groups_end = groups_first + 4 * tl.load(header + _GROUPS).to(tl.int32)
    sums = tl.zeros([tile], tl.int64)
    # Three ranges of words; integer sums wrap, so the order in which programs add them does not matter.
    for start in range(rows_first + program * tile, rows_end, step):
        at = start + lanes
        word = tl.load(words + at, mask=at < rows_end, other=0).to(tl.int64)
        sums += word * ((2 * at.to(tl.int64) + 1) * _WEIGHT)
    for start in range(tables_first + program * tile, tables_end, step):
        at = start + lanes
        word = tl.load(words + at, mask=at < tables_end, other=0).to(tl.int64)
        sums += word * ((2 * at.to(tl.int64) + 1) * _WEIGHT)
    for start in range(groups_first + program * tile, groups_end, step):
        at = start + lanes
        word = tl.load(words + at, mask=at < groups_end, other=0).to(tl.int64)
        sums += word * ((2 * at.to(tl.int64) + 1) * _WEIGHT)
    total = tl.sum(sums, 0)
    if program == 0:
        place = tl.arange(0, header_words)
        head = tl.load(header + place, mask=place < _CHECKSUM, other=0)
        total += tl.sum(head * ((2 * place.to(tl.int64) + 1) * _WEIGHT), 0)
        tl.store(echo + _TO_EPOCH, tl.load(header + _EPOCH))
        tl.store(echo + _TO_MAGIC, tl.load(header + _MAGIC))
    tl.atomic_add(echo + _TO_CHECKSUM, total)


def check_descriptor(buffer: torch.Tensor, echo: torch.Tensor, *, wire: WireShape) -> None:
    """See :func:`kvrm_gpu.reference.check_descriptor`. Raises ValueError for buffers of another shape."""
    require("buffer", buffer, (wire.num_bytes,), torch.uint8)
    require("echo", echo, (ECHO_WORDS,), torch.int64)
    (rows_first, rows_end), (tables_first, tables_end) = wire.checked_words
    programs = min(CHECK_PROGRAMS, triton.cdiv(tables_end - tables_first, TILE_WORDS))
    echo.zero_()
    check_kernel[(programs,)](
        wire.fields["header"].tensor(buffer), buffer.view(torch.int32), echo,
        rows_first, rows_end, tables_first, tables_end, wire.groups_word,
        tile=TILE_WORDS, header_words=8,
    )  # fmt: skip

"""Random device state for the tests: pools with poisoned free blocks, block tables, groups, rows of odd lengths."""

from __future__ import annotations

import torch

from kvrm_gpu.wire import H_BLOCKS, H_GROUPS, HEADER_WORDS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAN = float("nan")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed)).to(dtype).to(DEVICE)


def poisoned_cache(
    blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, used: list[int], seed: int
) -> torch.Tensor:
    """One layer: NaN in the null block and in every block that is not used."""
    cache = random((blocks, 2, block_size, kv_heads, head_dim), dtype, seed)
    free = [block for block in range(blocks) if block not in set(used)]
    cache[free] = NAN
    return cache


def scattered_tables(lengths: list[int], block_size: int, width: int, seed: int) -> tuple[torch.Tensor, list[int], int]:
    """Tables of scattered pages for rows of these lengths: (int32 [rows, width], blocks used, blocks in all)."""
    needed = [-(-length // block_size) for length in lengths]
    total = sum(needed) + 5
    ids = (torch.randperm(total - 1, generator=generator(seed)) + 1).tolist()
    tables = torch.zeros((len(lengths), width), dtype=torch.int32)
    used: list[int] = []
    for row, count in enumerate(needed):
        taken = [ids.pop() for _ in range(count)]
        tables[row, :count] = torch.tensor(taken, dtype=torch.int32)
        used += taken
    return tables.to(DEVICE), used, total


def poison_tails(cache: torch.Tensor, tables: torch.Tensor, lengths: list[int], block_size: int) -> None:
    """NaN in every entry of a used page that lies beyond its row's length."""
    for row, length in enumerate(lengths):
        if length % block_size:
            cache[int(tables[row, length // block_size]), :, length % block_size :] = NAN


def group_table(groups: list[tuple[int, int, int]], capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(groups int32 [capacity, 4], header int64): junk beyond what is in use."""
    table = torch.full((capacity, 4), 0x3FFFFFFF, dtype=torch.int32)
    first = 0
    for at, (source, destination, blocks) in enumerate(groups):
        table[at] = torch.tensor([source, destination, blocks, first], dtype=torch.int32)
        first += blocks
    header = torch.zeros(HEADER_WORDS, dtype=torch.int64)
    header[H_GROUPS] = len(groups)
    header[H_BLOCKS] = first
    return table.to(DEVICE), header.to(DEVICE)

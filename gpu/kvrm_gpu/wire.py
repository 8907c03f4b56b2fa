"""The commit descriptor's wire form: one buffer of bytes, the same on the host and on the device.

    header | tokens | slot_mapping | positions | lengths | stage_rows | active | patches | groups | block_tables

Every field starts at a multiple of 256 bytes. What changes in each step comes first and the block tables last, so a
delta upload is one copy of a prefix: the tables on the device are then brought up to date by the patches. The header
counts what is in use (words of int64, by the ``H_*`` indices).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

ALIGNMENT_BYTES = 256
MAGIC = 0x4B56524D31  # "KVRM1"

H_MAGIC, H_EPOCH, H_ACTIVE, H_GROUPS, H_BLOCKS, H_PATCHES, H_CHECKSUM = range(7)
HEADER_WORDS = ALIGNMENT_BYTES // 8

#: Columns of the group table; `first` is the sum of `blocks` over the groups before: the gather's equal tiles find
#: their group by it.
G_SOURCE, G_DESTINATION, G_BLOCKS, G_FIRST = range(4)

#: What the device writes back: epoch, magic, the checksum that it computed.
E_EPOCH, E_MAGIC, E_CHECKSUM = range(3)
ECHO_WORDS = 3

#: The checksum is a sum of 32-bit words, each times an odd weight that depends on its place, modulo 2**64: linear,
#: so the host keeps it up to date from the entries that changed.
WEIGHT = 0x9E3779B1

_TORCH = {"<i8": torch.int64, "<i4": torch.int32, "|u1": torch.uint8}


@dataclass(frozen=True, slots=True)
class Field:
    """Where one field lies: ``shape`` entries of ``dtype`` from ``offset_bytes`` on."""

    offset_bytes: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def end_bytes(self) -> int:
        """The end of its entries; the next field starts at the next multiple of the alignment."""
        return self.offset_bytes + math.prod(self.shape) * self.dtype.itemsize

    def view(self, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        """The field inside a host buffer."""
        return buffer[self.offset_bytes : self.end_bytes].view(self.dtype).reshape(self.shape)

    def tensor(self, buffer: torch.Tensor) -> torch.Tensor:
        """The field inside a device buffer (or a pinned one)."""
        return buffer[self.offset_bytes : self.end_bytes].view(_TORCH[self.dtype.str]).view(self.shape)


@dataclass(frozen=True, kw_only=True)
class WireShape:
    """What fixes the layout: batch rows, table width in blocks, and the capacities of groups and patches."""

    slots: int
    table_width: int
    group_capacity: int
    patch_capacity: int

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Every field by name, in the order of the wire."""
        specs: list[tuple[str, tuple[int, ...], DTypeLike]] = [
            ("header", (HEADER_WORDS,), np.int64),
            ("tokens", (self.slots,), np.int64),
            ("slot_mapping", (self.slots,), np.int64),
            ("positions", (self.slots,), np.int64),
            ("lengths", (self.slots,), np.int32),
            ("stage_rows", (self.slots,), np.int32),
            ("active", (self.slots,), np.uint8),
            ("patches", (max(1, self.patch_capacity), 2), np.int32),
            ("groups", (max(1, self.group_capacity), 4), np.int32),
            ("block_tables", (self.slots, self.table_width), np.int32),
        ]
        fields: dict[str, Field] = {}
        at = 0
        for name, shape, dtype in specs:
            fields[name] = Field(at, shape, np.dtype(dtype))
            at = aligned(fields[name].end_bytes)
        return fields

    @property
    def num_bytes(self) -> int:
        """The whole buffer."""
        return aligned(self.fields["block_tables"].end_bytes)

    def prefix_bytes(self, patches: int, groups: int) -> int:
        """Bytes of what is in use before the tables, with this many patches and groups: groups come last."""
        name, entries = ("groups", groups) if groups else ("patches", patches)
        field = self.fields[name]
        return field.offset_bytes + entries * field.shape[1] * field.dtype.itemsize

    @property
    def checked_words(self) -> tuple[tuple[int, int], ...]:
        """Ranges of 32-bit words that the checksum always covers: the fields of the rows, and the tables.

        Beside them it covers the header's words in use and the groups in use. Not the patches: their effect is in
        the tables.
        """
        rows = (self.fields["tokens"].offset_bytes // 4, self.fields["patches"].offset_bytes // 4)
        tables = (self.fields["block_tables"].offset_bytes // 4, self.num_bytes // 4)
        return rows, tables

    @property
    def groups_word(self) -> int:
        """The first 32-bit word of the group table."""
        return self.fields["groups"].offset_bytes // 4

    @property
    def tables_word(self) -> int:
        """The first 32-bit word of the block tables."""
        return self.fields["block_tables"].offset_bytes // 4


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def wrap_int64(value: int) -> int:
    """A number modulo 2**64 as a signed 64-bit one."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)

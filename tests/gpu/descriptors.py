"""Random commit descriptors that evolve as real ones do: rows grow, leave, move, and are taken by others."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from kvrm_gpu.wire import WireShape
from kvrm_sim import state as st
from kvrm_sim.decoding import READ_STAGED
from kvrm_sim.descriptor import CommitDescriptor

BLOCK_SIZE = 4


def empty_descriptor(slots: int, table_width: int, group_capacity: int) -> CommitDescriptor:
    """A descriptor of these shapes, all padding."""
    params = np.zeros(1, st.PARAMS)
    params["slots"], params["table_width"], params["pool_blocks"] = slots, table_width, group_capacity
    params["read"] = READ_STAGED
    return CommitDescriptor.for_parameters(params)


@dataclass
class Row:
    owner: int
    length: int
    blocks: list[int]


@dataclass
class Scene:
    """Rows in slots; :meth:`step` changes some and describes them."""

    wire: WireShape
    seed: int
    pool_blocks: int = 500
    rows: dict[int, Row] = field(default_factory=dict)
    owners_given: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.free = list(range(1, self.pool_blocks + 1))
        self.random.shuffle(self.free)
        slots = self.wire.slots
        self.descriptor = empty_descriptor(slots, self.wire.table_width, max(1, self.wire.group_capacity))
        self.tokens = np.zeros(slots, np.int64)
        self.owners = np.zeros(slots, np.int64)
        self.counts = np.zeros(slots, np.int64)

    def step(self) -> None:
        for slot in list(self.rows):
            if self.random.random() < 0.15 or self.rows[slot].length + 1 > self.wire.table_width * BLOCK_SIZE:
                self.free += self.rows.pop(slot).blocks
        if self.rows and self.random.random() < 0.2:  # a row moves into the lowest hole
            slot = max(self.rows)
            holes = [hole for hole in range(slot) if hole not in self.rows]
            if holes:
                self.rows[holes[0]] = self.rows.pop(slot)
        for slot in range(self.wire.slots):
            if slot not in self.rows and self.random.random() < 0.3:
                self.owners_given += 1
                length = self.random.randint(0, self.wire.table_width * BLOCK_SIZE // 2)
                self.rows[slot] = Row(self.owners_given, length, [])
        for row in self.rows.values():
            row.length += 1
            while len(row.blocks) * BLOCK_SIZE < row.length:
                row.blocks.append(self.free.pop())
        self._describe()

    def _describe(self) -> None:
        d = self.descriptor
        for array in (d.block_tables, d.slot_mapping, d.lengths, d.positions, d.active, d.stage_rows, d.groups):
            array[:] = 0
        self.tokens[:] = 0
        self.owners[:] = 0
        self.counts[:] = 0
        d.num_groups = 0
        for slot, row in self.rows.items():
            at = row.length - 1
            d.block_tables[slot, : len(row.blocks)] = row.blocks
            d.slot_mapping[slot] = row.blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
            d.lengths[slot] = row.length
            d.positions[slot] = at
            d.active[slot] = 1
            d.stage_rows[slot] = slot
            self.tokens[slot] = self.random.randrange(1000)
            self.owners[slot] = row.owner
            self.counts[slot] = len(row.blocks)
            if d.num_groups < self.wire.group_capacity:
                d.groups[d.num_groups] = (row.blocks[0], slot * self.wire.table_width, 1)
                d.num_groups += 1

"""CommitDescriptor: the fixed-shape record of one step, as the device would get it; and the check of it.

One per step. Every field has the shape of the whole batch, whatever runs: rows are batch rows (slots), and a slot
that does not decode in the step is reset and points at the null block (id 0). Prefill chunks are described by the
step's plan, not here: their shapes vary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.check import INVARIANTS, broken_invariant
from kvrm_sim.compiled import entry, kernel
from kvrm_sim.decoding import READ_STAGED, reads_pages, row_computed
from kvrm_sim.pager import PAGED, held_blocks
from kvrm_sim.state import NONE, OK, Ints, Records
from kvrm_sim.transport import plan_groups


@kernel
def _reset_table(tables: Ints, written: Ints, slot: int) -> None:
    tables[slot, : written[slot, 0]] = 0
    written[slot, :] = 0


@kernel
def _reset_tables(tables: Ints, written: Ints, active: Ints) -> None:
    """Nothing is left in the table of a slot that no row has."""
    for slot in range(len(active)):
        if active[slot] == 0 and written[slot, 0] > 0:
            _reset_table(tables, written, slot)


@entry
def inspect_step(
    params: Records,
    scalars: Records,
    steps: Records,
    rows: Records,
    blocks: Records,
    keys: Ints,
    table: Ints,
    tables: Ints,
    slot_mapping: Ints,
    lengths: Ints,
    positions: Ints,
    active: Ints,
    stage_rows: Ints,
    stage_offsets: Ints,
    groups: Ints,
    written: Ints,
    planned: bool,
    check: bool,
) -> tuple[int, int]:
    """Check the invariants of the state if asked to, then describe the step in flight (`planned`), every entry of it.

    ``written`` int64 [slots, 3] says what a slot's table holds: entries, the admission of its row (counted from 1), how
    often what it had held was rewritten. Of a row that is described again only what it has taken since is written.
    Returns (the broken invariant or OK, number of groups).
    """
    p = params[0]
    s = scalars[0]
    if check:
        broken = broken_invariant(p, s, steps[0], rows, blocks, keys, table, planned)
        if broken != OK:
            return broken, 0
    if not planned:
        return OK, 0
    for of_slots in (slot_mapping, lengths, positions, stage_rows, stage_offsets):
        of_slots[:] = 0
    active[:] = 0
    # A step of prefills alone (`separate`) leaves the decoding rows where they are.
    row = s.running_head if steps[0].decode_rows > 0 else NONE
    while row != NONE:
        r = rows[row]
        if r.decoding:
            slot = r.slot
            computed = row_computed(s, rows, row)
            if written[slot, 1] != r.order + 1 or written[slot, 2] != r.rewrites:
                _reset_table(tables, written, slot)
                written[slot, 1] = r.order + 1
                written[slot, 2] = r.rewrites
            if p.reserve == PAGED:
                entries = held_blocks(p, rows, row, computed + 1)
                for logical in range(written[slot, 0], entries):
                    tables[slot, logical] = table[row, logical]
                written[slot, 0] = entries
                block = table[row, computed // p.block_size - r.dropped]
            else:
                written[slot, 0] = 1
                tables[slot, 0] = r.run_start
                block = r.run_start + computed // p.block_size
            slot_mapping[slot] = block * p.block_size + computed % p.block_size
            lengths[slot] = computed + 1 - r.dropped * p.block_size
            positions[slot] = computed
            active[slot] = 1
            stage_rows[slot] = row
        row = r.next
    _reset_tables(tables, written, active)
    if p.read != READ_STAGED or steps[0].prefill_rows > 0 or reads_pages(p, steps[0]):
        return OK, 0
    return OK, plan_groups(p, s, rows, table, stage_offsets, groups)


@dataclass(slots=True)
class CommitDescriptor:
    """Fields of one step's descriptor.

    block_tables: int32 [slots, width], physical ids, 0 beyond a row's length (contiguous: the first id only, width
    1). slot_mapping: int64 [slots], where the new token's entry goes: id * block size + offset. lengths, positions:
    int64 [slots], tokens read and the new token's position. active: uint8 [slots]. stage_rows: int64 [slots].
    stage_offsets: int64 [slots], where a row begins in packed staging, in blocks (0 where staging is strided). groups:
    int64 [num_groups, 3] = (source id, destination block of the staging buffer, blocks).
    """

    block_tables: NDArray[np.int32]
    slot_mapping: NDArray[np.int64]
    lengths: NDArray[np.int64]
    positions: NDArray[np.int64]
    active: NDArray[np.uint8]
    stage_rows: NDArray[np.int64]
    stage_offsets: NDArray[np.int64]
    groups: NDArray[np.int64]
    num_groups: int = 0
    #: What each row of block_tables holds (inspect_step).
    _written: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        slots, width = self.block_tables.shape
        self._written = np.zeros((slots, 3), np.int64)
        self._written[:, 0] = width

    @classmethod
    def for_parameters(cls, params: Records) -> CommitDescriptor:
        """Buffers of the shapes that a replica's parameters fix; reused from step to step."""
        p = params[0]
        slots = int(p.slots)
        return cls(
            block_tables=np.zeros((slots, int(p.table_width)), np.int32),
            slot_mapping=np.zeros(slots, np.int64),
            lengths=np.zeros(slots, np.int64),
            positions=np.zeros(slots, np.int64),
            active=np.zeros(slots, np.uint8),
            stage_rows=np.zeros(slots, np.int64),
            stage_offsets=np.zeros(slots, np.int64),
            groups=np.zeros((_most_groups(p), 3), np.int64),
        )

    def fill(
        self,
        params: Records,
        scalars: Records,
        steps: Records,
        rows: Records,
        blocks: Records,
        keys: NDArray[np.int64],
        table: NDArray[np.int64],
        *,
        planned: bool = True,
        check: bool = False,
    ) -> str | None:
        """Describe the step that was just decided; with ``check``, what is broken in the state or in it, or None."""
        broken, self.num_groups = inspect_step(
            params,
            scalars,
            steps,
            rows,
            blocks,
            keys,
            table,
            self.block_tables,
            self.slot_mapping,
            self.lengths,
            self.positions,
            self.active,
            self.stage_rows,
            self.stage_offsets,
            self.groups,
            self._written,
            planned,
            check,
        )
        if broken != st.OK:
            return INVARIANTS[broken]
        return self.broken(params, steps[0]) if check and planned else None

    def broken(self, params: Records, step: st.Record) -> str | None:
        """What is wrong with this descriptor (DESIGN section 8, 8 and 9), or None."""
        p = params[0]
        live = self.active.astype(bool)
        if int(live.sum()) != int(step.decode_rows):
            return f"{live.sum()} active rows, {step.decode_rows} decoding"
        for name in ("slot_mapping", "lengths", "positions", "stage_rows", "stage_offsets"):
            if getattr(self, name)[~live].any():
                return f"{name}: an inactive slot is not reset"
        # Ids are never 0, so whatever is left of an earlier step shows as an entry too many.
        entries = self.lengths + int(p.block_size) - 1
        wanted = int((entries // int(p.block_size)).sum()) if p.reserve == PAGED else int(live.sum())
        if int(np.count_nonzero(self.block_tables)) != wanted:
            return f"block_tables: not the {wanted} entries of the active rows: an inactive slot or a tail is not reset"
        if live.any() and int(self.slot_mapping[live].min()) < int(p.block_size):
            return "slot_mapping: an active row writes into the null block"
        if len(np.unique(self.slot_mapping[live])) != int(live.sum()):
            return "slot_mapping: two rows write the same entry"
        return self._broken_groups(p, step)

    def _broken_groups(self, p: st.Record, step: st.Record) -> str | None:
        groups = self.groups[: self.num_groups]
        moved = int(groups[:, 2].sum())
        if self.num_groups != int(step.groups) or moved != int(step.moved_blocks):
            return f"groups: {self.num_groups} of {moved} blocks, counted {step.groups} of {step.moved_blocks}"
        if self.num_groups == 0:
            return None
        ranks = _ranks(groups[:, 2])
        sources = np.repeat(groups[:, 0], groups[:, 2]) + ranks
        destinations = np.repeat(groups[:, 1], groups[:, 2]) + ranks
        if len(np.unique(destinations)) != len(destinations):
            return "groups: a staging block is written twice"
        slots, logical = self._rows_of(p, destinations)
        wrong = np.flatnonzero((slots == st.NONE) | (self.block_tables[slots, logical] != sources))
        if len(wrong) == 0:
            return None
        at = int(wrong[0])
        moved_to = f"groups: block {sources[at]} to staging block {destinations[at]}"
        if slots[at] == st.NONE:
            return f"{moved_to}, the stage row of no active slot"
        return f"{moved_to}, but the table of slot {slots[at]} holds {self.block_tables[slots[at], logical[at]]} there"

    def _rows_of(self, p: st.Record, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which slot's row, -1 for none, has these blocks of staging, and where in its table they are."""
        live = np.flatnonzero(self.active)
        if p.packed_blocks > 0:
            live = live[self.lengths[live] > 1]  # who reads its new token alone takes no place
            live = live[np.argsort(self.stage_offsets[live])]
            offsets = self.stage_offsets[live]
            at = np.searchsorted(offsets, places, side="right") - 1
            return np.where(places < p.packed_blocks, live[at], st.NONE), places - offsets[at]
        slot_of = np.full(len(self.active), st.NONE)
        slot_of[self.stage_rows[live]] = live
        stages, logical = np.divmod(places, int(p.stage_width))
        return slot_of[stages], logical


def _most_groups(p: st.Record) -> int:
    """Groups of one step at most: one for each block of the pool, or, where blocks are shared, of each row."""
    if p.read != READ_STAGED:
        return 1
    return int(p.slots * p.table_width) if p.sharing else int(p.pool_blocks)


def _ranks(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 … count - 1 for each count, one after another."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)

"""Packing a commit descriptor into its wire form: compiled loops over its rows, refusals, and the checksum.

One pass writes the fields of the rows and of the groups, checks them and sums them. Another finds which entries of
the block tables changed: a row whose owner is the same as in the step before has only grown, so what it held before
is not looked at. That keeps a step's packing proportional to what changed, not to slots times table width.
"""

from __future__ import annotations

from kvrm_gpu.wire import G_BLOCKS, G_DESTINATION, G_FIRST, G_SOURCE, WEIGHT
from kvrm_sim.compiled import entry
from kvrm_sim.state import Ints

OK, NEGATIVE_SLOT, NULL_BLOCK, STALE_ROW, NULL_SOURCE, OVERLAP, TWICE = range(7)
#: What each status says of the descriptor; `{row}` is the batch row or the group.
PROBLEMS = (
    "",
    "slot_mapping: row {row} has a negative slot; padding is entry 0 of the null block",
    "slot_mapping: active row {row} writes into the null block",
    "row {row} is inactive and not reset",
    "groups: group {row} moves nothing, or the null block",
    "groups: group {row} begins before the one before it ends, in staging",
    "slot_mapping: row {row} writes the entry of another row",
)


@entry
def pack_rows(
    tokens: Ints,
    slot_mapping: Ints,
    positions: Ints,
    lengths: Ints,
    stage_rows: Ints,
    active: Ints,
    block_size: int,
    to_tokens: Ints,
    to_slots: Ints,
    to_positions: Ints,
    to_lengths: Ints,
    to_stage_rows: Ints,
    to_active: Ints,
    words: Ints,
    first_word: int,
    end_word: int,
    seen: Ints,
    stamp: int,
) -> tuple[int, int, int, int]:
    """Write the fields of the rows. Returns (status, row at fault, active rows, checksum of the words).

    ``seen`` int64 [a power of two, 2]: a hash set of (entry, stamp), at least twice as many as rows; an entry with
    another stamp is free.
    """
    count = 0
    mask = len(seen) - 1
    for row in range(len(active)):
        slot = slot_mapping[row]
        if slot < 0:
            return NEGATIVE_SLOT, row, 0, 0
        if active[row]:
            count += 1
            if slot < block_size:
                return NULL_BLOCK, row, 0, 0
            place = (slot * 40503) & mask
            while seen[place, 1] == stamp:
                if seen[place, 0] == slot:
                    return TWICE, row, 0, 0
                place = (place + 1) & mask
            seen[place, 0] = slot
            seen[place, 1] = stamp
        elif slot != 0 or positions[row] != 0 or lengths[row] != 0 or stage_rows[row] != 0 or tokens[row] != 0:
            return STALE_ROW, row, 0, 0
        to_tokens[row] = tokens[row]
        to_slots[row] = slot
        to_positions[row] = positions[row]
        to_lengths[row] = lengths[row]
        to_stage_rows[row] = stage_rows[row]
        to_active[row] = active[row]
    total = 0
    for word in range(first_word, end_word):
        total += int(words[word]) * ((2 * word + 1) * WEIGHT)
    return OK, 0, count, total


@entry
def widest_row(counts: Ints) -> int:
    """The row of the largest count, the first of equals."""
    widest = 0
    for row in range(len(counts)):
        if counts[row] > counts[widest]:
            widest = row
    return widest


@entry
def pack_groups(groups: Ints, count: int, to_groups: Ints, first_word: int) -> tuple[int, int, int, int]:
    """Write the groups in use, (source, destination, blocks, blocks before). Returns (status, group at fault, blocks
    in all, checksum).

    Destinations need not ascend over rows, but two neighbours may not overlap.
    """
    blocks = 0
    total = 0
    for group in range(count):
        source, destination, moved = int(groups[group, 0]), int(groups[group, 1]), int(groups[group, 2])
        if source <= 0 or moved <= 0 or destination < 0:
            return NULL_SOURCE, group, 0, 0
        if group > 0:
            before, length = int(groups[group - 1, 1]), int(groups[group - 1, 2])
            if before <= destination < before + length:
                return OVERLAP, group, 0, 0
        to_groups[group, G_SOURCE] = source
        to_groups[group, G_DESTINATION] = destination
        to_groups[group, G_BLOCKS] = moved
        to_groups[group, G_FIRST] = blocks
        word = first_word + 4 * group
        total += source * ((2 * word + 1) * WEIGHT) + destination * ((2 * word + 3) * WEIGHT)
        total += moved * ((2 * word + 5) * WEIGHT) + blocks * ((2 * word + 7) * WEIGHT)
        blocks += moved
    return OK, 0, blocks, total


@entry
def patch_tables(
    tables: Ints,
    owners: Ints,
    counts: Ints,
    mirror: Ints,
    mirror_owners: Ints,
    mirror_counts: Ints,
    patches: Ints,
    first_word: int,
) -> tuple[int, int]:
    """Bring ``mirror`` (int32 [slots, width], what the device will hold) up to ``tables`` (int32 [slots, width]).

    ``owners`` int64 [slots]: a number that no two requests share, no two admissions of one, and no two times between
    which a row has given blocks back; 0 for a row without one. ``counts`` int64 [slots]: valid blocks of a row. While
    its owner stays, a row only grows; what is beyond its blocks is reset. Writes the entries that changed into
    ``patches`` int32 [capacity, 2] = (entry, block) as far as there is room. Returns (entries that changed, change of
    the checksum); more than the capacity: upload the whole.
    """
    width = mirror.shape[1]
    changed = 0
    total = 0
    for row in range(len(owners)):
        held = mirror_counts[row]
        same = owners[row] == mirror_owners[row] and counts[row] >= held
        for column in range(held if same else 0, max(counts[row], held)):
            block = tables[row, column] if column < counts[row] else 0
            if mirror[row, column] != block:
                entry = row * width + column
                word = first_word + entry
                total += (int(block) - int(mirror[row, column])) * ((2 * word + 1) * WEIGHT)
                mirror[row, column] = block
                if changed < len(patches):
                    patches[changed, 0] = entry
                    patches[changed, 1] = block
                changed += 1
        mirror_owners[row] = owners[row]
        mirror_counts[row] = counts[row]
    return changed, total

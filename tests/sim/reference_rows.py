"""The reference's batch rows: who is given which one, and when rows move; docs/semantics.md sections 3 and 6."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.reference_records import ReferenceConfig, Request


def slot_of(r: Request) -> int:
    """The batch row of a running request."""
    assert r.slot is not None, f"row {r.row} does not run"
    return r.slot


def lowest_free_slot(config: ReferenceConfig, running: Sequence[Request]) -> int:
    """The lowest batch row that no running request has."""
    live = {r.slot for r in running}
    return min(slot for slot in range(config.slots) if slot not in live)


def move_rows(config: ReferenceConfig, running: Sequence[Request], batch: int) -> int:
    """Section 6: rows at or above the captured batch move into the holes below it. Returns the moves."""
    moves = 0
    while max(slot_of(r) for r in running) >= batch:
        highest = max(running, key=slot_of)
        highest.slot = lowest_free_slot(config, running)
        moves += 1
    return moves

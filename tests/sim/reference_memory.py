"""The reference's memory: what is held and used after a decision, literal from docs/semantics.md section 7."""

from __future__ import annotations

from tests.sim.reference_far_history import entries
from tests.sim.reference_scheduler import Scheduler


def reserved_blocks(scheduler: Scheduler) -> int:
    """Capacity promised to the running requests; paged: blocks held."""
    config = scheduler.config
    if config.paged:
        return allocated_blocks(scheduler)
    return sum(config.blocks(r.reservation_tokens) for r in scheduler.running if r.reservation_tokens is not None)


def allocated_blocks(scheduler: Scheduler) -> int:
    """Blocks held, by who runs, moves or is ready; each counts once however many rows share it."""
    return len({block for r in [*scheduler.running, *scheduler.host.held_rows()] for block in r.blocks})


def used_tokens(scheduler: Scheduler) -> int:
    """Entries of who runs, moves or is ready, counted block by block; those of a shared block count once."""
    written: dict[int, int] = {}
    for r in [*scheduler.running, *scheduler.host.held_rows()]:
        written |= entries(scheduler.config, r)
    return sum(written.values())

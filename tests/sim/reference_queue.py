"""The reference's orders: who is first of waiting, and who has to go; literal from docs/semantics.md section 3."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.reference_records import ReferenceConfig, Request


def first_of(config: ReferenceConfig, waiting: Sequence[Request]) -> Request:
    """First of waiting: the head of the queue, or the least (score, turn)."""
    if config.order == "fcfs":
        return waiting[0]
    return min(waiting, key=lambda r: _score_and_turn(config, r))


def _score_and_turn(config: ReferenceConfig, r: Request) -> tuple[int, int]:
    assert r.turn is not None
    key = {"shortest_prompt": r.prompt, "shortest_total": r.prompt + r.output, "priority": r.priority}
    score = key[config.order]
    if config.aging_ns is not None:
        score = score * config.aging_ns + r.arrival_ns
    return score, r.turn


def victim_of(config: ReferenceConfig, running: Sequence[Request]) -> Request:
    """The row to preempt: of equals the later in running."""
    worst = {
        "last": lambda index: index,
        "least_computed": lambda index: -running[index].computed,
        "largest": lambda index: len(running[index].blocks),
        "lowest_priority": lambda index: running[index].priority,
    }[config.victim]
    return running[max(range(len(running)), key=lambda index: (worst(index), index))]

"""Invariants of the reference's host: its blocks, and what requests that are swapped or move have where."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.sim.reference_records import Request

if TYPE_CHECKING:
    from tests.sim.reference import Replica


def check_host(replica: Replica) -> None:
    """Host blocks are each in one place; a copy has what its request has computed; who moves has a transfer."""
    config, host = replica.config, replica.host
    copied = [block for r in replica.requests for block in r.host_blocks]
    everything = sorted([*copied, *host.pool.cached.values(), *host.pool.store.free_ids()])
    assert everything == list(range(1, config.host_blocks + 1)), f"host blocks lost or in two places: {everything}"
    host.pool.check()
    loading = Counter(block for r in replica.requests for block in r.loading)
    assert loading == host.pool.loads, f"loading are {loading}, held are {host.pool.loads}"
    waiting, moving = replica.scheduler.waiting, list(host.moving.values())
    for r in replica.requests:
        _check_loading(replica, r)
        if not r.host_blocks:
            assert not r.leaving, f"row {r.row} leaves without a copy"
            continue
        assert len(r.host_blocks) == config.blocks(r.computed), f"row {r.row} has a copy in {r.host_blocks}"
        assert r.known - r.computed == 1, f"row {r.row} was swapped, {r.computed} of {r.known} computed"
        assert (r in waiting) != (r in moving and not r.leaving), f"row {r.row} has a copy and is not where it waits"
        if r in waiting:
            assert not r.decoding, f"row {r.row} waits and decodes"
            assert r.leaving == (r in moving), f"row {r.row} leaves: {r.leaving}"
            assert r.leaving == (r.blocks != []), f"row {r.row} waits, leaves: {r.leaving}, holds {r.blocks}"
            assert r.leaving == (r.stage_row is not None), f"row {r.row} waits in stage row {r.stage_row}"
    rows = host.held_rows()
    assert len({r.row for r in rows}) == len(rows), "somebody moves twice"
    assert len(replica.scheduler.running) + len(rows) <= config.slots, f"{len(rows)} rows beside the running ones"
    for r in rows:
        assert r not in replica.scheduler.running, f"row {r.row} moves and runs"
        assert r.slot is None, f"row {r.row} moves in batch row {r.slot}"
        assert config.blocks(r.computed) <= len(r.blocks), f"row {r.row} moves {r.computed} entries, has {r.blocks}"
        assert r.leaving or r.computed < r.known, f"row {r.row} comes in with nothing left to compute"
    under_way = [t.number for t in host.link.all if t.noticed_ns is None]
    assert sorted(host.moving) == under_way, f"under way are transfers {under_way}, requests move by {host.moving}"
    if not config.host_overlap:
        assert host.link.all == [], "copies are part of the step, and one is on the link"


def _check_loading(replica: Replica, r: Request) -> None:
    """Who loads moves, and its blocks are not found before the copy has been noticed."""
    if not r.loading:
        return
    assert r in replica.host.moving.values(), f"row {r.row} loads and does not move"
    assert not r.leaving, f"row {r.row} loads and leaves"
    assert not r.host_blocks, f"row {r.row} loads and was swapped"
    assert r.computed % replica.config.block_size_tokens == 0, f"row {r.row} loads a part of a block"
    end = r.computed // replica.config.block_size_tokens
    for block in r.blocks[end - len(r.loading) : end]:
        assert replica.scheduler.pager.holders[block] == {r}, f"row {r.row} loads to block {block}, which it shares"
        assert replica.scheduler.pager.key_of(block) is None, f"row {r.row} loads to block {block}, which has a key"

"""Invariants of DESIGN section 8 that the reference asserts of itself, after every decision and every step."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.sim.reference_far_history import check_kept, check_planned, left_blocks, left_tokens
from tests.sim.reference_host_checks import check_host
from tests.sim.reference_memory import used_tokens
from tests.sim.reference_plan import Group, Planned
from tests.sim.reference_records import ReferenceConfig, Request
from tests.sim.reference_runs import RunStore

if TYPE_CHECKING:
    from tests.sim.reference import Replica


def check_state(replica: Replica) -> None:
    """Blocks, rows and requests are each in one place."""
    _check_blocks(replica)
    replica.scheduler.look()
    config, running, waiting = replica.config, replica.scheduler.running, replica.scheduler.waiting
    held_rows = replica.host.held_rows()
    slots = [r.slot for r in running]
    stage_rows = [r.stage_row for r in [*running, *held_rows]]
    assert len(set(slots)) == len(slots) <= config.slots, f"slots {slots}"
    assert all(slot is not None and 0 <= slot < config.slots for slot in slots), f"slots {slots}"
    assert len(set(stage_rows)) == len(stage_rows), f"stage rows {stage_rows}"
    assert all(row is not None and 0 <= row < config.slots for row in stage_rows), f"stage rows {stage_rows}"
    coming = [r for r in held_rows if not r.leaving]
    alive = [r.row for r in [*waiting, *running, *coming, *replica.unseen] if not r.ended]
    ended = [r.row for r in replica.requests if r.outcome is not None]
    arrived = [r.row for r in replica.requests]
    assert sorted(alive + ended) == sorted(arrived), f"{arrived} arrived, {alive} are alive, {ended} ended"
    for r in waiting:
        if not r.host_blocks:
            assert r.blocks == [], f"row {r.row} waits and holds blocks"
            assert (r.computed, r.dropped) == (0, 0), f"row {r.row} waits and has computed or dropped something"
            assert (r.slot, r.stage_row) == (None, None), f"row {r.row} waits and holds something"
    for r in running:
        assert r.computed < r.known <= r.prompt + r.output + r.overrun, f"row {r.row}: {r.computed} of {r.known}"
        assert 0 <= r.drafts <= (config.draft_tokens if r.decoding else 0), f"row {r.row} drafts {r.drafts} tokens"
        assert r.overrun < max(1, config.run_ahead), f"the row {r.row} made {r.overrun} tokens for nobody"
        assert r.ended == (r.outcome is not None), f"row {r.row} runs: {r.outcome}"
        assert not r.decoding or r.known - r.computed == 1, f"row {r.row} decodes, {r.known - r.computed} to compute"

    check_host(replica)


def _check_blocks(replica: Replica) -> None:
    """store + evictable + fenced + held = pool, each row holds what its entries need, and a reservation is one run."""
    config, scheduler = replica.config, replica.scheduler
    pool, pager = scheduler.pool, scheduler.pager
    pool.check()
    held = {block for r in [*scheduler.running, *replica.host.held_rows()] for block in r.blocks}
    fenced = [block for one in replica.pipeline.fences for block in one.blocks]
    everything = sorted([*held, *pager.evictable, *pool.free_ids(), *fenced])
    assert everything == list(range(1, config.pool_blocks + 1)), f"blocks lost or in two places: {everything}"
    assert pager.free() + len(held | pager.pending_ids()) == config.pool_blocks
    for r in scheduler.running:
        assert len(r.blocks) >= left_blocks(config, r), f"row {r.row} has {r.computed} entries in {r.blocks}"
        assert len(set(r.blocks)) == len(r.blocks), f"row {r.row} holds a block twice: {r.blocks}"
        if r.reservation_tokens is not None:
            assert isinstance(pool, RunStore)
            run = list(range(r.blocks[0], r.blocks[0] + pool.run_blocks(config.blocks(r.reservation_tokens))))
            assert r.blocks == run, f"row {r.row} holds {r.blocks}, not one run of its reservation"
    if config.paged:
        _check_sharing(replica)
        for r in scheduler.running:
            check_kept(config, r, may_wait=config.run_ahead > 0)
    else:
        assert (pager.holders, pager.cached, pager.evictable) == ({}, {}, []), "a reservation was shared"
        assert len(held) == sum(len(r.blocks) for r in scheduler.running), "a block has two owners"


def _check_sharing(replica: Replica) -> None:
    """refs are the rows that hold a block; a key and its block find each other; what two rows hold is full for both."""
    config, running, pager = replica.config, replica.scheduler.running, replica.scheduler.pager
    size = config.block_size_tokens
    places: dict[int, list[tuple[Request, int]]] = {}
    for r in [*running, *replica.host.held_rows()]:
        for index, block in enumerate(r.blocks):
            places.setdefault(block, []).append((r, index))
    holders = {block: {r for r, _ in found} for block, found in places.items()}
    assert pager.holders == holders, f"holders of {sorted(pager.holders)}, held are {sorted(holders)}"
    key_of = {block: key for key, block in pager.cached.items()}
    assert len(key_of) == len(pager.cached), f"two keys find one block: {pager.cached}"
    fenced = replica.pipeline.fenced_blocks()
    assert sorted(pager.evictable) == sorted(set(key_of) - set(holders) - fenced), (
        f"evictable are {pager.evictable}, with a key {sorted(key_of)}, held {sorted(holders)}, fenced {sorted(fenced)}"
    )
    keys = {r: pager.keys(r) for holding in holders.values() for r in holding}
    for block, found in places.items():
        for r, index in found:
            if len(found) > 1 or block in key_of:
                assert (index + 1) * size <= r.computed, f"row {r.row}: block {block} is shared and not full"
            assert block not in key_of or keys[r][index : index + 1] == [key_of[block]], (
                f"row {r.row}: block {block} has key {key_of[block]}, the row's keys are {keys[r]}"
            )
    beyond_first = sum(len(holding) - 1 for holding in holders.values())
    tokens = sum(left_tokens(config, r) for r in [*running, *replica.host.held_rows()]) - beyond_first * size
    assert used_tokens(replica.scheduler) == tokens, f"{tokens} tokens are used"


def check_idle(replica: Replica) -> None:
    """Nothing is planned only when there is nobody to serve, and nothing is left to notice."""
    left_over = [r.row for r in [*replica.scheduler.running, *replica.scheduler.waiting, *replica.host.ready]]
    moving = [r.row for r in replica.host.moving.values()]
    assert left_over == [] or moving != [], f"nothing is planned at {replica.now_ns} ns for rows {left_over}"
    assert replica.unseen == [], f"idle, and rows {replica.unseen} are not seen"
    assert replica.host.link.completed == [], "idle, and a transfer that has completed is not noticed"
    assert replica.pipeline.fences == [], f"idle, and fenced is {replica.pipeline.fences}"


def check_decision(replica: Replica, planned: Planned) -> None:
    """Planned rows run, once each, within the budget, in blocks that they hold; who runs is served or waits."""
    config, running, held_up = replica.config, replica.scheduler.running, replica.scheduler.held_up
    rows = [r for r, _ in planned]
    tokens = sum(n for _, n in planned)
    assert len({r.row for r in rows}) == len(rows), "a row is planned twice"
    assert all(r in running for r in rows), "a row is planned that does not run"
    for r, n in planned:
        assert 1 <= n <= r.known - r.computed, f"row {r.row}: {n} tokens planned"
        end = r.computed + n + r.drafts
        assert config.blocks(end) - r.dropped <= len(r.blocks), f"row {r.row} has no block for its entries"
        assert end <= config.limit_tokens, f"row {r.row} drafts beyond the limit"
        assert r.reservation_tokens is None or end <= r.reservation_tokens, f"row {r.row} drafts beyond its reservation"
        if config.paged:
            check_kept(config, r, may_wait=False)
            check_planned(config, r, n)
            _check_written(replica, r, n)
    if config.prefill == "chunked":
        assert tokens <= config.token_budget, f"{tokens} tokens planned"
    if not planned:
        return
    if config.prefill != "separate":
        assert rows == [r for r in running if r not in held_up], "a running row is left out"
    elif any(r.decoding for r in rows):
        assert rows == [r for r in running if r not in held_up], "a separate step mixes, or leaves a row out"
    _check_held_up(replica)


def _check_held_up(replica: Replica) -> None:
    """Who waits lacks blocks that are pending; while somebody waits nobody joins after."""
    scheduler = replica.scheduler
    for r in scheduler.held_up:
        assert r in scheduler.running, f"row {r.row} waits for blocks and does not run"
        assert scheduler.pager.pending_ids() != set(), f"row {r.row} waits for nothing"
        assert replica.config.paged, f"row {r.row} has a reservation and waits for blocks"
    if replica.config.prefill != "separate" and scheduler.held_up:
        joined = [r.row for r in scheduler.running if r.joined_in == replica.pipeline.number]
        assert not joined, f"rows {joined} joined while a row waits"


def _check_written(replica: Replica, r: Request, n: int) -> None:
    """A row writes only to blocks that it alone holds and that nobody finds by a key."""
    pager, size = replica.scheduler.pager, replica.config.block_size_tokens
    end = r.computed + n + r.drafts
    for block in r.blocks[r.computed // size - r.dropped : replica.config.blocks(end) - r.dropped]:
        assert pager.holders[block] == {r}, f"row {r.row} writes to block {block}, which it shares"
        assert pager.key_of(block) is None, f"row {r.row} writes to block {block}, which has a key"


def check_staging(config: ReferenceConfig, planned: Planned, groups: list[Group]) -> None:
    """Full: each (row, logical block) of the histories is moved once. Delta: exactly those not valid before.

    Either way a group is one run of physical blocks in logical order, of one row unless staging is packed. A mixed step
    moves nothing, nor does one whose histories are more than packed staging holds.
    """
    moved = [(r.row, logical, g.source + i) for g in groups for i, (r, logical) in enumerate(g.places)]
    if config.packed_blocks == 0:
        assert all(len({r for r, _ in g.places}) == 1 for g in groups), "a group goes to two staging rows"
    if any(not r.decoding for r, _ in planned):
        assert moved == [], "a mixed step reads the block table and moves nothing"
        return
    wanted = []
    for r, _ in planned:
        valid = set() if config.staging == "full" or r.staged_blocks is None else r.staged_blocks
        history = left_blocks(config, r)
        wanted += [(r.row, logical, r.blocks[logical]) for logical in range(history) if logical not in valid]
    if 0 < config.packed_blocks < len(wanted):
        assert moved == [], f"moved {moved} into packed staging of {config.packed_blocks} blocks"
        return
    assert moved == wanted, f"moved {moved}, not valid were {wanted}"
    if config.packed_blocks > 0 and config.merge == "adjacent":
        _check_merged([r.blocks[: left_blocks(config, r)] for r, _ in planned], groups)


def _check_merged(histories: list[list[int]], groups: list[Group]) -> None:
    """Packed: the runs, less the pairs of rows next to each other whose blocks follow each other there."""
    runs = sum(1 + sum(b != a + 1 for a, b in pairwise(blocks)) for blocks in histories if blocks)
    pairs = sum(later[0] == earlier[-1] + 1 for earlier, later in pairwise(filter(None, histories)))
    assert len(groups) == runs - pairs, f"{histories} have {runs} runs, {pairs} pairs and {len(groups)} groups"


def check_given_back(replica: Replica, planned: Planned) -> None:
    """After a step a decoding row of it holds what its entries need and no more, whatever it had taken for drafts."""
    for r in replica.requests:
        assert r.delivered <= max(0, r.output), f"row {r.row} delivered {r.delivered} of {r.output} tokens"
    for r in replica.scheduler.running:
        assert r.drafts == 0, f"row {r.row} drafts between steps"
        if r.decoding and r.reservation_tokens is None and any(r is other for other, _ in planned):
            due = left_blocks(replica.config, r)
            assert len(r.blocks) == due, f"row {r.row} has {r.computed} entries in {r.blocks}, {due} blocks are due"


def check_finish(r: Request) -> None:
    """A request that ends wrote P + O' - 1 entries, and its times are in order."""
    assert r.computed == r.prompt + r.output - 1, f"row {r.row} wrote {r.computed} entries"
    assert r.admitted_ns is not None
    assert r.first_token_ns is not None
    assert r.last_token_ns is not None
    assert r.arrival_ns <= r.admitted_ns <= r.first_token_ns <= r.last_token_ns, f"row {r.row}: times"


def check_progress(replica: Replica) -> None:
    """The first running row advances in each step that is not a prefill step, so a token is due within the limit."""
    steps_without_token = 0
    for step in reversed(replica.steps):
        if step.plan["sampled_rows"] > 0:
            break
        steps_without_token += 1
    assert steps_without_token <= replica.config.limit_tokens, (
        f"no token for {steps_without_token} steps; running {[r.row for r in replica.scheduler.running]}, "
        f"waiting {[r.row for r in replica.scheduler.waiting]}"
    )
    assert all(gap >= 0 for gap in replica.itl_ns[-replica.config.slots :]), "a gap is negative"


def check_drained(replica: Replica) -> None:
    """Nothing is left: every block is free, every request ended, every token that was to be delivered was."""
    scheduler = replica.scheduler
    left_over = [r.row for r in scheduler.waiting + scheduler.running]
    assert left_over == [], f"rows {left_over} are left over"
    assert replica.unseen == [], f"rows {replica.unseen} were never seen"
    assert (replica.host.moving, replica.host.ready) == ({}, []), "somebody still moves"
    assert replica.host.pool.free() == replica.config.host_blocks, "host blocks leaked"
    left = sorted(scheduler.pool.free_ids() + scheduler.pager.evictable)
    assert left == list(range(1, replica.config.pool_blocks + 1)), "blocks leaked"
    for r in replica.requests:
        assert r.outcome is not None, f"row {r.row} has no outcome"
        assert r.outcome == "rejected" or r.delivered == r.output, f"row {r.row} delivered {r.delivered}"
        assert (r.hit_tokens is None) == (r.outcome == "rejected"), f"row {r.row} hit {r.hit_tokens} tokens"
        assert (r.hit_tokens or 0) < r.prompt, f"row {r.row} hit {r.hit_tokens} tokens of {r.prompt}"
        assert r.recomputed_tokens >= 0, f"row {r.row} recomputed {r.recomputed_tokens} tokens"
    tokens = sum(r.delivered for r in replica.requests)
    sampled = sum(step.plan["sampled_rows"] for step in replica.steps)
    drafted = sum(step.plan["drafted_tokens"] for step in replica.steps)
    assert 0 <= replica.accepted_tokens <= drafted, f"{replica.accepted_tokens} of {drafted} drafts are accepted"
    ended = sum(step.plan["ended_rows"] for step in replica.steps)
    assert tokens == sampled - drafted + replica.accepted_tokens - ended, "tokens delivered that nobody sampled"
    assert len(replica.itl_ns) == sum(max(0, r.delivered - 1) for r in replica.requests), "a gap is missing"
    taken = sum(step.plan["blocks_taken"] for step in replica.steps) + scheduler.blocks_taken
    freed = sum(step.plan["blocks_freed"] for step in replica.steps) + scheduler.blocks_freed
    assert taken == freed, f"{taken} blocks taken, {freed} released"

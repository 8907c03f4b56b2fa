"""Swapping: a victim's blocks go to the host and come back (docs/semantics.md section 3, Swapping); and rows on the
move, whose transfer the host link carries.

A row on the move has a stage row and blocks, but no batch row, and is not in running. ``moving`` lists them in the
order of submission; those whose transfer in has been noticed are *ready* and wait there to join.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.cost import host_copy_ns, recompute_ns
from kvrm_sim.decoding import forget_row, row_computed
from kvrm_sim.links import IN, OUT, next_to_notice, submit_transfer
from kvrm_sim.moves import MOVE_IN, MOVE_OUT, log_move, starts_group
from kvrm_sim.offload import host_room, release_on_host, take_on_host, unpin_on_host
from kvrm_sim.pager import blocks_for, history_runs, release_row
from kvrm_sim.prefix import end_leaving, give_keys, start_leaving
from kvrm_sim.rowlist import close_row, free_stage_row, leave_running
from kvrm_sim.state import NONE, Arrays, Record, Records

RECOMPUTE, SWAP, AUTO = range(3)


@outlined
def can_swap(p: Record, s: Record, a: Arrays, row: int) -> bool:
    """Whether a victim goes to the host: it decodes, there is room, and (`auto`) it costs no more than recomputing."""
    r = a.rows[row]
    if p.preempt == RECOMPUTE or r.ended or (r.decoding == 0 and r.waits == 0):
        return False
    computed = row_computed(s, a.rows, row)
    count = blocks_for(p, computed)
    if host_room(a) < count:
        return False
    if p.preempt == SWAP:
        return True
    return swap_costs_less(p, computed, history_runs(p, a.rows, a.table, row, computed), count)


@kernel
def swap_costs_less(p: Record, computed: int, runs: int, blocks: int) -> bool:
    """`auto`: whether moving so many blocks out and in takes no longer than computing their tokens again."""
    out_ns = host_copy_ns(p, blocks, runs, p.host_out_block_ns)
    in_ns = host_copy_ns(p, blocks, runs, p.host_in_block_ns)
    return out_ns + in_ns <= recompute_ns(p, 0, computed)


@kernel
def load_costs_less(p: Record, start: int, tokens: int, blocks: int) -> bool:
    """Whether loading blocks behind `start` cached tokens takes no longer than computing their tokens."""
    return host_copy_ns(p, blocks, 1, p.host_in_block_ns) <= recompute_ns(p, start, tokens)


@kernel
def _copy(p: Record, s: Record, a: Arrays, row: int, target: int, count: int, kind: int) -> int:
    """Copy between a row's first blocks and a chain of host blocks. Groups: neighbours on both sides are one."""
    groups, last_source, last_target = 0, -1, -1
    for logical in range(count):
        source = a.table[row, logical]
        groups += starts_group(p.host_merge, source, target, last_source, last_target)
        last_source, last_target = source, target
        if kind == MOVE_OUT:
            log_move(p, s, a, kind, source, target)
        else:
            log_move(p, s, a, kind, target, source)
        target = a.host_blocks[target].next
    return groups


@outlined
def swap_out(p: Record, s: Record, a: Arrays, row: int) -> None:
    """A victim's blocks are copied to the host. It decodes no more; its request goes back to waiting elsewhere."""
    r = a.rows[row]
    q = a.requests[r.request]
    count = blocks_for(p, r.computed)
    q.host_first = take_on_host(a, count)
    q.host_tokens = r.computed
    groups = _copy(p, s, a, row, q.host_first, count, MOVE_OUT)
    s.new_out_blocks += count
    s.new_out_groups += groups
    s.swaps += 1
    if p.host_overlap == 0:
        q.host_ready = 1
        release_row(p, s, a, row, False)
        close_row(s, a.rows, row)
        return
    q.host_ready = 0
    leave_running(s, a.rows, row)
    if p.sharing:
        for logical in range(r.blocks):
            start_leaving(s, a.blocks, a.table[row, logical])
    else:
        s.leaving_blocks += r.blocks
    s.moving_tokens += r.computed
    submit_transfer(p, s, a.rows, row, OUT, host_copy_ns(p, count, groups, p.host_out_block_ns))


@outlined
def swap_in(p: Record, s: Record, a: Arrays, row: int) -> None:
    """A swapped request has its blocks on the device again: they are copied, in this step or on the link."""
    r = a.rows[row]
    q = a.requests[r.request]
    count = blocks_for(p, q.host_tokens)
    groups = _copy(p, s, a, row, q.host_first, count, MOVE_IN)
    s.new_in_blocks += count
    s.new_in_groups += groups
    r.computed = q.host_tokens
    r.loaded = 0
    if p.host_overlap == 0:
        release_on_host(a, q.host_first)
        q.host_first = 0
    else:
        s.moving_tokens += r.computed
        submit_transfer(p, s, a.rows, row, IN, host_copy_ns(p, count, groups, p.host_in_block_ns))


@outlined
def notice_transfers(p: Record, s: Record, a: Arrays, latest_ns: int) -> None:
    """What follows from the transfers that were done by a time (D14: noticed at the next decision, never later)."""
    while True:
        row = next_to_notice(s, a.rows, latest_ns)
        if row == NONE:
            return
        r = a.rows[row]
        q = a.requests[r.request]
        s.unnoticed_ns += s.now_ns - r.done_ns
        if r.direction == OUT:
            q.host_ready = 1
            if p.sharing:
                for logical in range(r.blocks):
                    end_leaving(s, a.blocks, a.table[row, logical])
            else:
                s.leaving_blocks -= r.blocks
            s.moving_tokens -= r.computed
            release_row(p, s, a, row, True)
            s.num_moving = forget_row(a.rows["moving"], s.num_moving, row)
            free_stage_row(s, a.rows, row)
            continue
        # Ready: behind those that are, in front of nobody who is not (`ready_at` orders them).
        r.noticed = 1
        r.ready_at = s.readied
        s.readied += 1
        if r.loaded == 0:
            release_on_host(a, q.host_first)
            q.host_first = 0
        else:
            unpin_on_host(p, a, q.ids_at, r.loaded_from, r.loaded)
            end = r.loaded_from + r.loaded
            give_keys(p, s, a.blocks, a.keys, a.ids, a.table, row, q.ids_at, r.loaded_from, end)


@kernel
def first_ready(s: Record, rows: Records) -> int:
    """The row that has been ready longest, or -1."""
    found = NONE
    for at in range(s.num_moving):
        row = rows["moving"][at]
        if rows[row].noticed and (found == NONE or rows[row].ready_at < rows[found].ready_at):
            found = row
    return found

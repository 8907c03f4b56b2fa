"""What a replica does next: the schedule, its transfers, its launch, its cost, composed into one planned step."""

from __future__ import annotations

from kvrm_sim.ahead import begin_decision, follows
from kvrm_sim.compiled import kernel, outlined, part
from kvrm_sim.cost import GRAPH, PIECEWISE, time_step
from kvrm_sim.fences import pending_blocks
from kvrm_sim.launch import choose_launch
from kvrm_sim.prefix import available_blocks
from kvrm_sim.scheduler import schedule
from kvrm_sim.state import Arrays, Record
from kvrm_sim.transport import count_transfers


@kernel
def _open_step(s: Record, step: Record) -> None:
    step.start_ns = s.now_ns
    step.decode_rows = 0
    step.prefill_rows = 0
    step.prefill_tokens = 0
    step.prefill_read_tokens = 0
    step.prefill_pairs = 0
    step.sampled_rows = 0
    step.preempted = 0
    step.stalled_rows = 0
    s.num_prefill = 0


@kernel
def _say_what_it_is(step: Record) -> None:
    """What the step counts as in the totals."""
    step.is_step = 1
    step.is_decode = 1 if step.prefill_rows == 0 else 0
    step.is_mixed = 1 - step.is_decode
    step.is_graph = 1 if step.launch_kind == GRAPH else 0
    step.is_piecewise = 1 if step.launch_kind == PIECEWISE else 0
    step.is_eager = 1 - step.is_graph - step.is_piecewise
    step.graph_rows = step.padded_rows if step.is_graph else 0
    step.graph_live_rows = step.decode_rows if step.is_graph else 0


@outlined
def _take_over_copies(s: Record, step: Record) -> None:
    """Copies that decisions have asked for since the last planned step belong to this one."""
    step.compacted_blocks = s.new_compacted_blocks
    step.compaction_groups = s.new_compaction_groups
    step.host_out_blocks = s.new_out_blocks
    step.host_out_groups = s.new_out_groups
    step.host_in_blocks = s.new_in_blocks
    step.host_in_groups = s.new_in_groups
    step.offload_blocks = s.new_offload_blocks
    step.offload_groups = s.new_offload_groups
    s.new_compacted_blocks = 0
    s.new_compaction_groups = 0
    s.new_out_blocks = 0
    s.new_out_groups = 0
    s.new_in_blocks = 0
    s.new_in_groups = 0
    s.new_offload_blocks = 0
    s.new_offload_groups = 0


@part
def decide(p: Record, s: Record, step: Record, a: Arrays) -> bool:
    """Plan the next step at the present time, with its cost; False when there is nothing to run."""
    _open_step(s, step)
    if s.undecided == 0:  # what is decided before a step is planned counts in it
        s.undecided = 1
        s.blocks_taken = 0
        s.num_moves = 0
        s.admissions_before = s.admissions
        step.admitted = 0
        step.hit_tokens = 0
        step.copied_blocks = 0
    if p.run_ahead + p.host_blocks + p.compaction > 0:
        begin_decision(p, s, a)
    schedule(p, s, step, a)
    if step.decode_rows + step.prefill_rows == 0:
        return False
    count_transfers(p, s, step, a)
    choose_launch(p, s, step, a.ladders, a.captured, a.rows)
    step.blocks_taken = s.blocks_taken
    step.blocks_freed = s.blocks_freed
    s.blocks_freed = 0
    if p.host_blocks + p.compaction > 0:
        _take_over_copies(s, step)
    step.reserved_blocks = s.reserved_blocks
    step.allocated_blocks = p.pool_blocks - available_blocks(s) - s.fenced_blocks
    step.pending_blocks = pending_blocks(s)
    step.used_tokens = s.sum_computed + s.used_prefill + s.stalled_tokens + s.moving_tokens
    step.used_tokens -= p.block_size * (s.shared_again + s.sum_dropped_blocks)
    step.cached_blocks = s.evictable
    step.running = s.num_running
    step.preempted += s.carried_preemptions
    s.carried_preemptions = 0
    step.waiting = s.num_waiting + s.num_unseen
    step.ended_rows = s.num_ended if step.decode_rows > 0 else 0
    step.follows = follows(p, s)
    step.back_to_back = 1 if s.steps > 0 and step.start_ns == step.end_ns else 0  # `end_ns` is the last step's yet
    time_step(p, step)
    _say_what_it_is(step)
    step.end_ns = step.start_ns + step.duration_ns
    step.delivered_tokens = step.sampled_rows - step.drafted_tokens - step.ended_rows
    step.accepted_tokens = 0
    s.undecided = 0
    s.start_2_ns = s.start_1_ns
    s.start_1_ns = step.start_ns
    return True

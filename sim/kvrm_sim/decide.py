"""What a replica does next: the schedule, its transfers, its launch, its cost, composed into one planned step."""

from __future__ import annotations

from kvrm_sim.compiled import kernel, part
from kvrm_sim.cost import time_step
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
    step.admitted = 0
    step.hit_tokens = 0
    step.copied_blocks = 0
    s.num_prefill = 0


@part
def decide(p: Record, s: Record, step: Record, a: Arrays) -> bool:
    """Plan the next step at the present time, with its cost; False when there is nothing to run."""
    _open_step(s, step)
    s.blocks_taken = 0
    schedule(p, s, step, a)
    if step.decode_rows + step.prefill_rows == 0:
        return False
    count_transfers(p, s, step, a)
    choose_launch(p, s, step, a.ladders, a.captured, a.rows)
    step.blocks_taken = s.blocks_taken
    step.blocks_freed = s.blocks_freed
    s.blocks_freed = 0
    step.reserved_blocks = s.reserved_blocks
    step.allocated_blocks = p.pool_blocks - available_blocks(s)
    step.used_tokens = s.sum_computed + s.used_prefill - p.block_size * (s.shared_again + s.sum_dropped_blocks)
    step.cached_blocks = s.evictable
    step.running = s.num_running
    step.waiting = s.num_waiting
    time_step(p, step)
    step.end_ns = step.start_ns + step.duration_ns
    return True

"""Which captured graph serves a step, if any; what the padded batch and the read extent then are."""

from __future__ import annotations

from kvrm_sim.compiled import kernel
from kvrm_sim.cost import EAGER, GRAPH, LAYER, PIECEWISE
from kvrm_sim.decoding import READ_RESERVED, READ_STAGED, longest_computed
from kvrm_sim.rowlist import move_rows_below
from kvrm_sim.state import Ints, Record, Records

LAUNCH_EAGER, LAUNCH_GRAPH = range(2)
MIXED_EAGER, MIXED_PIECEWISE = range(2)
EXTENT_LIVE, EXTENT_BUCKET = range(2)


@kernel
def least_entry(ladders: Ints, at: int, count: int, value: int) -> int:
    """The smallest ladder entry >= value, or 0 when it is off the ladder."""
    low, high = at, at + count
    while low < high:
        middle = (low + high) >> 1
        if ladders[middle] >= value:
            high = middle
        else:
            low = middle + 1
    return ladders[low] if low < at + count else 0


@kernel
def _graph_for(p: Record, s: Record, step: Record, ladders: Ints, rows: Records) -> bool:
    """Choose the captured (batch, context, group capacity) of a decode step; False when none covers it."""
    if step.decode_rows != step.batch_is_for:  # mostly it is the same as in the step before
        step.batch_is_for = step.decode_rows
        step.batch = least_entry(ladders, p.batch_sizes_at, p.num_batch_sizes, step.decode_rows)
    batch = step.batch
    longest = min(longest_computed(s, rows) + 1, p.history_tokens) if p.track_longest else 1
    context = least_entry(ladders, p.contexts_at, p.num_contexts, longest)
    if batch == 0 or context == 0:
        step.off_ladder = 1
        return False
    if p.read == READ_STAGED:
        capacity = least_entry(ladders, p.capacities_at, p.num_capacities, step.groups)
        if capacity == 0:
            if p.scope == LAYER:
                step.over_capacity = 1
                return False
            capacity = ladders[p.capacities_at + p.num_capacities - 1]
        step.group_capacity = capacity
    step.padded_rows = batch
    step.context_bucket = context
    return True


@kernel
def choose_launch(p: Record, s: Record, step: Record, ladders: Ints, rows: Records) -> None:
    """Fill in launch kind, padding, row moves and the tokens that decode attention reads."""
    tokens = step.decode_rows + step.prefill_tokens
    step.launch_kind = EAGER
    step.padded_rows = step.decode_rows + step.prefill_rows
    step.dense_tokens = tokens
    step.context_bucket = 0
    step.group_capacity = 0
    step.row_moves = 0
    step.off_ladder = 0
    step.over_capacity = 0
    if p.launch == LAUNCH_GRAPH and step.prefill_rows == 0:
        if _graph_for(p, s, step, ladders, rows):
            step.launch_kind = GRAPH
            step.dense_tokens = step.padded_rows
            step.row_moves = move_rows_below(s, rows, step.padded_rows)
    elif p.launch == LAUNCH_GRAPH and p.mixed == MIXED_PIECEWISE:
        padded = least_entry(ladders, p.token_sizes_at, p.num_token_sizes, tokens)
        if padded > 0:
            step.launch_kind = PIECEWISE
            step.dense_tokens = padded
        else:
            step.off_ladder = 1
    if step.decode_rows == 0:
        step.read_tokens = 0
        return
    step.read_tokens = s.sum_computed + s.num_decode - p.block_size * s.sum_dropped_blocks
    if p.extent == EXTENT_BUCKET:
        if step.launch_kind == GRAPH:
            step.read_tokens = step.padded_rows * step.context_bucket
        elif p.read == READ_RESERVED:
            step.read_tokens = s.sum_reserved_tokens

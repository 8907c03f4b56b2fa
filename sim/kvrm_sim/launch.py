"""Which captured graph serves a step, if any; what the padded batch and the read extent then are."""

from __future__ import annotations

from kvrm_sim.compiled import kernel
from kvrm_sim.cost import EAGER, EXTENT_BUCKET, GRAPH, LAYER, PIECEWISE
from kvrm_sim.decoding import READ_RESERVED, READ_STAGED, longest_computed
from kvrm_sim.rowlist import move_rows_below
from kvrm_sim.state import NONE, Ints, Record, Records

LAUNCH_EAGER, LAUNCH_GRAPH = range(2)
MIXED_EAGER, MIXED_PIECEWISE = range(2)
CAPTURE_WARM, CAPTURE_FIRST_USE = range(2)


def num_shapes(p: Record) -> int:
    """Shapes that may be captured: (batch, context, capacity) of decode steps, then piecewise token sizes."""
    return int(p.num_batch_sizes * p.num_contexts * max(1, p.num_capacities) + p.num_token_sizes)


@kernel
def least_entry(ladders: Ints, at: int, count: int, value: int) -> int:
    """Place in `ladders` of the smallest entry >= value, or -1 when it is off the ladder."""
    low, high = at, at + count
    while low < high:
        middle = (low + high) >> 1
        if ladders[middle] >= value:
            high = middle
        else:
            low = middle + 1
    return low if low < at + count else NONE


@kernel
def _use_shape(p: Record, step: Record, captured: Ints, shape: int) -> None:
    """A graph serves the step; it captures the graph first, if nobody has yet."""
    if p.capture == CAPTURE_FIRST_USE and captured[shape] == 0:
        captured[shape] = 1
        step.captured = 1


@kernel
def _graph_for(p: Record, s: Record, step: Record, ladders: Ints, captured: Ints, rows: Records) -> bool:
    """Choose the captured (batch, context, group capacity) of a decode step; False when none covers it."""
    if s.num_running != step.batch_is_for:  # a row that waits keeps its batch row; mostly it is as in the step before
        step.batch_is_for = s.num_running
        step.batch_at = least_entry(ladders, p.batch_sizes_at, p.num_batch_sizes, s.num_running)
    batch = step.batch_at
    longest = 1
    if p.track_longest:
        longest = (longest_computed(s, rows) if p.draft_tokens == 0 else s.longest_drafted) + 1
        longest = min(longest, p.history_tokens)
    context = least_entry(ladders, p.contexts_at, p.num_contexts, longest)
    if batch == NONE or context == NONE or (p.max_padding > 0 and ladders[batch] > p.max_padding * step.decode_rows):
        step.off_ladder = 1
        return False
    shape = (batch - p.batch_sizes_at) * p.num_contexts + context - p.contexts_at
    if p.read == READ_STAGED:
        capacity = least_entry(ladders, p.capacities_at, p.num_capacities, step.groups)
        if capacity == NONE:
            if p.scope == LAYER:
                step.over_capacity = 1
                return False
            capacity = p.capacities_at + p.num_capacities - 1
        step.group_capacity = ladders[capacity]
        if p.scope == LAYER:  # the gather is in the graph, its capacity a part of the shape
            shape = shape * p.num_capacities + capacity - p.capacities_at
    step.padded_rows = ladders[batch]
    step.context_bucket = ladders[context]
    _use_shape(p, step, captured, shape)
    return True


@kernel
def choose_launch(p: Record, s: Record, step: Record, ladders: Ints, captured: Ints, rows: Records) -> None:
    """Fill in launch kind, padding, row moves and the tokens that decode attention reads."""
    tokens = step.decode_rows + step.drafted_tokens + step.prefill_tokens
    step.launch_kind = EAGER
    step.padded_rows = step.decode_rows + step.prefill_rows
    step.dense_tokens = tokens
    step.context_bucket = 0
    step.group_capacity = 0
    step.row_moves = 0
    step.off_ladder = 0
    step.captured = 0
    if step.over_capacity:
        pass  # packed staging cannot hold it: it reads pages, eagerly
    elif p.launch == LAUNCH_GRAPH and step.prefill_rows == 0:
        if _graph_for(p, s, step, ladders, captured, rows):
            step.launch_kind = GRAPH
            step.dense_tokens = step.padded_rows * (1 + p.draft_tokens)
            step.row_moves = move_rows_below(s, rows, step.padded_rows)
    elif p.launch == LAUNCH_GRAPH and p.mixed == MIXED_PIECEWISE:
        padded = least_entry(ladders, p.token_sizes_at, p.num_token_sizes, tokens)
        if padded != NONE:
            step.launch_kind = PIECEWISE
            step.dense_tokens = ladders[padded]
            first = p.num_batch_sizes * p.num_contexts * max(1, p.num_capacities)
            _use_shape(p, step, captured, first + padded - p.token_sizes_at)
        else:
            step.off_ladder = 1
    if step.decode_rows == 0:
        step.read_tokens = 0
        return
    step.read_tokens = s.sum_computed + s.num_decode + step.drafted_tokens - p.block_size * s.sum_dropped_blocks
    if p.extent == EXTENT_BUCKET:
        if step.launch_kind == GRAPH:
            step.read_tokens = step.padded_rows * step.context_bucket
        elif p.read == READ_RESERVED:
            step.read_tokens = s.sum_reserved_tokens

"""What a planned step costs: each part apart, busy and exposed (DESIGN section 6, docs/cost.md).

Every part is float64 in one fixed expression order, rounded once to int64 nanoseconds. Coefficients are nanoseconds
per unit and come from the hardware profile through parameters.py. A part's *busy* time is what it would take alone;
its *exposed* time is what it adds to the step's critical path, in the order of ``PARTS``; exposed parts add up to the
step exactly.

Left out: contention between the host's threads, clock changes under load, cache effects between steps.
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.decoding import READ_STAGED, reads_pages
from kvrm_sim.state import Record

EAGER, GRAPH, PIECEWISE = range(3)
LAYER, MODEL = range(2)
PER_COPY, BATCH, KERNEL = range(3)
EXTENT_LIVE, EXTENT_BUCKET = range(2)

#: Descriptors that one call of the driver's batch copy takes (DESIGN section 6).
BATCH_DESCRIPTORS = 4096
#: The commit descriptor on the wire: header, bytes a row (lengths, positions, slot mapping, mask), a changed table
#: entry, a group.
DESCRIPTOR_HEADER_BYTES, DESCRIPTOR_ROW_BYTES, DESCRIPTOR_BLOCK_BYTES, DESCRIPTOR_GROUP_BYTES = 256, 32, 8, 12


@kernel
def _round(ns: float) -> int:
    return int(ns + 0.5)


@kernel
def host_ns(p: Record, step: Record) -> int:
    """Scheduler, pager and packing on the host."""
    return _round(
        p.host_step_ns
        + p.host_row_ns * step.decode_rows
        + p.host_chunk_ns * step.prefill_rows
        + p.host_block_ns * (step.blocks_taken + step.blocks_freed)
        + p.host_group_ns * step.groups
    )


@kernel
def commit_ns(p: Record, step: Record) -> int:
    """Upload of the commit descriptor (delta form: rows, changed table entries, groups)."""
    size = (
        DESCRIPTOR_HEADER_BYTES
        + DESCRIPTOR_ROW_BYTES * step.padded_rows
        + DESCRIPTOR_BLOCK_BYTES * step.blocks_taken
        + DESCRIPTOR_GROUP_BYTES * step.groups
    )
    return _round(p.commit_call_ns + p.commit_byte_ns * size)


@kernel
def serial_launch_ns(p: Record, step: Record) -> int:
    """The part of launching that device work cannot hide."""
    if step.launch_kind == EAGER:
        return _round(p.first_launch_ns)
    if step.launch_kind == GRAPH:
        return _round(p.graph_replay_ns + p.graph_node_gap_ns * p.kernels)
    return _round(p.first_launch_ns + p.graph_node_gap_ns * p.kernels)


@kernel
def mixed_launch_ns(p: Record, step: Record) -> int:
    """What attention over decoding rows and over chunks takes to launch in one step, beyond either of them alone."""
    if step.decode_rows == 0 or step.prefill_rows == 0:
        return 0
    return _round(p.mixed_launch_ns)


@kernel
def capture_ns(p: Record, step: Record) -> int:
    """The stall of a step that captures its graph (`launch.capture = first_use`)."""
    return _round(p.graph_capture_ns) if step.captured else 0


@kernel
def asynchronous_launch_ns(p: Record, step: Record) -> int:
    """The part of launching that runs ahead of the device: the longer of it and the device's work counts."""
    if step.launch_kind == EAGER:
        return _round(p.launch_kernel_ns * p.kernels)
    if step.launch_kind == GRAPH:
        return 0
    return _round(p.graph_replay_ns * p.piecewise_replays + p.launch_kernel_ns * p.piecewise_kernels)


@outlined
def host_copy_ns(p: Record, blocks: int, groups: int, block_ns: float) -> int:
    """A copy between device and host, alone on its direction of the link."""
    return max(1, _round(p.host_segment_ns * (groups * p.tail_segments) + block_ns * blocks))


@outlined
def recompute_ns(p: Record, start: int, tokens: int) -> int:
    """What computing `tokens` behind `start` cached ones takes in prefill chunks, beyond what the steps cost anyway."""
    pairs = tokens * start + tokens * (tokens + 1) // 2
    read = max(p.prefill_token_ns * (start + tokens), p.prefill_pair_ns * pairs)
    return _round(p.dense_token_ns * tokens + read)


@kernel
def _with_copies_ns(how: int, ns: float, call_ns: float, descriptor_ns: float, segments: int, launches: int) -> float:
    """`ns` and the host time to submit so many segments; where a kernel copies them, it is launched so often."""
    if how == KERNEL:
        return ns + call_ns * launches
    if how == PER_COPY:
        return ns + call_ns * segments
    calls = (segments + BATCH_DESCRIPTORS - 1) // BATCH_DESCRIPTORS
    return ns + call_ns * calls + descriptor_ns * segments


@outlined
def host_submit_ns(p: Record, groups: int) -> int:
    """Host time to submit copies of so many groups between device and host."""
    if groups == 0:
        return 0
    segments = int(groups * p.tail_segments)
    return _round(_with_copies_ns(p.host_submission, 0.0, p.host_call_ns, p.submit_descriptor_ns, segments, 1))


@outlined
def host_moves_ns(p: Record, step: Record) -> int:
    """Copies between device and host that are part of the step: what is evicted, and swaps without overlap."""
    moved = 0
    if step.offload_blocks > 0:
        moved += host_copy_ns(p, step.offload_blocks, step.offload_groups, p.host_out_block_ns)
    if p.host_overlap == 0 and step.host_out_blocks > 0:
        moved += host_copy_ns(p, step.host_out_blocks, step.host_out_groups, p.host_out_block_ns)
    if p.host_overlap == 0 and step.host_in_blocks > 0:
        moved += host_copy_ns(p, step.host_in_blocks, step.host_in_groups, p.host_in_block_ns)
    return moved


@kernel
def uses_host(step: Record) -> bool:
    """Whether the step submits copies to or from the host."""
    return bool(step.offload_groups + step.host_out_groups + step.host_in_groups > 0)


@kernel
def _kernel_copies_ns(p: Record, step: Record) -> float:
    """One kernel copies all partial tails, another one what compaction moves."""
    tails = p.tail_kernel_ns if step.copied_blocks > 0 else 0.0
    return tails + (p.tail_kernel_ns if step.compaction_groups > 0 else 0.0)


@kernel
def submit_ns(p: Record, step: Record) -> int:
    """Host time to submit the step's transfers; it blocks the scheduler."""
    ns = _kernel_copies_ns(p, step)
    if step.groups > 0:
        # At layer scope the gather is a kernel of the step itself and counted among its launches.
        launches = 0 if p.scope == LAYER else step.rounds
        ns = _with_copies_ns(p.submission, ns, p.submit_call_ns, p.submit_descriptor_ns, step.segments, launches)
    return _round(ns)


@kernel
def move_ns(p: Record, step: Record) -> int:
    """Device time of the transfers: a fixed cost a segment, then the payload. A copied tail is one block."""
    tails = step.copied_blocks * (p.copy_segment_ns * p.tail_segments + p.copy_block_ns)
    if step.compaction_groups > 0:
        tails += p.copy_segment_ns * p.tail_segments * step.compaction_groups
        tails += p.copy_block_ns * step.compacted_blocks
    return _round(p.copy_segment_ns * step.segments + p.copy_block_ns * step.moved_blocks + tails)


@kernel
def idle_tokens(p: Record, step: Record) -> int:
    """Of the tokens read, those of the idle rows of a captured batch: the null block, again and again."""
    if step.launch_kind != GRAPH or p.extent != EXTENT_BUCKET:
        return 0
    return (step.padded_rows - step.decode_rows) * step.context_bucket


@kernel
def stored_tokens(p: Record, step: Record) -> int:
    """Entries written: every token's in the pool, padding's into the null block, and in staging those of the rows that
    decode. At layer scope staging does not outlive its layer, so a step that reads pages in place leaves it alone.
    """
    if p.read != READ_STAGED or (step.prefill_rows > 0 and p.scope == LAYER) or reads_pages(p, step):
        return int(step.dense_tokens)
    return int(step.dense_tokens + step.decode_rows)


@kernel
def attention_ns(p: Record, step: Record) -> int:
    """Decode attention is bound by bytes read; a prefill chunk re-reads its prefix and is bound by bytes or by
    flops. The store of the new entries precedes both.
    """
    in_place = step.prefill_rows > 0 or reads_pages(p, step)
    per_token = p.attention_mixed_token_ns if in_place else p.attention_token_ns
    idle = idle_tokens(p, step)
    read = per_token * (step.read_tokens - idle) + p.idle_token_ns * idle
    chunk = max(p.prefill_token_ns * step.prefill_read_tokens, p.prefill_pair_ns * step.prefill_pairs)
    return _round(read + chunk + p.store_token_ns * stored_tokens(p, step))


@kernel
def dense_ns(p: Record, step: Record) -> int:
    """Weights are read once a step, or its padded tokens are computed; the LM head only for rows that deliver a
    token.
    """
    body = max(p.dense_token_ns * step.dense_tokens, p.dense_weights_ns)
    if step.sampled_rows == 0:
        return _round(body)
    head_rows = step.padded_rows if step.launch_kind == GRAPH else step.sampled_rows
    return _round(body + max(p.head_row_ns * head_rows, p.head_weights_ns))


@kernel
def collectives_ns(p: Record, step: Record) -> int:
    """All-reduces of tensor parallelism."""
    if p.tensor_parallel == 1:
        return 0
    return _round(p.collective_call_ns + p.collective_token_ns * step.dense_tokens)


@kernel
def time_step(p: Record, step: Record) -> None:
    """Fill in the times of a planned step, busy and exposed, and its duration."""
    if step.launch_kind != step.launch_is_for or step.launch_kept_ns == 0:  # mostly it is that of the step before
        step.launch_is_for = step.launch_kind
        step.launch_ahead_ns = asynchronous_launch_ns(p, step)
        step.launch_kept_ns = serial_launch_ns(p, step) + step.launch_ahead_ns
    ahead = step.launch_ahead_ns
    step.launch_busy_ns = step.launch_kept_ns + mixed_launch_ns(p, step) + capture_ns(p, step)
    submit = submit_ns(p, step)
    move = move_ns(p, step)
    host_moves = 0
    if uses_host(step):
        submit += host_submit_ns(p, step.offload_groups) + host_submit_ns(p, step.host_out_groups)
        submit += host_submit_ns(p, step.host_in_groups)
        host_moves = host_moves_ns(p, step)
    step.submit_ns = submit
    step.move_ns = move + host_moves
    step.host_busy_ns = host_ns(p, step)
    step.commit_busy_ns = commit_ns(p, step)
    step.transport_busy_ns = submit + host_moves + move
    step.attention_busy_ns = attention_ns(p, step)
    step.dense_busy_ns = dense_ns(p, step) + (_round(p.draft_ns) if step.drafted_tokens > 0 else 0)
    step.collectives_busy_ns = collectives_ns(p, step)

    # With run-ahead the host has prepared this step while the one before it was on the device.
    hidden = step.device_ns if step.follows else 0
    host = step.host_busy_ns
    step.host_exposed_ns = max(0, host - hidden)
    step.commit_exposed_ns = max(0, step.commit_busy_ns - max(0, hidden - host))
    if p.map_block_ns > 0:
        # Mapping has a thread of its own, which works ahead while the step before is on the device.
        mapping = _round(p.map_block_ns * step.blocks_taken)
        step.host_busy_ns += mapping
        step.host_exposed_ns += max(0, mapping - (step.device_ns if p.map_ahead and step.back_to_back else 0))
    step.launch_exposed_ns = step.launch_busy_ns
    # Device work adds to the path only beyond what the launches that run ahead have already covered.
    device = move
    covered = max(ahead, device)
    # Copies to and from the host that are part of the step come before anything else on the device.
    step.transport_exposed_ns = submit + host_moves + covered - ahead
    before, device = covered, device + step.attention_busy_ns
    covered = max(ahead, device)
    step.attention_exposed_ns = covered - before
    before, device = covered, device + step.dense_busy_ns
    covered = max(ahead, device)
    step.dense_exposed_ns = covered - before
    before, device = covered, device + step.collectives_busy_ns
    covered = max(ahead, device)
    step.collectives_exposed_ns = covered - before
    step.duration_ns = (
        step.host_exposed_ns
        + step.commit_exposed_ns
        + step.launch_exposed_ns
        + step.transport_exposed_ns
        + step.attention_exposed_ns
        + step.dense_exposed_ns
        + step.collectives_exposed_ns
    )
    step.device_ns = step.duration_ns - step.host_exposed_ns - step.commit_exposed_ns

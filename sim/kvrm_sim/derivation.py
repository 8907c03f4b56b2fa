"""From a configuration and its memory plan to the record of runtime numbers that the compiled core reads.

Enumerations are the position of the word in its ``Literal`` (policy.py, config.py), in the same order as the
constants of the core's parts. The word of a user's part has the position behind the last.
"""

from __future__ import annotations

from typing import Any, get_args

from kvrm_sim import words
from kvrm_sim.config import OverLimit, ReplicaConfig
from kvrm_sim.errors import ConfigError
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.pager import PAGED
from kvrm_sim.parameters import CoreParameters, core_parameters
from kvrm_sim.pool import BUDDY
from kvrm_sim.prefix import key_slots
from kvrm_sim.shapes import history_blocks, history_tokens, most_blocks_a_row
from kvrm_sim.state import NEVER, NONE

#: Budget of `prefill = none`, which has no limit.
UNLIMITED_TOKENS = 1 << 40
#: What one call costs, by how copies are submitted: a coefficient of the profile.
CALL_OF = {"per_copy": "copy_call_ns", "batch": "batch_call_ns", "kernel": "transfer_kernel_ns"}
#: Pool samples over the arrival span.
POOL_SAMPLES = 200


def code(word: str, literal: Any) -> int:
    """The integer of a word of a ``Literal``."""
    return get_args(literal).index(word)


def part_code(word: str, literal: Any) -> int:
    """The integer of a word that may be the name of a user's part: then the one behind the last."""
    words = get_args(literal)
    return words.index(word) if word in words else len(words)


def largest_run_blocks(pool_blocks: int, *, reserve: int, placement: int) -> int:
    """Blocks of the longest thing the empty pool can give: all of it, or the largest buddy."""
    if reserve != PAGED and placement == BUDDY:
        return 1 << (pool_blocks.bit_length() - 1)
    return pool_blocks


def _decision_values(config: ReplicaConfig, plan: MemoryPlan) -> dict[str, int | float]:
    policy = config.policy
    reserve = code(policy.reserve.mode, words.ReserveMode)
    placement = part_code(policy.pager.placement, words.Placement)
    block = policy.pager.block_size_tokens
    limit = config.limit_tokens
    none = policy.schedule.prefill == "none"
    return {
        "reserve": reserve,
        "limit_tokens": limit,
        "over_limit": code(config.over_limit, OverLimit),
        "declared_default_tokens": policy.reserve.declared_default_tokens or NONE,
        "block_size": block,
        "pool_blocks": plan.pool_blocks,
        "placement": placement,
        "max_run_blocks": largest_run_blocks(plan.pool_blocks, reserve=reserve, placement=placement),
        "table_width": most_blocks_a_row(config) if policy.paged else 1,
        "stage_width": history_blocks(config) if policy.paged else 1,
        "kept_blocks": 0 if policy.far_history is None else policy.far_history.blocks(block),
        "summary_blocks": 0 if policy.far_history is None else policy.far_history.summary_blocks,
        "most_held_blocks": most_blocks_a_row(config),
        "extent_blocks": policy.pager.extent_blocks,
        "release_order": code(policy.pager.release_order, words.ReleaseOrder),
        "slots": plan.slots,
        "prefill": code(policy.schedule.prefill, words.PrefillMode),
        "token_budget": UNLIMITED_TOKENS if none else policy.schedule.token_budget,
        "admission": code(policy.schedule.admission, words.Admission),
        "watermark_blocks": int(policy.schedule.watermark * plan.pool_blocks),
        "refill": code(policy.schedule.refill, words.Refill),
        "queue_order": part_code(policy.schedule.order, words.Order),
        "aging_ns": 0 if policy.schedule.aging_s is None else round(policy.schedule.aging_s * 1e9),
        "victim": part_code(policy.schedule.victim, words.Victim),
        "run_ahead": policy.schedule.run_ahead,
        "preempt": code(policy.schedule.preempt, words.Preempt),
        "compaction": code(policy.pager.compaction, words.Compaction),
        "compaction_ratio": policy.pager.compaction_ratio,
        "compaction_max_moves": policy.pager.compaction_max_moves,
        "max_padding": policy.launch.max_padding or 0.0,
        **_host(config, plan),
        **_speculation(config),
        "launch": code(policy.launch.mode, words.LaunchMode),
        "mixed": code(policy.launch.mixed, words.MixedMode),
        "capture": code(policy.launch.capture, words.Capture),
        "track_longest": int(
            bool(plan.context_buckets_tokens) and plan.context_buckets_tokens[0] < history_tokens(config)
        ),
        "history_tokens": history_tokens(config),
        "read": code(policy.read.what, words.ReadWhat),
        "extent": code(policy.read.extent, words.ReadExtent),
        "layout": code(policy.layout, words.Layout),
        "merge": code(policy.transport.merge, words.Merge),
        "staging": code(policy.transport.staging, words.Staging),
        "packed_blocks": (policy.transport.packed_tokens or 0) // block,
        "scope": code(policy.transport.scope, words.Scope),
        "submission": code(policy.transport.submission, words.Submission),
        "layers": config.model.layers,
    }


def _mapping(config: ReplicaConfig) -> dict[str, int | float]:
    """Of virtual memory: every layer's keys and values have a range of their own, so a block is a page of each."""
    pager = config.policy.pager
    if pager.mapping == "table":
        return {}
    page_ns = config.hardware.value("map_page_ns" if pager.page_kib == 2048 else "map_small_page_ns")
    return {"map_block_ns": 2 * config.model.layers * page_ns, "map_ahead": int(pager.map_ahead)}


def _host(config: ReplicaConfig, plan: MemoryPlan) -> dict[str, int | float]:
    host, h = config.policy.host, config.hardware
    if host is None:
        return {}
    values = h.values()
    return {
        "host_blocks": plan.host_blocks,
        "host_overlap": int(host.overlap),
        "host_merge": code(host.merge, words.Merge),
        "host_submission": code(host.submission, words.Submission),
        "offload": int(host.offload),
        "host_segment_ns": h.value("copy_segment_ns"),
        "host_call_ns": h.value(CALL_OF[host.submission]),
        "host_out_block_ns": 1e9 * plan.block_bytes / h.value("d2h_bytes_per_s"),
        "host_in_block_ns": 1e9 * plan.block_bytes / h.value("h2d_bytes_per_s"),
        "out_slowdown": values.get("duplex_d2h_slowdown", 1.0),
        "in_slowdown": values.get("duplex_h2d_slowdown", 1.0),
    }


def _speculation(config: ReplicaConfig) -> dict[str, int | float]:
    speculation = config.policy.speculation
    if speculation is None:
        return {}
    return {
        "draft_tokens": speculation.draft_tokens,
        "acceptance": speculation.acceptance,
        "draft_ns": 1e6 * speculation.draft_ms,
        "seed": config.seed,
    }


def sharing_values(
    *, block_size_tokens: int, hash_block_tokens: int, pool_blocks: int, partial_tail: int
) -> dict[str, int | float]:
    """The parameters of prefix sharing. Raises ConfigError when neither block size is a multiple of the other."""
    larger, smaller = max(block_size_tokens, hash_block_tokens), min(block_size_tokens, hash_block_tokens)
    if larger % smaller != 0:
        raise ConfigError(
            f"prefix sharing needs a pager block that divides the trace's hash block of {hash_block_tokens} tokens, "
            "or a multiple of it",
            "pager.block_size_tokens",
            block_size_tokens,
        )
    return {
        "sharing": 1,
        "partial_tail": partial_tail,
        "blocks_a_hash": max(1, hash_block_tokens // block_size_tokens),
        "hashes_a_block": max(1, block_size_tokens // hash_block_tokens),
        "key_slots": key_slots(pool_blocks),
    }


def _sharing(config: ReplicaConfig, plan: MemoryPlan, hash_block_tokens: int | None) -> dict[str, int | float]:
    pager = config.policy.pager
    if not pager.prefix_sharing or hash_block_tokens is None:
        return {}
    return sharing_values(
        block_size_tokens=pager.block_size_tokens,
        hash_block_tokens=hash_block_tokens,
        pool_blocks=plan.pool_blocks,
        partial_tail=code(pager.partial_tail, words.PartialTail),
    )


def _cost_values(config: ReplicaConfig, plan: MemoryPlan) -> dict[str, int | float]:
    """Nanoseconds per unit, per GPU (docs/cost.md)."""
    model, policy, degree = config.model, config.policy, config.tensor_parallel
    h = config.hardware.values()
    layers = model.layers
    weights = model.dtype_bytes
    body = layers * model.layer_matrix_parameters / degree
    head = model.head_parameters / degree
    flops = h["dense_flops_per_s"] * h["dense_flops_efficiency"]
    weight_read = h["hbm_bytes_per_s"] * h["weight_read_efficiency"]
    contiguous = h["hbm_bytes_per_s"] * h["attention_contiguous_efficiency"]
    table = h["hbm_bytes_per_s"] * h["attention_table_efficiency"]
    decode_read = table if policy.read.what == "table" else contiguous
    mixed_read = table if policy.paged and policy.pager.mapping == "table" else contiguous
    kv = plan.kv_bytes_per_token
    pair_flops = 4 * layers * model.query_size / degree
    gathers = layers if policy.staged and policy.transport.scope == "layer" else 0
    per_token_bytes = model.hidden_size * weights
    return {
        "tensor_parallel": degree,
        "kernels": int(layers * h["kernels_per_layer"] + h["kernels_per_step"]) + gathers,
        "piecewise_replays": layers + 1,
        "piecewise_kernels": layers,
        "host_step_ns": h["host_step_ns"],
        "host_row_ns": h["host_row_ns"],
        "host_chunk_ns": h["host_chunk_ns"],
        "host_block_ns": h["host_block_ns"],
        "host_group_ns": h["host_group_ns"],
        **_mapping(config),
        "commit_call_ns": h["commit_call_ns"],
        "commit_byte_ns": 1e9 / h["h2d_bytes_per_s"],
        "launch_kernel_ns": h["kernel_launch_ns"],
        "first_launch_ns": h["first_launch_ns"],
        "mixed_launch_ns": h["mixed_launch_ns"],
        "graph_replay_ns": h["graph_replay_ns"],
        "graph_node_gap_ns": h["graph_node_gap_ns"],
        "graph_capture_ns": h["graph_capture_ns"],
        "submit_call_ns": h[CALL_OF[policy.transport.submission]],
        "submit_descriptor_ns": h["copy_descriptor_ns"],
        "tail_kernel_ns": h["transfer_kernel_ns"],
        "tail_segments": layers if policy.layout == "layer_major" else 1,
        "copy_segment_ns": h["copy_segment_ns"],
        "copy_block_ns": 1e9 * plan.block_bytes / h["d2d_bytes_per_s"],
        "attention_token_ns": 1e9 * kv / decode_read,
        "attention_mixed_token_ns": 1e9 * kv / mixed_read,
        "prefill_token_ns": 1e9 * kv / mixed_read,
        "store_token_ns": 1e9 * kv / h["store_bytes_per_s"],
        "idle_token_ns": h["idle_read_share"] * 1e9 * kv / decode_read,
        "prefill_pair_ns": 1e9 * pair_flops / (h["dense_flops_per_s"] * h["attention_flops_efficiency"]),
        "dense_token_ns": 1e9 * 2 * body / flops,
        "dense_weights_ns": 1e9 * body * weights / weight_read,
        "head_row_ns": 1e9 * 2 * head / flops,
        "head_weights_ns": 1e9 * head * weights / weight_read,
        "collective_call_ns": 2 * layers * h["peer_latency_ns"],
        "collective_token_ns": 1e9 * 2 * layers * per_token_bytes * 2 * (degree - 1) / degree / h["peer_bytes_per_s"],
    }


def _record_values(config: ReplicaConfig, span_ns: int, *, log_events: bool, log_moves: bool) -> dict[str, int | float]:
    return {
        "window_ns": round(config.window_s * 1e9),
        "steady_from_ns": span_ns // 10,
        "steady_until_ns": span_ns,
        "pool_sample_ns": max(1, span_ns // POOL_SAMPLES),
        "backlog_tenth_ns": max(1, -(-span_ns // 10)),
        "check": int(config.check),
        "log_events": int(log_events),
        "log_moves": int(log_moves),
    }


def parameters_of(
    config: ReplicaConfig,
    plan: MemoryPlan,
    *,
    span_ns: int | None,
    hash_block_tokens: int | None = None,
    log_events: bool = False,
    log_moves: bool = False,
) -> CoreParameters:
    """The core's parameters. ``span_ns``: time of the last arrival; None when arrivals are not known in advance.
    ``hash_block_tokens``: of the trace's prefix hashes; None: it has none, and nothing is shared. ``log_moves``: each
    plan lists the blocks to be copied before its step, for who executes it.
    """
    span = NEVER if span_ns is None else span_ns
    values = (
        _decision_values(config, plan)
        | _sharing(config, plan, hash_block_tokens)
        | _cost_values(config, plan)
        | _record_values(config, span, log_events=log_events, log_moves=log_moves)
    )
    ladders = {
        "buckets": plan.reserve_buckets_tokens,
        "batch_sizes": plan.batch_sizes,
        "contexts": plan.context_buckets_tokens,
        "token_sizes": plan.token_sizes,
        "capacities": plan.group_capacities,
    }
    return core_parameters(values, ladders, config.policy.parts)

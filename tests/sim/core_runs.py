"""Runs of the decision core on the reference's configurations and arrivals, for the tests that compare the two."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim import words
from kvrm_sim.config import OverLimit
from kvrm_sim.cost import time_step
from kvrm_sim.derivation import UNLIMITED_TOKENS, code, largest_run_blocks, sharing_values
from kvrm_sim.parameters import CoreParameters, core_parameters
from kvrm_sim.replica import Replica
from kvrm_sim.sinks import Sinks
from tests.sim.reference_records import Arrival, ReferenceConfig, RequestRow

#: The integers of docs/semantics.md section 6.
PLAN = (
    "decode_rows", "prefill_rows", "prefill_tokens", "prefill_read_tokens", "prefill_pairs", "sampled_rows",
    "launch_kind", "padded_rows", "dense_tokens", "context_bucket", "read_tokens",
    "groups", "moved_blocks", "needed_tokens", "segments", "rounds", "copied_blocks", "captured",
    "ended_rows", "follows", "compacted_blocks", "compaction_groups",
    "host_out_blocks", "host_out_groups", "host_in_blocks", "host_in_groups", "offload_blocks", "offload_groups",
    "drafted_tokens", "blocks_taken", "blocks_freed",
)  # fmt: skip

COSTS = (
    "host_step_ns", "host_row_ns", "host_chunk_ns", "host_block_ns", "host_group_ns", "commit_call_ns",
    "commit_byte_ns", "launch_kernel_ns", "first_launch_ns", "mixed_launch_ns", "graph_replay_ns", "graph_node_gap_ns",
    "graph_capture_ns",
    "submit_call_ns", "submit_descriptor_ns", "tail_kernel_ns", "copy_segment_ns", "copy_block_ns",
    "attention_token_ns", "attention_mixed_token_ns", "prefill_token_ns", "prefill_pair_ns", "store_token_ns",
    "idle_token_ns",
    "dense_token_ns", "dense_weights_ns", "head_row_ns", "head_weights_ns",
    "collective_call_ns", "collective_token_ns",
)  # fmt: skip


def random_costs(seed: int) -> dict[str, float]:
    """Half constant (then step ends and arrivals coincide), half random in every coefficient."""
    rng = random.Random(f"costs {seed}")
    if rng.random() < 0.5:
        return {"host_step_ns": float(500 * rng.randint(1, 8))}
    return {name: rng.choice((0.0, rng.uniform(0, 3), rng.uniform(0, 200))) for name in COSTS} | {"host_step_ns": 501.5}


def parameters_for(config: ReferenceConfig, costs: dict[str, float], **values: Any) -> CoreParameters:
    """The core's parameters for a reference configuration."""
    reserve = code(config.reserve, words.ReserveMode)
    placement = code(config.placement, words.Placement)
    contexts = config.context_buckets_tokens
    decisions: dict[str, int | float] = {
        "reserve": reserve,
        "limit_tokens": config.limit_tokens,
        "over_limit": code(config.over_limit, OverLimit),
        "declared_default_tokens": config.declared_default_tokens or st.NONE,
        "block_size": config.block_size_tokens,
        "pool_blocks": config.pool_blocks,
        "placement": placement,
        "max_run_blocks": largest_run_blocks(config.pool_blocks, reserve=reserve, placement=placement),
        **_widths(config),
        "slots": config.slots,
        "prefill": code(config.prefill, words.PrefillMode),
        "token_budget": UNLIMITED_TOKENS if config.prefill == "none" else config.token_budget,
        "admission": code(config.admission, words.Admission),
        "watermark_blocks": config.watermark_blocks,
        "refill": code(config.refill, words.Refill),
        "queue_order": code(config.order, words.Order),
        "aging_ns": config.aging_ns or 0,
        "victim": code(config.victim, words.Victim),
        "run_ahead": config.run_ahead,
        **_optional_parts(config),
        "extent_blocks": config.extent_blocks,
        "release_order": code(config.release_order, words.ReleaseOrder),
        "tail_segments": config.layers if config.layout == "layer_major" else 1,
        "launch": code(config.launch, words.LaunchMode),
        "mixed": code(config.mixed, words.MixedMode),
        "capture": code(config.capture, words.Capture),
        "track_longest": int(bool(contexts) and contexts[0] < _widths(config)["history_tokens"]),
        "read": code(config.read_what, words.ReadWhat),
        "extent": code(config.read_extent, words.ReadExtent),
        "layout": code(config.layout, words.Layout),
        "merge": code(config.merge, words.Merge),
        "staging": code(config.staging, words.Staging),
        "scope": code(config.scope, words.Scope),
        "submission": code("kernel", words.Submission),
        "layers": config.layers,
        "tensor_parallel": 1,
        "kernels": 10,
        "piecewise_replays": 3,
        "piecewise_kernels": 2,
        "window_ns": 0,
        "steady_until_ns": st.NEVER,
        "pool_sample_ns": 1,
        "backlog_tenth_ns": 1 << 60,
        "check": 1,
    }
    if config.prefix_sharing and config.hash_block_tokens is not None:
        decisions |= sharing_values(
            block_size_tokens=config.block_size_tokens,
            hash_block_tokens=config.hash_block_tokens,
            pool_blocks=config.pool_blocks,
            partial_tail=code(config.partial_tail, words.PartialTail),
        )
    ladders: dict[str, Sequence[int]] = {
        "buckets": config.buckets_tokens,
        "batch_sizes": config.batch_sizes,
        "contexts": contexts,
        "token_sizes": config.token_sizes,
        "capacities": config.group_capacities,
    }
    return core_parameters(decisions | costs | values, ladders)


def _optional_parts(config: ReferenceConfig) -> dict[str, int | float]:
    """What few policies have: compaction, the host's pool, speculation, the bound on padding."""
    return {
        "preempt": code(config.preempt, words.Preempt),
        "host_blocks": config.host_blocks,
        "host_overlap": int(config.host_overlap),
        "host_merge": code(config.host_merge, words.Merge),
        "host_submission": code("kernel", words.Submission),
        "offload": int(config.offload and config.hash_block_tokens is not None),
        "host_segment_ns": config.host_segment_ns,
        "host_out_block_ns": config.host_out_block_ns,
        "host_in_block_ns": config.host_in_block_ns,
        "out_slowdown": config.host_out_slowdown,
        "in_slowdown": config.host_in_slowdown,
        "compaction": code(config.compaction, words.Compaction),
        "compaction_ratio": config.compaction_ratio,
        "compaction_max_moves": config.compaction_max_moves,
        "draft_tokens": config.draft_tokens,
        "acceptance": config.acceptance,
        "seed": (config.seed + (1 << 63)) % (1 << 64) - (1 << 63),  # the same 64 bits, signed
        "max_padding": config.max_padding or 0.0,
        "packed_blocks": config.packed_blocks,
    }


def _widths(config: ReferenceConfig) -> dict[str, int]:
    """What far history makes of tables, staging and contexts, stated apart from kvrm_sim.shapes."""
    whole, block = config.blocks(config.limit_tokens), config.block_size_tokens
    kept = (config.near_blocks + config.summary_blocks) if config.near_blocks else 0
    most = whole
    if kept and config.prefill != "separate":
        most = min(whole, kept + (config.blocks(config.token_budget) if config.prefill == "chunked" else 0))
    stage = min(whole, kept) if kept else whole
    return {
        "table_width": most if config.paged else 1,
        "stage_width": stage if config.paged else 1,
        "kept_blocks": kept,
        "summary_blocks": config.summary_blocks if kept else 0,
        "most_held_blocks": most,
        "history_tokens": min(config.limit_tokens, stage * block),
    }


def step_cost(parameters: CoreParameters) -> Any:
    """The core's own cost of a plan, as the reference takes it: dict of integers to nanoseconds."""
    step = np.zeros(1, st.STEP)

    def step_ns(plan: dict[str, int]) -> int:
        for name in PLAN:
            step[0][name] = plan[name]
        step[0].launch_kept_ns = 0  # the plan may be of any kind: nothing is kept from the step before
        time_step(parameters.record[0], step[0])
        return int(step[0].duration_ns)

    return step_ns


def arrival_records(arrivals: Sequence[Arrival]) -> st.Records:
    """ARRIVALS of the reference's arrivals."""
    records = np.zeros(len(arrivals), st.ARRIVALS)
    for record, a in zip(records, arrivals, strict=True):
        declared = st.NONE if a.declared_max_tokens is None else a.declared_max_tokens
        record["row"], record["arrival_ns"] = a.row, a.arrival_ns
        record["prompt_tokens"], record["output_tokens"], record["declared_max_tokens"] = (
            a.prompt_tokens,
            a.output_tokens,
            declared,
        )
        record["priority"], record["num_ids"] = a.priority, len(a.hashes)
    records["ids_at"] = np.cumsum(records["num_ids"]) - records["num_ids"]
    return records


def arrival_ids(arrivals: Sequence[Arrival]) -> NDArray[np.int64]:
    """The prefix hashes that `arrival_records` point into."""
    return np.array([identity for a in arrivals for identity in a.hashes], np.int64)


@dataclass
class CoreRun:
    """Everything a run of the core handed out."""

    replica: Replica
    out: list[st.Records] = field(default_factory=list)
    windows: list[st.Records] = field(default_factory=list)
    pool: list[st.Records] = field(default_factory=list)
    classes: list[st.Records] = field(default_factory=list)
    steps: list[dict[str, int]] = field(default_factory=list)

    @property
    def rows(self) -> list[RequestRow]:
        """The requests, by row."""
        found = [request_row(record) for part in self.out for record in part]
        return sorted(found, key=lambda row: row.row)

    def bytes(self) -> bytes:
        """All that was written and counted, for equality bit by bit."""
        parts = [*self.out, *self.windows, *self.pool, *self.classes]
        counted = (self.replica.arrays.tallies, self.replica.arrays.histograms, self.replica.arrays.waiting_tenths)
        return b"".join(part.tobytes() for part in [*parts, *counted])


def request_row(record: st.Record) -> RequestRow:
    """An OUT record in the reference's words."""

    def optional(value: int) -> int | None:
        return None if value == st.NONE else int(value)

    return RequestRow(
        row=int(record.row),
        outcome=st.OUTCOMES[record.outcome],
        reason=st.END_REASONS[record.reason],
        arrival_ns=int(record.arrival_ns),
        admitted_ns=optional(record.admitted_ns),
        first_token_ns=optional(record.first_token_ns),
        finish_ns=optional(record.finish_ns),
        delivered=int(record.delivered),
        preemptions=int(record.preemptions),
        recomputed_tokens=int(record.recomputed_tokens),
        hit_tokens=optional(record.hit_tokens),
    )


def new_run(parameters: CoreParameters, out_records: int = 131_072) -> CoreRun:
    """A replica that has seen nothing, with sinks that keep everything."""
    run: CoreRun

    def pool(samples: st.Records, classes: Any) -> None:
        run.pool.append(samples.copy())
        run.classes.append(classes.copy())

    sinks = Sinks(
        requests=lambda records: run.out.append(records.copy()),
        windows=lambda records: run.windows.append(records.copy()),
        pool=pool,
    )
    run = CoreRun(Replica(parameters, sinks, out_records=out_records))
    return run


def run_core(
    parameters: CoreParameters, arrivals: Sequence[Arrival], *, until_ns: int | None = None, keep_steps: bool = False
) -> CoreRun:
    """Give all arrivals at once and run to the end, or to ``until_ns``."""
    run = new_run(parameters)
    run.replica.supply(arrival_records(arrivals), known_until_ns=st.NEVER, ids=arrival_ids(arrivals))
    flags = st.STOP_AT_DECISIONS if keep_steps else 0
    while True:
        reason = run.replica.advance(st.NEVER if until_ns is None else until_ns, max_steps=1000, flags=flags)
        if reason == st.DECIDED:
            step = run.replica.steps[0]
            run.steps.append({name: int(step[name]) for name in step.dtype.names})
        elif reason != st.WORK:
            break
    run.replica.close()
    return run

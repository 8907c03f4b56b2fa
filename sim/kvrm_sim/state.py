"""The state of one replica: a handful of structured arrays that the compiled core reads and writes.

One record type a concept; every field is int64 unless said. ``None`` is -1 inside these arrays and nowhere else.
Ownership: rowlist.py owns the running list and the slots; request.py the arena; waiting.py who is next; the pager owns
block tables and runs; the pool owns the free store; prefix.py keys, references and the evictable blocks; decoding.py
the sums over decoding rows; meters.py histograms and records.

Rows are indexed by *stage row* (never moves); the batch row (``slot``) is a field. Field names avoid the attributes
that every numpy scalar has (``base``, ``size``, …): those would win over a field in interpreted code.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: A structured array, one record of it, and an integer array, as kernels see them (record fields have no static type).
Records: TypeAlias = NDArray[Any]
Record: TypeAlias = Any
Ints: TypeAlias = Any

NONE = -1
NEVER = np.iinfo(np.int64).max

# What `span` returns.
UNTIL, NEED_ARRIVALS, WORK, FLUSH, GROW, DONE, EVENT, DECIDED, ERROR = range(9)
GO_ON = 9  # between the parts of `span` only: none of them
REASONS = ("until", "need_arrivals", "work_budget", "flush", "grow", "done", "event", "decided", "error")

# Phases of the replica.
IDLE, READY, FLYING = range(3)

# Flags of `span`.
STOP_AT_EVENTS, STOP_AT_DECISIONS = 1, 2

# Outcomes of a request, and why.
COMPLETED, REJECTED, TRUNCATED, UNFINISHED = range(4)
OUTCOMES = ("completed", "rejected", "truncated", "unfinished")
R_TRACE_END, R_OVER_LIMIT, R_UNSERVABLE, R_CONTEXT_LIMIT, R_DECLARED_LIMIT, R_STOPPED = range(6)
END_REASONS = ("trace_end", "over_limit", "unservable", "context_limit", "declared_limit", "stopped")

# Errors of the core: Python raises the named error.
OK, E_OVER_LIMIT, E_NO_DECLARED, E_NO_PROGRESS = range(4)

# Events (only logged when asked for).
EV_REJECT, EV_ADMIT, EV_PREEMPT, EV_FIRST_TOKEN, EV_FINISH = range(5)
EVENT_KINDS = ("reject", "admit", "preempt", "first_token", "finish")

PARTS = ("host", "commit", "launch", "transport", "attention", "dense", "collectives")


def _record(*fields: str, floats: tuple[str, ...] = (), small: tuple[str, ...] = ()) -> np.dtype[np.void]:
    """A record of int64 fields, then float64, then int32 (``small``), in whole lines of the cache if it has small ones.

    Built on ``np.record`` so that attributes work interpreted too.
    """
    names = [*fields, *floats, *small]
    formats = [np.int64] * len(fields) + [np.float64] * len(floats) + [np.int32] * len(small)
    packed = 8 * (len(fields) + len(floats)) + 4 * len(small)
    itemsize = -(-packed // 64) * 64 if small else packed
    return np.dtype((np.record, {"names": names, "formats": formats, "itemsize": itemsize}))


# One group of fields a line reads better than one field a line.
# fmt: off

#: What never changes in a run. Enumerations are the position in the policy's literal (derivation.py).
PARAMS = _record(
    # reserve and limits
    "reserve", "limit_tokens", "over_limit", "declared_default_tokens", "num_buckets", "buckets_at",
    # pager
    "block_size", "pool_blocks", "placement", "max_run_blocks", "table_width", "extent_blocks", "release_order",
    # far history: blocks that a decoding row keeps (0: all) and how many of them are summaries; most that any row holds
    "kept_blocks", "summary_blocks", "most_held_blocks", "stage_width", "history_tokens",
    # prefix sharing: pager blocks a hash block, hash blocks a pager block (one of them is 1), slots of the key table
    "sharing", "partial_tail", "blocks_a_hash", "hashes_a_block", "key_slots",
    # schedule
    "slots", "prefill", "token_budget", "admission", "watermark_blocks", "refill", "queue_order", "aging_ns", "victim",
    # launch: ladders live in one int64 array, each from `_at`, `num_` entries, ascending
    "launch", "mixed", "capture", "num_batch_sizes", "batch_sizes_at", "num_contexts", "contexts_at", "num_token_sizes",
    "token_sizes_at",
    "track_longest",
    # read and transport
    "read", "extent", "layout", "merge", "staging", "scope", "submission", "num_capacities", "capacities_at",
    "layers",
    # cost, integers
    "tensor_parallel", "kernels", "piecewise_replays", "piecewise_kernels",
    # records
    "window_ns", "steady_from_ns", "steady_until_ns", "pool_sample_ns", "check", "log_events", "backlog_tenth_ns",
    floats=(
        # cost, each in ns per unit (docs/cost.md)
        "host_step_ns", "host_row_ns", "host_chunk_ns", "host_block_ns", "host_group_ns",
        "commit_call_ns", "commit_byte_ns", "launch_kernel_ns", "first_launch_ns", "mixed_launch_ns", "graph_replay_ns",
        "graph_node_gap_ns", "graph_capture_ns",
        "submit_call_ns", "submit_descriptor_ns", "tail_kernel_ns", "tail_segments", "copy_segment_ns", "copy_block_ns",
        "attention_token_ns", "attention_mixed_token_ns", "prefill_token_ns", "prefill_pair_ns",
        "dense_token_ns", "dense_weights_ns", "head_row_ns", "head_weights_ns",
        "collective_call_ns", "collective_token_ns",
    ),
)

#: One replica's scalars.
SCALARS = _record(
    "now_ns", "phase", "status", "error_request", "error_detail", "known_until_ns", "next_arrival",
    "num_arrivals",
    # requests
    "waiting_head", "waiting_tail", "num_waiting", "turns", "arena_free", "injected", "completed", "rejected",
    "truncated",
    "last_finish_ns", "first_arrival_ns", "last_arrival_ns",
    # running, in admission order
    "running_head", "running_tail", "num_running", "admissions", "batch_open", "num_slots_free", "num_stage_free",
    "highest_slot",
    # pool
    "free_blocks", "blocks_taken", "blocks_freed", "reserved_blocks", "total_runs", "queue_head", "extent_head",
    # prefix sharing: the evictable blocks, least recently used first; references beyond a block's first; its totals
    "evictable", "least_recent", "most_recent", "shared_again", "hit_tokens", "evicted_blocks",
    "copied_blocks",
    # ... and the chain of the request that waits first (prefix.py)
    "chain_request", "chain_blocks", "chain_shared", "chain_evictable", "chain_awaits",
    # decoding rows: every one advances by one token in each step that decodes
    "decode_counter", "growth_at", "num_decode", "sum_computed", "sum_dropped_blocks", "sum_reserved_tokens",
    "stage_blocks", "stage_runs",
    "pending_blocks", "pending_runs",
    "max_base", "max_base_dirty", "last_decode_end_ns", "num_newcomers", "num_unstaged", "num_prefill",
    "used_prefill",
    "idle_decisions", "carried_preemptions", "check_stamp",
    # totals
    "steps", "decode_steps", "mixed_steps", "graph_steps", "eager_steps", "piecewise_steps", "off_ladder_steps",
    "over_capacity_steps",
    "captures", "row_moves", "padded_rows", "padded_live_rows", "tokens_delivered", "steady_tokens", "steady_finishes",
    "preemptions",
    "recomputed_tokens", "prefill_tokens", "groups", "segments", "moved_blocks", "needed_tokens", "rounds",
    "read_tokens",
    "submit_ns", "move_ns", "admitted", "peak_running", "peak_waiting",
    "peak_reserved_blocks", "peak_allocated_blocks", "peak_used_tokens", "peak_cached_blocks", "unfinished",
    # record buffers
    "num_out", "num_windows", "num_events", "num_pool_samples", "window_end_ns", "spike_end_ns", "next_pool_sample_ns",
    "spike_low", "spike_high",
    "window_low", "window_high",
    # whether a user's placement gave what is no free block, and what (plugin_seams.py)
    "plugin_error", "plugin_value",
    floats=(
        "acc_reserved", "acc_allocated", "acc_used", "acc_cached", "acc_running", "acc_waiting",
    ),
)

#: A request in flight or waiting (the arena).
REQUESTS = _record(
    "row", "arrival_ns", "prompt_tokens", "output_tokens", "recorded_output_tokens", "reserved_tokens",
    "truncation", "delivered",
    "admitted_ns", "first_token_ns", "last_token_ns", "preemptions", "recomputed_tokens", "next",
    "priority", "score", "turn", "ids_at", "num_keys", "hit_tokens", "lost_tokens",
    # a column that is an array of its own: the heap of waiting requests, where they are not in a list
    "heap",
)

#: A row, indexed by stage row. `computed` of a decoding row is origin + decode_counter.
ROWS = _record(
    "request", "slot", "order", "previous", "next", "decoding", "origin", "computed", "planned", "staged",
    "blocks", "run_start", "runs", "copied_from", "begun", "dropped",
    "grow_previous", "grow_next", "finish_previous", "finish_next", "finish_at",
    # columns that are arrays of their own, `slots` long: heaps, lists and the slot map
    "free_slot", "free_stage", "at_slot", "newcomer", "unstaged", "prefill", "growing", "finishing",
)

#: The free store, indexed by block id (0 is the null block; one sentinel after the last).
#: `refs` and `key` are of held and evictable blocks (prefix sharing); `chain_at` counts from 1, 0 where in no chain.
#: A record is one line of the cache.
BLOCKS = _record(
    "key", "mark",
    small=("next", "previous", "free", "refs", "stack", "chain_at", "length", "order", "head"),
)

#: What arrives. `declared_max_tokens` is -1 when absent. `num_ids` prefix hashes lie from `ids_at` on in the ids that
#: are supplied with the arrivals.
ARRIVALS = _record(
    "row", "arrival_ns", "prompt_tokens", "output_tokens", "declared_max_tokens", "priority", "ids_at", "num_ids"
)



def arrivals(columns: Ints) -> Records:
    """ARRIVALS of int64 [n, 3] = (arrival_ns, prompt_tokens, output_tokens): rows counted from 0, nothing declared."""
    records = np.zeros(len(columns), ARRIVALS)
    records["row"] = np.arange(len(columns))
    records["arrival_ns"], records["prompt_tokens"], records["output_tokens"] = np.asarray(columns).T
    records["declared_max_tokens"] = NONE
    return records


#: One planned step: the integers of docs/semantics.md section 6, its times (busy and exposed), and section 7.
STEP = _record(
    "start_ns", "end_ns", "decode_rows", "prefill_rows", "prefill_tokens", "prefill_read_tokens", "prefill_pairs",
    "sampled_rows",
    "launch_kind", "padded_rows", "dense_tokens", "context_bucket", "read_tokens", "groups", "moved_blocks",
    "needed_tokens", "segments",
    "rounds", "copied_blocks", "captured", "blocks_taken", "blocks_freed", "row_moves",
    "off_ladder", "over_capacity", "group_capacity",
    "batch_is_for", "batch_at",
    "preempted", "admitted", "hit_tokens",
    "reserved_blocks", "allocated_blocks", "used_tokens", "cached_blocks", "running", "waiting",
    *(f"{part}_busy_ns" for part in PARTS), *(f"{part}_exposed_ns" for part in PARTS), "submit_ns", "move_ns",
    "duration_ns", "launch_is_for", "launch_ahead_ns", "launch_kept_ns",
)

#: requests.parquet: one record for every request injected, in the order in which they ended.
OUT = _record(
    "row", "outcome", "reason", "arrival_ns", "admitted_ns", "first_token_ns", "finish_ns", "prompt_tokens",
    "output_tokens", "delivered",
    "preemptions", "recomputed_tokens", "hit_tokens",
)

#: steps.parquet: one record a window (or a step). Sums unless said; memory is as of the window's last step.
WINDOWS = _record(
    "start_ns", "end_ns", "steps", "decode_steps", "graph_steps", "delivered_tokens", "prefill_tokens", "gaps",
    "itl_p50_ns", "itl_p99_ns",
    "itl_max_ns", "running", "waiting", "decode_rows", "padded_rows", "padded_live_rows", "admitted", "finished",
    "preempted",
    "reserved_blocks", "allocated_blocks", "used_tokens", "cached_blocks", "read_tokens", "groups", "segments",
    "moved_blocks", "needed_tokens", "hit_tokens", "copied_blocks",
    *(f"{part}_busy_ns" for part in PARTS), *(f"{part}_exposed_ns" for part in PARTS), "submit_ns", "move_ns",
)

#: pool.parquet: the pool at a sample time. Beside it int64 [samples, RUN_CLASSES]: runs by length, 1, 2-3, 4-7 …
RUN_CLASSES = 16
POOL_SAMPLES = _record(
    "time_ns", "allocated_blocks", "used_tokens", "reserved_blocks", "cached_blocks", "runs", "holes",
    "largest_hole_blocks",
)

EVENTS = _record("kind", "time_ns", "row")

# fmt: on

# Histograms: rows of one int64 array [NUM_HISTOGRAMS, BUCKETS]; see meters.py for the buckets.
H_ITL, H_TTFT, H_E2E, H_QUEUE, H_TPOT_EXCLUSIVE, H_TPOT_INCLUSIVE, H_NORMALIZED = range(7)
H_WINDOW_P99, H_SPIKE, H_WINDOW = range(7, 10)
NUM_HISTOGRAMS = 10

#: Beside each histogram: exact count, sum (float64), least and greatest value.
TALLY = _record("n", "least", "greatest", floats=("total",))


class Arrays(NamedTuple):
    """Every array of one replica but its parameters, its scalars and the step: what most kernels are handed as `a`."""

    requests: Records  # REQUESTS [arena]
    rows: Records  # ROWS [slots], by stage row
    heads: Ints  # [block_size + FINISH_LISTS], the lists of both wheels
    blocks: Records  # BLOCKS [pool_blocks + 2], by block id
    tree: Ints  # the set of free ids, extent sizes, or orders + 1 (bittree.py)
    table: Ints  # [slots, table_width], the blocks that a row holds, by stage row
    ladders: Ints  # the ascending ladders of PARAMS, one after another
    captured: Ints  # by captured shape (launch.py): whether it has been captured
    keys: Ints  # [key_slots, 2], the table of keys: (key, its block), block 0 where none (prefix.py)
    chain: Ints  # [table_width], cached blocks of the prompt of the request that waits first
    arrivals: Records  # ARRIVALS, those given and not yet taken in
    ids: Ints  # prefix hashes of the arrivals and of the requests in flight, dense ids
    out: Records  # OUT
    windows: Records  # WINDOWS
    samples: Records  # POOL_SAMPLES
    classes: Ints  # [samples, RUN_CLASSES]
    tallies: Records  # TALLY [NUM_HISTOGRAMS]
    histograms: Ints  # [NUM_HISTOGRAMS, BUCKETS]
    waiting_tenths: Ints  # float64 [10], waiting requests times ns, by tenth of the trace
    events: Records  # EVENTS

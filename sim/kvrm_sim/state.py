"""The state of one replica: a handful of structured arrays that the compiled core reads and writes.

One record type a concept; every field is int64 unless said. ``None`` is -1 inside these arrays and nowhere else.
Ownership: rowlist.py owns the running list and the slots; request.py the arena; waiting.py who is next; the pager owns
block tables and runs; the pool owns the free store; prefix.py keys, references and the evictable blocks; decoding.py
the sums over decoding rows; meters.py histograms and records.

Rows are indexed by *stage row* (never moves); the batch row (``slot``) is a field. Field names avoid the attributes
that every numpy scalar has (``base``, ``size``, …): those would win over a field in interpreted code.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

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

#: What is summed over steps, as fields of a step and of the totals (SCALARS) and windows, where they are called the
#: same unless said. They lie side by side in each of the three, in this order, so that one loop adds them up.
SUMS = (
    ("is_step", "steps"), ("is_decode", "decode_steps"), ("is_mixed", "mixed_steps"), ("is_graph", "graph_steps"),
    ("is_piecewise", "piecewise_steps"), ("is_eager", "eager_steps"), ("off_ladder", "off_ladder_steps"),
    ("over_capacity", "over_capacity_steps"), ("graph_rows", "padded_rows"), ("graph_live_rows", "padded_live_rows"),
    ("captured", "captures"),
    *((name, name) for name in (
        "row_moves", "decode_rows", "ended_rows", "stalled_rows", "prefill_tokens", "delivered_tokens",
        "admitted", "finished", "preempted",
        "read_tokens", "groups", "segments", "moved_blocks", "needed_tokens", "rounds", "hit_tokens", "copied_blocks",
        "compacted_blocks", "compaction_groups", "host_out_blocks", "host_out_groups", "host_in_blocks",
        "host_in_groups", "offload_blocks", "offload_groups", "drafted_tokens", "accepted_tokens",
        "submit_ns", "move_ns",
        *(f"{part}_busy_ns" for part in PARTS), *(f"{part}_exposed_ns" for part in PARTS),
    )),
)
NUM_SUMS = len(SUMS)
_OF_A_STEP, _OF_ALL = (tuple(names) for names in zip(*SUMS, strict=True))

#: What never changes in a run. Enumerations are the position in the policy's literal (derivation.py).
PARAMS = _record(
    # reserve and limits
    "reserve", "limit_tokens", "over_limit", "declared_default_tokens", "num_buckets", "buckets_at",
    # pager
    "block_size", "pool_blocks", "placement", "max_run_blocks", "map_ahead",
    "table_width", "extent_blocks", "release_order",
    # far history: blocks that a decoding row keeps (0: all) and how many of them are summaries; most that any row holds
    "kept_blocks", "summary_blocks", "most_held_blocks", "stage_width", "history_tokens",
    # prefix sharing: pager blocks a hash block, hash blocks a pager block (one of them is 1), slots of the key table
    "sharing", "partial_tail", "blocks_a_hash", "hashes_a_block", "key_slots",
    # schedule
    "slots", "prefill", "token_budget", "admission", "watermark_blocks", "refill", "queue_order", "aging_ns", "victim",
    "run_ahead", "preempt", "host_blocks", "host_overlap", "host_merge", "host_submission", "offload", "compaction",
    "compaction_max_moves", "draft_tokens", "seed",
    # launch: ladders live in one int64 array, each from `_at`, `num_` entries, ascending
    "launch", "mixed", "capture", "num_batch_sizes", "batch_sizes_at", "num_contexts", "contexts_at", "num_token_sizes",
    "token_sizes_at",
    "track_longest",
    # read and transport
    "read", "extent", "layout", "merge", "staging", "packed_blocks", "scope", "submission",
    "num_capacities", "capacities_at", "layers",
    # cost, integers
    "tensor_parallel", "kernels", "piecewise_replays", "piecewise_kernels",
    # records
    "window_ns", "steady_from_ns", "steady_until_ns", "pool_sample_ns", "check", "log_events", "log_moves",
    "backlog_tenth_ns",
    floats=(
        # cost, each in ns per unit (docs/cost.md)
        "host_step_ns", "host_row_ns", "host_chunk_ns", "host_block_ns", "host_group_ns", "map_block_ns",
        "commit_call_ns", "commit_byte_ns", "launch_kernel_ns", "first_launch_ns", "mixed_launch_ns", "graph_replay_ns",
        "graph_node_gap_ns", "graph_capture_ns",
        "submit_call_ns", "submit_descriptor_ns", "tail_kernel_ns", "tail_segments", "copy_segment_ns", "copy_block_ns",
        "attention_token_ns", "attention_mixed_token_ns", "prefill_token_ns", "prefill_pair_ns", "store_token_ns",
        "idle_token_ns",
        "dense_token_ns", "dense_weights_ns", "head_row_ns", "head_weights_ns",
        "collective_call_ns", "collective_token_ns",
        "host_segment_ns", "host_out_block_ns", "host_in_block_ns", "host_call_ns", "out_slowdown", "in_slowdown",
        "draft_ns", "acceptance", "compaction_ratio", "max_padding",
    ),
)

#: One replica's scalars.
SCALARS = _record(
    "now_ns", "phase", "status", "error_request", "error_detail", "known_until_ns", "next_arrival",
    "num_arrivals",
    # requests
    "waiting_head", "waiting_tail", "num_waiting", "unseen_head", "unseen_tail", "num_unseen", "turns",
    "arena_free", "injected", "completed", "rejected",
    "truncated",
    "last_finish_ns", "first_arrival_ns", "last_arrival_ns",
    # running, in admission order
    "running_head", "running_tail", "num_running", "admissions", "batch_open", "num_slots_free", "num_stage_free",
    "highest_slot",
    # pool
    "free_blocks", "fence_head", "fence_tail", "fence_clock", "fenced_blocks", "leaving_blocks", "blocks_taken",
    "blocks_freed", "reserved_blocks", "total_runs", "queue_head", "extent_head",
    # prefix sharing: the evictable blocks, least recently used first; references beyond a block's first; its totals
    "evictable", "least_recent", "most_recent", "shared_again", "evicted_blocks",
    # ... and the chain of the request that waits first (prefix.py)
    "chain_request", "chain_blocks", "chain_shared", "chain_evictable", "chain_awaits",
    # decoding rows: every one advances by one token in each step that decodes
    "decode_counter", "growth_at", "num_decode", "sum_computed", "sum_dropped_blocks", "sum_reserved_tokens",
    "stage_blocks", "stage_runs",
    "pending_blocks", "pending_runs",
    "max_base", "max_base_dirty", "last_decode_end_ns", "num_newcomers", "num_unstaged", "num_prefill",
    "used_prefill",
    # rows that wait for pending blocks; rows whose request has ended, and how many of them are decoding
    "num_stalled", "stalled_tokens", "moving_tokens", "num_ended_rows", "num_ended",
    # the first step since nothing was planned; starts of the last two steps
    "first_step", "start_1_ns", "start_2_ns",
    # rows on the move, and the host link; copies to be counted in the step that is planned next
    "num_moving", "active_out", "active_in", "link_at_ns", "transfers", "readied", "swaps",
    "loaded_blocks", "unnoticed_ns",
    "new_out_blocks", "new_out_groups", "new_in_blocks", "new_in_groups", "new_offload_blocks", "new_offload_groups",
    "new_compacted_blocks", "new_compaction_groups", "came_free", "longest_drafted", "undecided",
    "admissions_before", "again", "num_moves",
    "idle_decisions", "carried_preemptions", "check_stamp",
    # totals: of steps that have ended, then of decisions
    *_OF_ALL,
    "steady_tokens", "steady_finishes", "preemptions", "recomputed_tokens", "peak_running", "peak_waiting",
    "peak_reserved_blocks", "peak_allocated_blocks", "peak_used_tokens", "peak_cached_blocks", "unfinished",
    # record buffers
    "num_out", "num_windows", "num_events", "num_pool_samples", "window_end_ns", "spike_end_ns", "next_pool_sample_ns",
    "spike_low", "spike_high", "window_open", "window_low", "window_high",
    # whether a user's placement gave what is no free block, and what (plugin_seams.py)
    "plugin_error", "plugin_value",
    floats=(
        "out_virtual", "in_virtual",
        "acc_reserved", "acc_allocated", "acc_used", "acc_cached", "acc_running", "acc_waiting",
    ),
)

#: A request in flight or waiting (the arena).
REQUESTS = _record(
    "row", "arrival_ns", "prompt_tokens", "output_tokens", "recorded_output_tokens", "reserved_tokens",
    "truncation", "delivered",
    "admitted_ns", "first_token_ns", "last_token_ns", "preemptions", "recomputed_tokens", "next",
    "priority", "score", "turn", "ids_at", "num_keys", "hit_tokens", "lost_tokens",
    # a swapped request: its chain of host blocks (0: none), the entries in them, whether they have all been copied
    "host_first", "host_tokens", "host_ready",
    # a column that is an array of its own: the heap of waiting requests, where they are not in a list
    "heap",
)

#: A row, indexed by stage row. `computed` of a decoding row is origin + decode_counter.
ROWS = _record(
    "request", "slot", "order", "previous", "next", "decoding", "origin", "computed", "planned", "staged",
    "blocks", "run_start", "runs", "begun", "dropped",
    "waits", "was_staged", "ended", "release_at", "rewrites", "drafts",
    # on the move: direction and times of the transfer, what it loads of a prompt
    "direction", "done_ns", "noticed", "ready_at", "loaded", "loaded_from",
    "grow_previous", "grow_next", "finish_previous", "finish_next", "finish_at",
    # columns that are arrays of their own, `slots` long: heaps, lists and the slot map
    "free_slot", "free_stage", "at_slot", "newcomer", "unstaged", "prefill", "growing", "finishing",
    "stalled", "ended_row", "moving",
    floats=("mark_ns",),
)

#: The free store, indexed by block id (0 is the null block; one sentinel after the last).
#: `refs` and `key` are of held and evictable blocks (prefix sharing); `chain_at` counts from 1, 0 where in no chain.
#: A record is one line of the cache.
BLOCKS = _record(
    "key", "mark",
    small=(
        "next", "previous", "free", "refs", "stack", "chain_at", "length", "order", "head", "fenced", "stamp",
        "leaving",
    ),
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
    *_OF_A_STEP,
    "start_ns", "end_ns", "prefill_rows", "prefill_read_tokens", "prefill_pairs", "sampled_rows",
    "launch_kind", "padded_rows", "dense_tokens", "context_bucket", "blocks_taken", "blocks_freed", "group_capacity",
    "batch_is_for", "batch_at",
    "reserved_blocks", "allocated_blocks", "used_tokens", "cached_blocks", "pending_blocks", "running", "waiting",
    "follows", "back_to_back", "device_ns", "duration_ns", "launch_is_for", "launch_ahead_ns", "launch_kept_ns",
)

#: requests.parquet: one record for every request injected, in the order in which they ended.
OUT = _record(
    "row", "outcome", "reason", "arrival_ns", "admitted_ns", "first_token_ns", "finish_ns", "prompt_tokens",
    "output_tokens", "delivered",
    "preemptions", "recomputed_tokens", "hit_tokens",
)

#: steps.parquet: one record a window (or a step). Sums unless said; memory is as of the window's last step.
WINDOWS = _record(
    "start_ns", "end_ns", *_OF_ALL,
    "gaps", "itl_p50_ns", "itl_p99_ns", "itl_max_ns", "running", "waiting",
    "reserved_blocks", "allocated_blocks", "used_tokens", "cached_blocks", "pending_blocks",
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


def words(records: Records) -> Ints:
    """The same memory as int64, one word a field (records without floats and small fields before what is looked at)."""
    return records.view(np.int64)


def _words_from(dtype: np.dtype[Any], first: str) -> slice:
    at = dtype.fields[first][1] // 8  # type: ignore[index]  # a record has fields
    return slice(at, at + NUM_SUMS)


#: Where the sums lie, in words, in each record.
STEP_SUMS, TOTAL_SUMS, WINDOW_SUMS = (
    _words_from(STEP, _OF_A_STEP[0]),
    _words_from(SCALARS, _OF_ALL[0]),
    _words_from(WINDOWS, _OF_ALL[0]),
)
WINDOW_SUMS_AT, WINDOW_WORDS = WINDOW_SUMS.start, WINDOWS.itemsize // 8


class Arrays(NamedTuple):
    """Every array of one replica but its parameters, its scalars and the step: what most kernels are handed as `a`.

    Annotated with dtype and number of dimensions, which compiled code relies on (bundle.py).
    """

    requests: Annotated[Records, REQUESTS, 1]  # [arena]
    rows: Annotated[Records, ROWS, 1]  # [slots], by stage row
    heads: Annotated[Ints, np.int64, 1]  # [block_size + FINISH_LISTS], the lists of both wheels
    blocks: Annotated[Records, BLOCKS, 1]  # [pool_blocks + 2], by block id
    tree: Annotated[Ints, np.int64, 1]  # the set of free ids, extent sizes, or orders + 1 (bittree.py)
    table: Annotated[Ints, np.int64, 2]  # [slots, table_width], the blocks that a row holds, by stage row
    ladders: Annotated[Ints, np.int64, 1]  # the ascending ladders of PARAMS, one after another
    captured: Annotated[Ints, np.int64, 1]  # by captured shape (launch.py): whether it has been captured
    keys: Annotated[Ints, np.int64, 2]  # [key_slots, 2], the table of keys: (key, its block), or block 0 (prefix.py)
    chain: Annotated[Ints, np.int64, 1]  # [table_width], cached blocks of the prompt of the request that waits first
    arrivals: Annotated[Records, ARRIVALS, 1]  # those given and not yet taken in
    ids: Annotated[Ints, np.int64, 1]  # prefix hashes of the arrivals and of the requests in flight, dense ids
    out: Annotated[Records, OUT, 1]
    windows: Annotated[Records, WINDOWS, 1]
    window_words: Annotated[Ints, np.int64, 1]  # the same memory, word by word
    planned: Annotated[Ints, np.int64, 1]  # [NUM_SUMS], the sums of the step (memory of STEP)
    totals: Annotated[Ints, np.int64, 1]  # [NUM_SUMS], of all steps that have ended (memory of SCALARS)
    opened: Annotated[Ints, np.int64, 1]  # [NUM_SUMS], the totals when the present window was opened
    samples: Annotated[Records, POOL_SAMPLES, 1]
    classes: Annotated[Ints, np.int64, 2]  # [samples, RUN_CLASSES]
    tallies: Annotated[Records, TALLY, 1]  # [NUM_HISTOGRAMS]
    histograms: Annotated[Ints, np.int64, 2]  # [NUM_HISTOGRAMS, BUCKETS]
    host_params: Annotated[Records, PARAMS, 1]  # [1], of the host's pool (offload.py)
    host_scalars: Annotated[Records, SCALARS, 1]  # [1]
    host_blocks: Annotated[Records, BLOCKS, 1]  # [host_blocks + 2]
    host_tree: Annotated[Ints, np.int64, 1]
    host_keys: Annotated[Ints, np.int64, 2]
    moves: Annotated[Ints, np.int64, 2]  # [room, 3], (kind, source, target) of copies before the step (moves.py)
    scratch: Annotated[Ints, np.int64, 1]  # [pool_blocks + 2], ids of blocks in the hands of one kernel
    waiting_tenths: Annotated[Ints, np.float64, 1]  # [10], waiting requests times ns, by tenth of the trace
    events: Annotated[Records, EVENTS, 1]

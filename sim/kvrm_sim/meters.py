"""What a run measures while it runs: histograms of times, time-weighted memory, records a window, pool samples.

Histograms have buckets of at most 0.1% width: the index is the head of the value's float64 form (exponent and ten
bits of mantissa), so one shift finds it. Memory is flat in the length of the run.
"""

from __future__ import annotations

import numpy as np

from kvrm_sim.bittree import highest_bit
from kvrm_sim.compiled import kernel, outlined
from kvrm_sim.state import (
    H_ITL,
    H_SPIKE,
    H_WINDOW,
    H_WINDOW_P99,
    NONE,
    NUM_SUMS,
    RUN_CLASSES,
    WINDOW_SUMS_AT,
    WINDOW_WORDS,
    Arrays,
    Ints,
    Record,
    Records,
)

MANTISSA_BITS = 10
BUCKETS = 50 << MANTISSA_BITS  # up to 2^50 ns, 13 days; longer ones share the last bucket (their exact maximum is kept)
_SHIFT = 52 - MANTISSA_BITS
_ORIGIN = 1023 << MANTISSA_BITS
# Windows are summed over at each end of one, so theirs are eight times wider (0.8%).
_COARSE = 3
_COARSE_SHIFT = _SHIFT + _COARSE
_COARSE_ORIGIN = _ORIGIN >> _COARSE

SPIKE_WINDOW_NS = 1_000_000_000
SPIKE_LEAST_GAPS = 20


@kernel
def bucket_of(value_ns: int) -> int:
    """Bucket of a time >= 0."""
    if value_ns < 1:
        return 0
    return min(int(np.float64(value_ns).view(np.int64) >> _SHIFT) - _ORIGIN, BUCKETS - 1)


def bucket_ns(index: int) -> float:
    """The middle of a bucket, in nanoseconds."""
    edges = np.array([index + _ORIGIN, index + 1 + _ORIGIN], np.int64) << _SHIFT
    low, high = edges.view(np.float64)
    return float(low + high) / 2


@kernel
def tally(t: Record, histogram: Ints, value_ns: int, count: int) -> None:
    """Count a time `count` times."""
    histogram[bucket_of(value_ns)] += count
    if t.n == 0 or value_ns < t.least:
        t.least = value_ns
    if value_ns > t.greatest:
        t.greatest = value_ns
    t.n += count
    t.total += float(value_ns) * count


@kernel
def tally_gap(s: Record, a: Arrays, gap_ns: int, count: int) -> None:
    """Count an inter-token gap: over the run, in its 1 s window (spikes) and in its record's window."""
    tally(a.tallies[H_ITL], a.histograms[H_ITL], gap_ns, count)
    bucket = bucket_of(gap_ns) >> _COARSE
    a.histograms[H_SPIKE, bucket] += count
    s.spike_low = min(s.spike_low, bucket)
    s.spike_high = max(s.spike_high, bucket)
    a.histograms[H_WINDOW, bucket] += count
    s.window_low = min(s.window_low, bucket)
    s.window_high = max(s.window_high, bucket)
    w = a.windows[s.num_windows]
    w.gaps += count
    w.itl_max_ns = max(w.itl_max_ns, gap_ns)


@kernel
def _percentile(histograms: Ints, which: int, low: int, high: int, rank: int) -> int:
    """Bucket of the rank-th smallest value (1-based) in [low, high]."""
    seen = 0
    for bucket in range(low, high + 1):
        seen += histograms[which, bucket]
        if seen >= rank:
            return bucket
    return high


@kernel
def _middle_ns(bucket: int) -> int:
    """The middle of a window's bucket."""
    low = np.int64((bucket + _COARSE_ORIGIN) << _COARSE_SHIFT).view(np.float64)
    high = np.int64((bucket + 1 + _COARSE_ORIGIN) << _COARSE_SHIFT).view(np.float64)
    return int((low + high) / 2.0)


@outlined
def close_spike_window(s: Record, tallies: Records, histograms: Ints) -> None:
    """End a 1 s window: its p99 gap is counted when it has enough gaps."""
    total = 0
    for bucket in range(s.spike_low, s.spike_high + 1):
        total += histograms[H_SPIKE, bucket]
    if total >= SPIKE_LEAST_GAPS:
        rank = (99 * total + 99) // 100
        worst = _percentile(histograms, H_SPIKE, s.spike_low, s.spike_high, rank)
        tally(tallies[H_WINDOW_P99], histograms[H_WINDOW_P99], _middle_ns(worst), 1)
    for bucket in range(s.spike_low, s.spike_high + 1):
        histograms[H_SPIKE, bucket] = 0
    s.spike_low = BUCKETS
    s.spike_high = NONE


@outlined
def close_window(s: Record, a: Arrays) -> None:
    """End the current record, if any step fell into it: what was summed since it was opened."""
    if s.window_open == 0:
        return
    w = a.windows[s.num_windows]
    if w.gaps > 0:
        half = _percentile(a.histograms, H_WINDOW, s.window_low, s.window_high, (w.gaps + 1) // 2)
        most = _percentile(a.histograms, H_WINDOW, s.window_low, s.window_high, (99 * w.gaps + 99) // 100)
        w.itl_p50_ns = min(_middle_ns(half), w.itl_max_ns)
        w.itl_p99_ns = min(_middle_ns(most), w.itl_max_ns)
    else:
        w.itl_p50_ns = NONE
        w.itl_p99_ns = NONE
        w.itl_max_ns = NONE
    for bucket in range(s.window_low, s.window_high + 1):
        a.histograms[H_WINDOW, bucket] = 0
    s.window_low = BUCKETS
    s.window_high = NONE
    first = s.num_windows * WINDOW_WORDS + WINDOW_SUMS_AT
    for at in range(NUM_SUMS):
        a.window_words[first + at] = a.totals[at] - a.opened[at]
        a.opened[at] = a.totals[at]
    s.window_open = 0
    s.num_windows += 1
    open_gaps(a.windows[s.num_windows])


@kernel
def open_gaps(w: Record) -> None:
    """A new record has seen no gap."""
    w.gaps = 0
    w.itl_max_ns = 0


@kernel
def add_step(s: Record, step: Record, a: Arrays) -> None:
    """Add an ended step to the totals, and with them to the current record."""
    for at in range(NUM_SUMS):
        a.totals[at] += a.planned[at]
    w = a.windows[s.num_windows]
    if s.window_open == 0:
        s.window_open = 1
        w.start_ns = step.start_ns
    w.end_ns = step.end_ns
    w.running = step.running
    w.waiting = step.waiting
    w.reserved_blocks = step.reserved_blocks
    w.allocated_blocks = step.allocated_blocks
    w.used_tokens = step.used_tokens
    w.cached_blocks = step.cached_blocks
    w.pending_blocks = step.pending_blocks


@kernel
def weigh_memory(s: Record, step: Record) -> None:
    """Add a step's memory, as of its decision, weighted with its duration."""
    dt = float(step.duration_ns)
    s.acc_reserved += step.reserved_blocks * dt
    s.acc_allocated += step.allocated_blocks * dt
    s.acc_used += step.used_tokens * dt
    s.acc_cached += step.cached_blocks * dt
    s.acc_running += step.running * dt
    s.acc_waiting += step.waiting * dt
    s.peak_reserved_blocks = max(s.peak_reserved_blocks, step.reserved_blocks)
    s.peak_allocated_blocks = max(s.peak_allocated_blocks, step.allocated_blocks)
    s.peak_used_tokens = max(s.peak_used_tokens, step.used_tokens)
    s.peak_cached_blocks = max(s.peak_cached_blocks, step.cached_blocks)
    s.peak_running = max(s.peak_running, step.running)
    s.peak_waiting = max(s.peak_waiting, step.waiting)


@kernel
def _count_run(sample: Ints, length: int) -> None:
    sample[min(highest_bit(length), RUN_CLASSES - 1)] += 1


@outlined
def sample_pool(p: Record, s: Record, a: Arrays) -> None:
    """Record holes and run lengths as they are now: one pass over the pool and the live tables."""
    out = a.samples[s.num_pool_samples]
    out.time_ns = s.now_ns
    out.allocated_blocks = p.pool_blocks - s.free_blocks - s.evictable - s.fenced_blocks
    out.reserved_blocks = s.reserved_blocks
    out.cached_blocks = s.evictable
    out.runs = s.total_runs
    holes, largest, hole = 0, 0, 0
    for block in range(1, p.pool_blocks + 2):
        if a.blocks[block].free != 0:
            hole += 1
        elif hole > 0:
            holes += 1
            largest = max(largest, hole)
            hole = 0
    out.holes = holes
    out.largest_hole_blocks = largest
    classes_now = a.classes[s.num_pool_samples]
    classes_now[:] = 0
    used = 0
    row = s.running_head
    while row != NONE:
        used += a.rows[row].origin + s.decode_counter if a.rows[row].decoding else a.rows[row].computed
        used -= a.rows[row].dropped * p.block_size
        if a.rows[row].runs == 1:
            _count_run(classes_now, a.rows[row].blocks)
        elif a.rows[row].runs > 1:
            length = 1
            for logical in range(1, a.rows[row].blocks):
                if a.table[row, logical] == a.table[row, logical - 1] + 1:
                    length += 1
                else:
                    _count_run(classes_now, length)
                    length = 1
            _count_run(classes_now, length)
        row = a.rows[row].next
    out.used_tokens = used + s.moving_tokens - p.block_size * s.shared_again
    s.num_pool_samples += 1

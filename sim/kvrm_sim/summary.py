"""The RUN object of DESIGN section 7: what ``--json`` prints and summary.json holds (docs/metrics.md: each field).

Times are seconds, sizes bytes of one device; what does not exist is None, never 0 or NaN. Only ``sim`` holds anything
that depends on the machine that simulates (``wall_s``, ``requests_per_wall_s``, ``peak_rss_bytes``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvrm_sim.caveats import caveats, is_overloaded
from kvrm_sim.distribution import Distribution, count_above
from kvrm_sim.ended import About, Ended
from kvrm_sim.errors import InvariantError
from kvrm_sim.state import (
    H_E2E,
    H_ITL,
    H_NORMALIZED,
    H_QUEUE,
    H_TPOT_EXCLUSIVE,
    H_TPOT_INCLUSIVE,
    H_TTFT,
    H_WINDOW_P99,
    NEVER,
    Record,
)
from kvrm_sim.totals import Totals

#: A window's p99 inter-token gap above this many times the run's median is a latency spike.
SPIKE_FACTOR = 3
#: Fewer finishes in the steady window say nothing about a steady rate.
STEADY_LEAST_FINISHES = 100

METRICS = {
    "ttft_s": H_TTFT,
    "itl_s": H_ITL,
    "tpot_exclusive_s": H_TPOT_EXCLUSIVE,
    "tpot_inclusive_s": H_TPOT_INCLUSIVE,
    "e2e_s": H_E2E,
    "queue_s": H_QUEUE,
    "normalized_latency_s": H_NORMALIZED,
}


def summarize(
    totals: Totals,
    about: About,
    *,
    overloaded_apart: bool = False,
    extra_warnings: Sequence[str] = (),
    burstiness: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """Summarise one run, of one replica or of several together.

    ``overloaded_apart``: a part of what served the trace was overloaded by itself, and so the whole is.
    ``burstiness``: the trace's CV of gaps and Fano factors, where they are known. Raises InvariantError when requests
    are not conserved.
    """
    ended = Ended(totals, about)
    s, config, trace = ended.scalars, about.config, about.trace
    times = {name: _distribution(totals, which) for name, which in METRICS.items()}
    run: dict[str, Any] = {
        "policy": config.policy.name,
        "model": config.model.name,
        "hardware": config.hardware.name,
        "tensor_parallel": config.tensor_parallel,
        "calibrated": config.hardware.calibrated,
        "prefill": config.policy.schedule.prefill,
        "trace": {
            "name": trace.name,
            "sha256": trace.sha256,
            "rows": trace.rows,
            "span_s": trace.span_ns / 1e9,
            "transforms": about.transforms,
        },
        "counts": _counts(s),
        "audit": audit_line(_counts(s)),
        "overloaded": overloaded_apart or is_overloaded(totals),
        **{name: distribution.to_dict() for name, distribution in times.items()},
        **_rates(ended),
        **_memory(ended),
        "transfer": _transfer(ended),
        "padding_waste": _ratio(s.padded_rows - s.padded_live_rows, s.padded_rows),
        "captures": _captures(ended),
        "capture_stall_s": float(ended.params.graph_capture_ns) * int(s.captures) / 1e9,
        "launch": _launch(s),
        "preemptions": int(s.preemptions),
        "recomputed_tokens": int(s.recomputed_tokens),
        "prefill_tokens": int(s.prefill_tokens),
        "delivered_tokens": int(s.delivered_tokens),
        "recompute_tax": _recompute_tax(ended),
        **_sharing(ended),
        **_optional_parts(ended),
        **_spikes(times["itl_s"], _distribution(totals, H_WINDOW_P99)),
        "burstiness": None if burstiness is None else dict(burstiness),
    }
    run["warnings"] = [*caveats(run, ended), *extra_warnings]
    run["sim"] = {
        "steps": int(s.steps),
        "span_s": totals.span_ns / 1e9,
        "wall_s": about.wall_s,
        "requests_per_wall_s": _ratio(s.injected, about.wall_s),
        "peak_rss_bytes": about.peak_rss_bytes,
    }
    return run


def _distribution(totals: Totals, which: int) -> Distribution:
    return Distribution.of(totals.tallies[which], totals.histograms[which])


def audit_line(counts: Mapping[str, int]) -> str:
    """Where every injected request went. Raises InvariantError when some went nowhere."""
    parts = {name: counts[name] for name in ("completed", "rejected", "truncated", "unfinished")}
    line = f"injected {counts['injected']:,} = " + " + ".join(f"{n:,} {name}" for name, n in parts.items())
    if sum(parts.values()) != counts["injected"]:
        raise InvariantError(f"requests are not conserved: {line}")
    return line


def _counts(s: Record) -> dict[str, int]:
    return {name: int(s[name]) for name in ("injected", "completed", "rejected", "truncated", "unfinished")}


def _recompute_tax(ended: Ended) -> float | None:
    """Written KV entries that a preemption threw away, of all tokens computed; None where prompts cost nothing."""
    s = ended.scalars
    if ended.about.config.policy.schedule.prefill == "none":
        return None
    return _ratio(s.recomputed_tokens, s.prefill_tokens + s.delivered_tokens)


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None


def _sharing(ended: Ended) -> dict[str, Any]:
    """Prompt tokens that were found cached at first admissions; None where the trace has no prefix hashes."""
    s, unit = ended.scalars, ended.about.plan.block_bytes
    if "prefix_hashes" not in ended.about.trace.columns:
        return {"prefix_hit_tokens": None, "cached_kv_bytes": None, "evicted_blocks": None, "copied_blocks": None}
    return {
        "prefix_hit_tokens": int(s.hit_tokens),
        "cached_kv_bytes": ended.both(s.acc_cached, s.peak_cached_blocks, unit),
        "evicted_blocks": int(s.evicted_blocks),
        "copied_blocks": int(s.copied_blocks),
    }


def _optional_parts(ended: Ended) -> dict[str, Any]:
    """What only some policies have; None where one has not."""
    return {
        "host": _host(ended),
        "compaction": _compaction(ended),
        "run_ahead": _run_ahead(ended),
        "speculation": _speculation(ended),
    }


def _host(ended: Ended) -> dict[str, Any] | None:
    """What went to the host's pool and came back; None without one."""
    s, plan = ended.scalars, ended.about.plan
    if ended.about.config.policy.host is None:
        return None
    return {
        "pool_blocks": plan.host_blocks,
        "swaps": int(s.swaps),
        "out_blocks": int(s.host_out_blocks),
        "out_groups": int(s.host_out_groups),
        "in_blocks": int(s.host_in_blocks),
        "in_groups": int(s.host_in_groups),
        "loaded_blocks": int(s.loaded_blocks),
        "offloaded_blocks": int(s.offload_blocks),
        "offload_groups": int(s.offload_groups),
        "bytes_out": int(s.host_out_blocks + s.offload_blocks) * plan.block_bytes,
        "bytes_in": int(s.host_in_blocks) * plan.block_bytes,
        "unnoticed_s": int(s.unnoticed_ns) / 1e9,
    }


def _compaction(ended: Ended) -> dict[str, Any] | None:
    s = ended.scalars
    if ended.about.config.policy.pager.compaction == "none":
        return None
    moved = int(s.compacted_blocks)
    return {"blocks": moved, "groups": int(s.compaction_groups), "bytes_moved": moved * ended.about.plan.block_bytes}


def _run_ahead(ended: Ended) -> dict[str, Any] | None:
    """Rows that ran on behind their end (counted once a step), and rows that had to wait for pending blocks."""
    s = ended.scalars
    if ended.about.config.policy.schedule.run_ahead == 0:
        return None
    return {
        "wasted_rows": int(s.ended_rows),
        "wasted_share": _ratio(s.ended_rows, s.decode_rows),
        "stalled_rows": int(s.stalled_rows),
    }


def _speculation(ended: Ended) -> dict[str, Any] | None:
    s = ended.scalars
    if ended.about.config.policy.speculation is None:
        return None
    return {
        "drafted_tokens": int(s.drafted_tokens),
        "accepted_tokens": int(s.accepted_tokens),
        "accepted_share": _ratio(s.accepted_tokens, s.drafted_tokens),
    }


def _captures(ended: Ended) -> int:
    """Graphs captured: before the run, or in it."""
    first_use = ended.about.config.policy.launch.capture == "first_use"
    return int(ended.scalars.captures) if first_use else ended.about.total(lambda plan: plan.num_graphs)


def _rates(ended: Ended) -> dict[str, Any]:
    """Throughput, over the whole run and over the steady window. Requests that end by a limit count as finishes."""
    s, p = ended.scalars, ended.params
    finishes = s.completed + s.truncated
    known = p.steady_until_ns != NEVER
    window_ns = int(p.steady_until_ns - p.steady_from_ns) if known else 0
    steady = window_ns > 0 and s.steady_finishes >= STEADY_LEAST_FINISHES

    def rates(whole: int, within: int) -> dict[str, float | None]:
        return {"whole": ended.per_second(whole), "steady": int(within) / window_ns * 1e9 if steady else None}

    return {
        "output_tokens_per_s": rates(s.delivered_tokens, s.steady_tokens),
        "requests_per_s": rates(finishes, s.steady_finishes),
        "steady_window_s": [int(p.steady_from_ns) / 1e9, int(p.steady_until_ns) / 1e9] if known else None,
        "steady_finishes": int(s.steady_finishes) if known else None,
        "completed_share": _ratio(s.completed, s.injected),
    }


def _memory(ended: Ended) -> dict[str, Any]:
    """Sizes are of one device of each replica, added up over the replicas."""
    s, plan, total = ended.scalars, ended.about.plan, ended.about.total
    block_tokens = int(ended.params.block_size)
    return {
        "reserved_kv_bytes": ended.both(s.acc_reserved, s.peak_reserved_blocks, plan.block_bytes),
        "allocated_kv_bytes": ended.both(s.acc_allocated, s.peak_allocated_blocks, plan.block_bytes),
        "used_kv_bytes": ended.both(s.acc_used, s.peak_used_tokens, plan.kv_bytes_per_token),
        "kv_footprint_bytes": total(lambda plan: plan.kv_footprint_bytes),
        "staging_bytes": total(lambda plan: plan.factors.staging_bytes),
        "graphs_bytes": total(lambda plan: plan.factors.graphs_bytes),
        "pool_bytes": total(lambda plan: plan.pool_bytes),
        "pool_blocks": total(lambda plan: plan.pool_blocks),
        "block_bytes": plan.block_bytes,
        "block_size_tokens": block_tokens,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "block_fill": _ratio(s.acc_used, s.acc_allocated * block_tokens),
        "slots": total(lambda plan: plan.slots),
        "running": ended.both(s.acc_running, s.peak_running),
        "waiting": ended.both(s.acc_waiting, s.peak_waiting),
    }


def _transfer(ended: Ended) -> dict[str, Any]:
    """Moves from the pool to staging. Nothing is staged in a step with prefill tokens: groups are per decode step."""
    s, plan = ended.scalars, ended.about.plan
    return {
        "groups": int(s.groups),
        "groups_per_step_mean": _ratio(s.groups, s.decode_steps),
        "blocks_per_group_mean": _ratio(s.moved_blocks, s.groups),
        "segments": int(s.segments),
        "rounds": int(s.rounds),
        "bytes_moved": int(s.moved_blocks) * plan.block_bytes,
        "bytes_needed": int(s.needed_tokens) * plan.kv_bytes_per_token,
        "submit_s": int(s.submit_ns) / 1e9,
        "move_s": int(s.move_ns) / 1e9,
    }


def _launch(s: Record) -> dict[str, int]:
    names = ("decode_steps", "mixed_steps", "graph_steps", "piecewise_steps", "eager_steps")
    more = ("off_ladder_steps", "over_capacity_steps", "row_moves")
    return {name: int(s[name]) for name in (*names, *more)}


def _spikes(itl: Distribution, window_p99: Distribution) -> dict[str, int | None]:
    """How many 1 s windows (of those with at least 20 gaps) had a p99 gap of more than 3 × the run's median gap."""
    median_ns = itl.percentile_ns("p50")
    if median_ns is None or window_p99.n == 0:
        return {"spikes": None, "spike_windows": window_p99.n}
    return {"spikes": count_above(window_p99.counts, SPIKE_FACTOR * median_ns), "spike_windows": window_p99.n}

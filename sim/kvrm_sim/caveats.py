"""What a reader has to know before he believes a run's figures: overload, dropped requests, an idle pool, and so on.

Each caveat is a line ``name: what is the case``; the names are stable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvrm_sim.ended import Ended
from kvrm_sim.state import NEVER
from kvrm_sim.totals import Totals
from kvrm_traces import TraceInfo

#: Below this share of the pool, policies that differ in memory cannot differ in anything else.
UNDERUSED_SHARE = 0.5
#: A backlog smaller than this share of all requests is no overload.
BACKLOG_SHARE = 0.005
#: A mean backlog of this share of all requests in the last tenth of the arrivals is one, whether or not it grows.
LARGE_BACKLOG_SHARE = 0.05
#: How much the backlog of the last tenth of the arrivals has to exceed that of the eighth.
BACKLOG_GROWTH = 1.1


def is_overloaded(totals: Totals) -> bool | None:
    """Whether requests came faster than they were served, as seen at the last arrival.

    It is so when the mean backlog grows over the last three tenths of the arrival span, is the greatest of all in the
    last one, is there at least 1.1 × that of the eighth and more than 0.5% of the requests (and more than one); or in
    the last tenth more than 5% of all requests wait; or requests queue and serving goes on for longer after the last
    arrival than arrivals came. None: the span was not known.
    """
    params, scalars = totals.params[0], totals.scalars[0]
    if params.steady_until_ns == NEVER or scalars.injected == 0:
        return None
    least = max(1.0, BACKLOG_SHARE * float(scalars.injected))
    backlog = totals.waiting_tenths / float(params.backlog_tenth_ns)
    eighth, ninth, last = backlog[-3:]
    grows = eighth < ninth < last and last == backlog.max() and last >= BACKLOG_GROWTH * eighth and last > least
    arrivals_ns = int(scalars.last_arrival_ns - scalars.first_arrival_ns)
    drags = scalars.peak_waiting > least and totals.end_ns - int(scalars.last_arrival_ns) > arrivals_ns
    piles_up = last > max(1.0, LARGE_BACKLOG_SHARE * float(scalars.injected))
    return bool(grows or piles_up or drags)


def caveats(run: Mapping[str, Any], ended: Ended) -> list[str]:
    """Every caveat of a run, in a fixed order. ``run`` is its summary so far."""
    return [
        *_about_requests(run, ended.about.trace),
        *_about_sharing(ended),
        *_about_load(run, ended),
        *_about_cost(run, ended),
        *(f"plan: {line}" for line in ended.about.plan.warnings),
        *_about_samples(run),
    ]


def _about_requests(run: Mapping[str, Any], trace: TraceInfo) -> Iterator[str]:
    counts = run["counts"]
    for name, why in (
        ("rejected", "never served; they are in no latency"),
        ("truncated", "cut at a limit; only delivered tokens count"),
        ("unfinished", "censored; they are in no end-to-end latency"),
    ):
        if counts[name]:
            yield f"{name}: {counts[name]:,} of {counts['injected']:,} requests {why}"
    if counts["injected"] < trace.rows:
        yield f"stopped: {trace.rows - counts['injected']:,} of {trace.rows:,} requests of the trace had not arrived"
    if trace.rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(trace.rejected.items()))
        yield f"trace_rows_refused: {reasons}"


def _about_sharing(ended: Ended) -> Iterator[str]:
    """What the trace and the policy have to say to each other, and whether a larger cache could help (case D17)."""
    scalars, policy, columns = ended.scalars, ended.about.config.policy, ended.about.trace.columns
    schedule, shares, hashes = policy.schedule, policy.pager.prefix_sharing, "prefix_hashes" in columns
    if hashes and not shares:
        yield "prefix_sharing: the trace has prefix hashes, and the policy does not share blocks; every hit is lost"
    if shares and not hashes:
        yield "prefix_sharing: the policy shares prompt blocks, and the trace has no prefix hashes; nothing is shared"
    if shares and hashes:
        found = "" if scalars.hit_tokens else "no prompt token was found cached, and "
        if scalars.evicted_blocks:
            yield (
                f"prefix_cache: {found}{int(scalars.evicted_blocks):,} cached blocks were evicted; a larger pool might "
                "keep hits that are lost here"
            )
        else:
            yield f"prefix_cache: {found}no cached block was evicted; a larger pool could keep nothing more"
    if "priority" not in columns:
        for key, chosen in (("order", schedule.order == "priority"), ("victim", schedule.victim == "lowest_priority")):
            if chosen:
                yield f"priority: schedule.{key} goes by priority, and the trace has none; all requests are equal"


def _about_load(run: Mapping[str, Any], ended: Ended) -> Iterator[str]:
    scalars, pool_blocks = ended.scalars, ended.about.plan.pool_blocks
    if run["overloaded"]:
        yield (
            "overloaded: requests come faster than they are served; latencies depend on how long the trace is, and "
            "no latency ranking is given"
        )
    # Without an eviction nothing has left the cache. With one the pool was full, whoever held it.
    peak = int(scalars.peak_allocated_blocks + scalars.peak_cached_blocks)
    if peak < UNDERUSED_SHARE * pool_blocks and not scalars.evicted_blocks:
        held = "held or cached" if scalars.peak_cached_blocks else "held"
        yield (
            f"pool_underused: at most {peak:,} of {pool_blocks:,} blocks ({peak / pool_blocks:.0%}) are ever "
            f"{held}; policies that differ in memory cannot show it at this load"
        )


def _about_cost(run: Mapping[str, Any], ended: Ended) -> Iterator[str]:
    scalars, policy = ended.scalars, ended.about.config.policy
    if not run["calibrated"]:
        yield (
            f"uncalibrated: the coefficients of {run['hardware']} were not all measured; times rank policies under its "
            "assumptions and predict no machine"
        )
    if policy.schedule.prefill == "none":
        yield "prefill_none: prompts cost nothing here; TTFT is the end of the first decode step"
    if scalars.off_ladder_steps:
        yield f"off_ladder: {int(scalars.off_ladder_steps):,} of {int(scalars.steps):,} steps had no captured shape"
    if scalars.over_capacity_steps:
        transport = policy.transport
        tokens = transport.packed_tokens
        packed = "" if tokens is None else f"history than the {tokens:,} tokens of packed staging, or more "
        yield (
            f"over_capacity: {int(scalars.over_capacity_steps):,} of {int(scalars.steps):,} steps ran eager, with more "
            f"{packed}transfer groups than the {transport.group_capacities[-1]:,} captured"
        )


def _about_samples(run: Mapping[str, Any]) -> Iterator[str]:
    for metric in ("ttft_s", "itl_s", "e2e_s"):
        if run[metric]["flags"]:
            percentiles = ", ".join(flag.split(":")[0] for flag in run[metric]["flags"])
            yield f"small_n: {metric} has n = {run[metric]['n']:,}, too few for {percentiles}"

"""One summary over the replicas of a cluster (docs/cluster.md): the RUN object with sums, and a table of replicas.

Counts, histograms and time-weighted sums add up exactly, so means and percentiles are those of all requests. The peak
of a sum is not had from the peaks of its parts, so it is None here; each replica's own stands in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvrm_sim import state as st
from kvrm_sim.caveats import is_overloaded
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.distribution import Distribution
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.replica import Replica
from kvrm_sim.summary import summarize
from kvrm_traces import TraceInfo

_GREATEST = (
    "now_ns", "last_arrival_ns", "last_finish_ns",
    # Not of the sum, which is unknown: a caveat asks whether any pool filled.
    "peak_running", "peak_waiting", "peak_reserved_blocks", "peak_allocated_blocks", "peak_used_tokens",
    "peak_cached_blocks",
)  # fmt: skip
_ADDED = (
    *(total for _, total in st.SUMS),
    "injected", "completed", "rejected", "truncated", "unfinished", "steady_tokens", "steady_finishes", "preemptions",
    "recomputed_tokens", "evicted_blocks", "swaps", "loaded_blocks", "unnoticed_ns",
    "acc_reserved", "acc_allocated", "acc_used", "acc_cached", "acc_running", "acc_waiting",
)  # fmt: skip
#: Of one replica in the plan; the summary holds them for the cluster.
A_REPLICA = ("kv_footprint_bytes", "staging_bytes", "graphs_bytes", "pool_bytes", "pool_blocks", "slots", "captures")
PEAKED = ("reserved_kv_bytes", "allocated_kv_bytes", "used_kv_bytes", "cached_kv_bytes", "running", "waiting")


def merged_scalars(replicas: Sequence[Replica]) -> st.Records:
    """SCALARS [1] of the cluster: totals added, last times; the first arrival of those that had one."""
    merged = np.zeros(1, st.SCALARS)
    every = np.concatenate([replica.scalars for replica in replicas])
    for name in _ADDED:
        merged[name] = every[name].sum()
    for name in _GREATEST:
        merged[name] = every[name].max()
    served = every[every["injected"] > 0]
    if len(served):
        merged["first_arrival_ns"] = served["first_arrival_ns"].min()
    return merged


def merged_tallies(replicas: Sequence[Replica]) -> st.Records:
    """TALLY [NUM_HISTOGRAMS] over all replicas."""
    merged = np.zeros(st.NUM_HISTOGRAMS, st.TALLY)
    for which in range(st.NUM_HISTOGRAMS):
        found = [replica.arrays.tallies[which] for replica in replicas if replica.arrays.tallies[which].n]
        if found:
            merged[which] = (
                sum(int(t.n) for t in found),
                min(int(t.least) for t in found),
                max(int(t.greatest) for t in found),
                sum(float(t.total) for t in found),
            )
    return merged


def summarize_cluster(
    *,
    replicas: Sequence[Replica],
    busy_ns: Sequence[int],
    router: dict[str, Any],
    plan: MemoryPlan,
    config: ReplicaConfig,
    trace: TraceInfo,
    transforms: str | None,
    wall_s: float,
    peak_rss_bytes: int,
) -> dict[str, Any]:
    """The RUN object of a cluster of equal replicas, with ``cluster``. ``busy_ns``: the sum of each one's steps.

    ``router``: its name and parameters. Raises InvariantError when requests are not conserved.
    """
    flooded = [at for at, replica in enumerate(replicas) if is_flooded(replica)]
    scalars = merged_scalars(replicas)
    run = summarize(
        params=replicas[0].parameters.record,
        scalars=scalars,
        tallies=merged_tallies(replicas),
        histograms=np.sum([replica.arrays.histograms for replica in replicas], axis=0),
        waiting_tenths=np.sum([replica.arrays.waiting_tenths for replica in replicas], axis=0),
        plan=plan,
        config=config,
        trace=trace,
        transforms=transforms,
        wall_s=wall_s,
        peak_rss_bytes=peak_rss_bytes,
        overloaded_apart=bool(flooded),
        extra_warnings=[flooded_line(flooded, len(replicas))] if flooded and len(replicas) > 1 else [],
    )
    for name in A_REPLICA:
        run[name] *= len(replicas)
    for name in PEAKED:
        if run[name] is not None:
            run[name]["peak"] = run[name]["peak"] if len(replicas) == 1 else None
    table = [row_of_replica(at, replica, busy_ns[at], run, plan) for at, replica in enumerate(replicas)]
    run["cluster"] = {
        "replicas": len(replicas),
        **router,
        "imbalance": imbalances(table),
        "per_replica": table,
    }
    return run


def is_flooded(replica: Replica) -> bool:
    """Whether a replica by itself was overloaded."""
    s = replica.scalars[0]
    end_ns = int(s.now_ns if s.unfinished else s.last_finish_ns)
    return bool(is_overloaded(replica.parameters.record[0], s, replica.arrays.waiting_tenths, end_ns))


def flooded_line(which: Sequence[int], count: int) -> str:
    """The caveat that names them."""
    return f"replicas_overloaded: {len(which)} of {count} replicas ({', '.join(map(str, which))}) by themselves"


def imbalances(table: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Greatest / mean over the rows of a table of replicas, of requests, busy time and tokens."""
    return {
        "requests": _imbalance([row["requests"] for row in table]),
        "busy_time": _imbalance([row["busy_s"] for row in table]),
        "tokens": _imbalance([row["prefill_tokens"] + row["delivered_tokens"] for row in table]),
    }


def _imbalance(loads: Sequence[float]) -> float | None:
    """Greatest / mean: 1 where all are alike, the number of replicas where one does everything; None without load."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else None


def row_of_replica(at: int, replica: Replica, busy_ns: int, run: dict[str, Any], plan: MemoryPlan) -> dict[str, Any]:
    """One row of the table. Means are over the cluster's span, so that they add up to the cluster's."""
    s, span_ns = replica.scalars[0], run["sim"]["span_s"] * 1e9
    a = replica.arrays

    def mean(accumulated: float, unit: int = 1) -> float | None:
        return float(accumulated) / span_ns * unit if span_ns else None

    def percentiles(which: int) -> dict[str, Any]:
        found = Distribution.of(a.tallies[which], a.histograms[which]).to_dict()
        return {name: found[name] for name in ("n", "mean", "p50", "p99")}

    return {
        "replica": at,
        "requests": int(s.injected),
        **{name: int(s[name]) for name in ("completed", "rejected", "truncated", "unfinished", "preemptions")},
        "steps": int(s.steps),
        "busy_s": busy_ns / 1e9,
        "busy_share": mean(busy_ns),
        "prefill_tokens": int(s.prefill_tokens),
        "delivered_tokens": int(s.delivered_tokens),
        "prefix_hit_tokens": None if run["prefix_hit_tokens"] is None else int(s.hit_tokens),
        "ttft_s": percentiles(st.H_TTFT),
        "e2e_s": percentiles(st.H_E2E),
        "running": {"mean": mean(s.acc_running), "peak": int(s.peak_running)},
        "waiting": {"mean": mean(s.acc_waiting), "peak": int(s.peak_waiting)},
        "allocated_kv_bytes": {
            "mean": mean(s.acc_allocated, plan.block_bytes),
            "peak": int(s.peak_allocated_blocks) * plan.block_bytes,
        },
        "overloaded": is_flooded(replica),
    }

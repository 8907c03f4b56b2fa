"""The RUN object of a run whose prompts and decodes are on different replicas (docs/cluster.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvrm_sim import state as st
from kvrm_sim.cluster import Cluster
from kvrm_sim.cluster_summary import (
    A_REPLICA,
    PEAKED,
    flooded_line,
    imbalances,
    is_flooded,
    merged_scalars,
    merged_tallies,
    row_of_replica,
)
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.split_records import tally_requests
from kvrm_sim.summary import summarize
from kvrm_traces import TraceInfo

#: Times that only one side's histograms tell right: on the decode side a request "arrives" when its KV does.
_OF_PREFILL = (st.H_TTFT, st.H_QUEUE)
#: Times of whole requests: neither side's.
_OF_BOTH = (st.H_E2E, st.H_NORMALIZED, st.H_TPOT_EXCLUSIVE, st.H_TPOT_INCLUSIVE)


@dataclass(frozen=True)
class Side:
    """Ended replicas of one kind, their plan, and their OUT records by row."""

    cluster: Cluster
    plan: MemoryPlan
    requests: st.Records

    @property
    def count(self) -> int:
        """How many replicas."""
        return len(self.cluster.replicas)


def summarize_split(
    *,
    prefill: Side,
    decode: Side,
    merged: st.Records,
    about: Mapping[str, Any],
    config: ReplicaConfig,
    trace: TraceInfo,
    transforms: str | None,
    wall_s: float,
    peak_rss_bytes: int,
) -> dict[str, Any]:
    """The RUN object over both sides. ``merged``: OUT records with ``SPLIT``. Raises InvariantError when requests are
    not conserved.
    """
    replicas = [*prefill.cluster.replicas, *decode.cluster.replicas]
    tallies, histograms = _times(prefill, decode, merged)
    flooded = [at for at, replica in enumerate(replicas) if is_flooded(replica)]
    scalars = _scalars(prefill, decode, merged)
    again = int(sum(replica.scalars[0].preemptions for replica in decode.cluster.replicas))
    lines = [flooded_line(flooded, len(replicas))] if flooded else []
    if again:
        lines.append(f"decode_preempted: {again:,} preemptions on decode replicas; their KV came back at no cost")
    run = summarize(
        params=prefill.cluster.replicas[0].parameters.record,
        scalars=scalars,
        tallies=tallies,
        histograms=histograms,
        waiting_tenths=np.sum([replica.arrays.waiting_tenths for replica in replicas], axis=0),
        plan=decode.plan,
        config=config,
        trace=trace,
        transforms=transforms,
        wall_s=wall_s,
        peak_rss_bytes=peak_rss_bytes,
        overloaded_apart=bool(flooded),
        extra_warnings=lines,
    )
    for name in A_REPLICA:
        run[name] = prefill.count * _figures(prefill.plan)[name] + decode.count * _figures(decode.plan)[name]
    for name in PEAKED:
        if run[name] is not None:
            run[name]["peak"] = None
    tables = {}
    for kind, side, first in (("prefill", prefill, 0), ("decode", decode, prefill.count)):
        busy = side.cluster.records.busy_ns
        tables[kind] = [
            {"kind": kind, **row_of_replica(first + at, replica, busy[at], run, side.plan)}
            for at, replica in enumerate(side.cluster.replicas)
        ]
    run["cluster"] = {
        "replicas": len(replicas),
        **about,
        "imbalance": {kind: imbalances(rows) for kind, rows in tables.items()},
        "kv_transfer": _kv_transfer(merged, config),
        "per_replica": [*tables["prefill"], *tables["decode"]],
    }
    return run


def _times(prefill: Side, decode: Side, merged: st.Records) -> tuple[st.Records, np.ndarray[Any, np.dtype[np.int64]]]:
    """TALLY and histograms of the whole requests."""
    tallies = merged_tallies(decode.cluster.replicas)
    histograms = np.sum([replica.arrays.histograms for replica in decode.cluster.replicas], axis=0)
    of_prompts = merged_tallies(prefill.cluster.replicas)
    for which in _OF_PREFILL:
        tallies[which] = of_prompts[which]
        histograms[which] = np.sum([r.arrays.histograms[which] for r in prefill.cluster.replicas], axis=0)
    for which in _OF_BOTH:
        tallies[which] = np.zeros((), st.TALLY)
        histograms[which] = 0
    tally_requests(merged, prefill.requests, decode.requests, tallies, histograms)
    return tallies, histograms


def _scalars(prefill: Side, decode: Side, merged: st.Records) -> st.Records:
    """SCALARS [1]: totals of both sides, requests counted once and by what became of them in the end."""
    scalars = merged_scalars([*prefill.cluster.replicas, *decode.cluster.replicas])
    prompts, params = merged_scalars(prefill.cluster.replicas), prefill.cluster.replicas[0].parameters.record[0]
    for name in ("injected", "first_arrival_ns", "last_arrival_ns"):
        scalars[name] = prompts[name]
    for code, name in enumerate(st.OUTCOMES):
        scalars[name] = int((merged["outcome"] == code).sum())
    finish = merged["finish_ns"][(merged["outcome"] == st.COMPLETED) | (merged["outcome"] == st.TRUNCATED)]
    inside = (finish >= params.steady_from_ns) & (finish <= params.steady_until_ns)
    scalars["steady_finishes"] = int(inside.sum())
    scalars["last_finish_ns"] = int(finish.max(initial=0))
    return scalars


def _figures(plan: MemoryPlan) -> dict[str, int]:
    return {
        "kv_footprint_bytes": plan.kv_footprint_bytes,
        "staging_bytes": plan.factors.staging_bytes,
        "graphs_bytes": plan.factors.graphs_bytes,
        "pool_bytes": plan.pool_bytes,
        "pool_blocks": plan.pool_blocks,
        "slots": plan.slots,
        "captures": plan.num_graphs,
    }


def _kv_transfer(merged: st.Records, config: ReplicaConfig) -> dict[str, Any]:
    """Ended moves between replicas: how many, what they carried, and how long from the first token to the last byte."""
    moved = merged[merged["transfer_ns"] != st.NONE]
    took = moved["transfer_ns"]
    return {
        "n": len(moved),
        "groups": int(moved["transfer_groups"].sum()),
        "bytes_moved": int(moved["prompt_tokens"].sum()) * config.rank_kv_bytes_per_token,
        "mean_s": float(took.mean()) / 1e9 if len(took) else None,
        "max_s": int(took.max()) / 1e9 if len(took) else None,
    }

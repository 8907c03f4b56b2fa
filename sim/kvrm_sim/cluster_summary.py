"""One summary over several replicas (docs/cluster.md): the RUN object with sums, and a table of the replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvrm_sim import state as st
from kvrm_sim.caveats import is_overloaded
from kvrm_sim.distribution import Distribution
from kvrm_sim.ended import About
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.summary import summarize
from kvrm_sim.totals import Totals, added


@dataclass(frozen=True)
class Served:
    """One replica that has served its share, here or in another process. ``busy_ns``: the sum of its steps."""

    totals: Totals
    busy_ns: int


def summarize_several(
    kinds: Mapping[str, Sequence[Served]],
    described: Mapping[str, Any],
    about: About,
    *,
    totals: Totals | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The RUN object of several replicas, with ``cluster``: how they are ``described``, then a table of them.

    ``kinds``: equal replicas by what they are for ("" where all do the same), in the order of their numbers in the
    records and of ``about.plans``.
    ``totals``: of the whole, where they are not those of the replicas added up. ``warnings``: besides the usual ones.
    Raises InvariantError when requests are not conserved.
    """
    replicas = [one.totals for served in kinds.values() for one in served]
    flooded = [at for at, replica in enumerate(replicas) if is_overloaded(replica)]
    lines = [_flooded_line(flooded, len(replicas))] if flooded and len(replicas) > 1 else []
    run = summarize(
        added(replicas) if totals is None else totals,
        about,
        overloaded_apart=bool(flooded),
        extra_warnings=[*lines, *warnings],
    )
    tables: dict[str, list[dict[str, Any]]] = {}
    first = 0
    for (kind, served), (plan, _) in zip(kinds.items(), about.plans, strict=True):
        named = {"kind": kind} if len(kinds) > 1 else {}
        tables[kind] = [{**named, **_row_of_replica(at, one, run, plan)} for at, one in enumerate(served, start=first)]
        first += len(served)
    imbalance = {kind: _imbalances(table) for kind, table in tables.items()}
    run["cluster"] = {
        "replicas": len(replicas),
        **described,
        "imbalance": imbalance if len(kinds) > 1 else next(iter(imbalance.values())),
        "per_replica": [row for table in tables.values() for row in table],
    }
    return run


def _flooded_line(which: Sequence[int], count: int) -> str:
    """The caveat that names them."""
    return f"replicas_overloaded: {len(which)} of {count} replicas ({', '.join(map(str, which))}) by themselves"


def _imbalances(table: Sequence[dict[str, Any]]) -> dict[str, float | None]:
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


def _row_of_replica(at: int, served: Served, run: dict[str, Any], plan: MemoryPlan) -> dict[str, Any]:
    """One row of the table. Means are over the cluster's span, so that they add up to the cluster's."""
    totals, span_ns = served.totals, run["sim"]["span_s"] * 1e9
    s = totals.scalars[0]

    def mean(accumulated: float, unit: int = 1) -> float | None:
        return float(accumulated) / span_ns * unit if span_ns else None

    def percentiles(which: int) -> dict[str, Any]:
        found = Distribution.of(totals.tallies[which], totals.histograms[which]).to_dict()
        return {name: found[name] for name in ("n", "mean", "p50", "p99")}

    return {
        "replica": at,
        "requests": int(s.injected),
        **{name: int(s[name]) for name in ("completed", "rejected", "truncated", "unfinished", "preemptions")},
        "steps": int(s.steps),
        "busy_s": served.busy_ns / 1e9,
        "busy_share": mean(served.busy_ns),
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
        "overloaded": bool(is_overloaded(totals)),
    }

"""Whether a run is of one replica or of a cluster, and what of a cluster can be refused before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from kvrm.api import ClusterOptions, Driver, ReplicaOptions, RunOptions
    from kvrm_sim.config import ReplicaConfig
    from kvrm_traces import Trace

DEFAULT_ROUTER = "round-robin"

_OF_A_CLUSTER = ("cluster", "router", "prefix_weight")


def split_options(options: RunOptions) -> tuple[ClusterOptions, ReplicaOptions]:
    """The options of the cluster, and those of each replica."""
    given: dict[str, Any] = dict(options)
    cluster = {name: given.pop(name) for name in _OF_A_CLUSTER if name in given}
    return cast("ClusterOptions", cluster), cast("ReplicaOptions", given)


def check_cluster(
    options: ClusterOptions, driver: Driver, trace: Trace | None = None, configs: Sequence[ReplicaConfig] = ()
) -> None:
    """Raise InputError for options of a cluster that do not fit each other, the trace, or a policy.

    Nothing is looked at that is not given: a command checks its own line before it reads the trace.
    """
    from kvrm_traces.errors import InputError

    count, router, weight = (options.get(name) for name in _OF_A_CLUSTER)
    if count is None:
        for name, value in (("router", router), ("prefix_weight", weight)):
            if value is not None:
                raise InputError(f"{name} = {value!r}: one replica has nothing to route; pass cluster = N as well")
        return
    if driver != "span":
        raise InputError(f"driver = {driver!r}: a cluster runs with driver 'span'")
    from kvrm_sim.cluster import check_cluster as check

    for config in configs or (None,):
        check(cast("int", count), cast("str", router or DEFAULT_ROUTER), cast("float | None", weight), trace, config)


def cluster_text(summary: dict[str, Any]) -> str:
    """The replicas of a cluster's run, one a line, for a terminal."""
    cluster = summary["cluster"]
    weight = f" (weight {cluster['prefix_weight']:g})" if "prefix_weight" in cluster else ""
    shares = ", ".join(
        f"{name.replace('_', ' ')} {'-' if value is None else f'{value:.3f}'}"
        for name, value in cluster["imbalance"].items()
    )
    lines = [
        f"{summary['policy']}: {cluster['replicas']} replicas, router {cluster['router']}{weight}; memory above is "
        "their sum",
        f"  imbalance, max / mean: {shares}",
        "  replica   requests     busy s     tokens    TTFT p50 s    TTFT p99 s   waiting, mean   hit tokens",
    ]
    for row in cluster["per_replica"]:
        tokens = row["prefill_tokens"] + row["delivered_tokens"]
        lines.append(
            f"  {row['replica']:>7} {row['requests']:>10,} {row['busy_s']:>10,.1f} {tokens:>10,} "
            f"{_number(row['ttft_s']['p50']):>13} {_number(row['ttft_s']['p99']):>13} "
            f"{_number(row['waiting']['mean']):>15} {_count(row['prefix_hit_tokens']):>12}"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"

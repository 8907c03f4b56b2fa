"""Whether a run is of one replica or of a cluster, and what of a cluster can be refused before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from kvrm.api import ClusterOptions, Driver, ReplicaOptions, RunOptions
    from kvrm_sim.config import ReplicaConfig
    from kvrm_sim.result import RunResult
    from kvrm_traces import Trace

DEFAULT_ROUTER = "round-robin"

_SPLIT = ("prefill_replicas", "decode_replicas")
_OF_A_CLUSTER = ("cluster", *_SPLIT, "router", "prefix_weight")


def split_options(options: RunOptions) -> tuple[ClusterOptions, ReplicaOptions]:
    """The options of the cluster, and those of each replica."""
    given: dict[str, Any] = dict(options)
    cluster = {name: given.pop(name) for name in _OF_A_CLUSTER if name in given}
    return cast("ClusterOptions", cluster), cast("ReplicaOptions", given)


def is_one_replica(options: ClusterOptions) -> bool:
    """Nothing asks for more."""
    return all(options.get(name) is None for name in ("cluster", *_SPLIT))


def check_cluster(
    options: ClusterOptions, driver: Driver, trace: Trace | None = None, configs: Sequence[ReplicaConfig] = ()
) -> None:
    """Raise InputError for options of a cluster that do not fit each other, the trace, or a policy.

    Nothing is looked at that is not given: a command checks its own line before it reads the trace.
    """
    from kvrm_traces.errors import InputError

    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    split = [given[name] for name in _SPLIT if name in given]
    if is_one_replica(options):
        for name, value in given.items():
            raise InputError(f"{name} = {value!r}: one replica has nothing to route; pass cluster = N as well")
        return
    if split and "cluster" in given:
        raise InputError("cluster: its replicas do both prefill and decode; pass it or prefill_replicas, not both")
    if len(split) == 1:
        raise InputError("prefill_replicas and decode_replicas: one needs the other; pass both")
    if driver != "span":
        raise InputError(f"driver = {driver!r}: a cluster runs with driver 'span'")
    from kvrm_sim.cluster import check_cluster as check
    from kvrm_sim.split import check_split

    count = given.get("cluster", 1)
    for config in configs or (None,):
        check(count, given.get("router", DEFAULT_ROUTER), given.get("prefix_weight"), trace, config)
        if split:
            check_split(config, *split)


def run_replicas(trace: Trace, config: ReplicaConfig, options: ClusterOptions, **how: Any) -> RunResult:
    """Run a cluster, or split prefill from decode, as the options (checked) say. ``how``: as of ``engine.run``."""
    from kvrm_sim.cluster import run_cluster
    from kvrm_sim.split import run_split

    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "cluster" in given:
        return run_cluster(trace, config, replicas=given.pop("cluster"), **given, **how)
    return run_split(trace, config, **given, **how)


def cluster_text(summary: dict[str, Any]) -> str:
    """The replicas of a cluster's run, one a line, for a terminal."""
    cluster = summary["cluster"]
    weight = f" (weight {cluster['prefix_weight']:g})" if "prefix_weight" in cluster else ""
    lines = [
        f"{summary['policy']}: {cluster['replicas']} replicas, router {cluster['router']}{weight}; memory above is "
        "their sum",
    ]
    moved = cluster.get("kv_transfer")
    if moved is None:
        lines.append(f"  imbalance, max / mean: {_shares(cluster['imbalance'])}")
    else:
        lines += [f"  imbalance of {kind}, max / mean: {_shares(of)}" for kind, of in cluster["imbalance"].items()]
        lines.append(
            f"  moved from prefill to decode: {moved['n']:,} prompts, {moved['bytes_moved'] / (1 << 30):,.2f} GiB in "
            f"{moved['groups']:,} groups; mean {_number(moved['mean_s'])} s, max {_number(moved['max_s'])} s"
        )
    lines.append("  replica   requests     busy s     tokens    TTFT p50 s    TTFT p99 s   waiting, mean   hit tokens")
    for row in cluster["per_replica"]:
        tokens = row["prefill_tokens"] + row["delivered_tokens"]
        lines.append(
            f"  {_name(row):>7} {row['requests']:>10,} {row['busy_s']:>10,.1f} {tokens:>10,} "
            f"{_number(row['ttft_s']['p50']):>13} {_number(row['ttft_s']['p99']):>13} "
            f"{_number(row['waiting']['mean']):>15} {_count(row['prefix_hit_tokens']):>12}"
        )
    return "\n".join(lines)


def _shares(imbalance: dict[str, float | None]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in imbalance.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _name(row: dict[str, Any]) -> str:
    return f"{row['kind'][0].upper()}{row['replica']}" if "kind" in row else str(row["replica"])

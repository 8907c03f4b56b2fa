"""A cluster's run as text."""

from __future__ import annotations

from typing import Any


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

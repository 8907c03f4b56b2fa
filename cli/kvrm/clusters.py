"""A cluster's run as text."""

from __future__ import annotations

from typing import Any


def cluster_text(summary: dict[str, Any]) -> str:
    """The replicas of a cluster's run, one a line, for a terminal; requests waiting are a mean over time."""
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
    table = [("replica", "requests", "busy, s", "tokens", "TTFT p50 / p99, s", "waiting", "hit tokens")]
    for row in cluster["per_replica"]:
        tokens = row["prefill_tokens"] + row["delivered_tokens"]
        latency = " / ".join(_number(row["ttft_s"][name]) for name in ("p50", "p99"))
        table.append(
            (_name(row), f"{row['requests']:,}", f"{row['busy_s']:,.1f}", f"{tokens:,}", latency,
             _number(row["waiting"]["mean"]), _count(row["prefix_hit_tokens"]))
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines += ["  ".join(cell.rjust(wide) for cell, wide in zip(row, widths, strict=True)) for row in table]
    return "\n".join(lines)


def _shares(imbalance: dict[str, float | None]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in imbalance.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _name(row: dict[str, Any]) -> str:
    return f"{row['kind'][0].upper()}{row['replica']}" if "kind" in row else str(row["replica"])

"""The row of results of a cell: one number a column, the unit at the end of its name, None where there is none.

``METRICS`` is the interface: column, Arrow type, and where the number is in the RUN object (DESIGN section 7). Times
are in seconds and sizes in bytes of one device, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

#: A row: ``status``, ``error``, and each column of METRICS. Plain numbers, words and None.
Row: TypeAlias = dict[str, Any]

Type: TypeAlias = Literal["int", "float", "bool", "text"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of results: its name, its type, and the path of its number in a summary."""

    name: str
    type: Type
    path: tuple[str, ...]

    def of(self, summary: Mapping[str, Any]) -> Any:
        """Its value in a summary, or None."""
        found: Any = summary
        for key in self.path:
            found = None if found is None else found.get(key)
        if found is None or self.type in ("bool", "text"):
            return found
        return int(found) if self.type == "int" else float(found)


def _counts() -> list[Metric]:
    names = ("injected", "completed", "rejected", "truncated", "unfinished")
    return [Metric(f"{name}_requests", "int", ("counts", name)) for name in names]


def _times() -> list[Metric]:
    found = []
    for name in ("ttft", "itl", "tpot_exclusive", "tpot_inclusive", "e2e", "queue", "normalized_latency"):
        found.append(Metric(f"{name}_n", "int", (f"{name}_s", "n")))
        found += [Metric(f"{name}_{of}_s", "float", (f"{name}_s", of)) for of in ("mean", "p50", "p90", "p99", "max")]
    return found


def _rates() -> list[Metric]:
    found = []
    for name in ("output_tokens_per_s", "requests_per_s"):
        found.append(Metric(name, "float", (name, "whole")))
        found.append(Metric(name.replace("_per_s", "_steady_per_s"), "float", (name, "steady")))
    return found


def _memory() -> list[Metric]:
    found = []
    for name in ("reserved_kv", "allocated_kv", "used_kv", "cached_kv"):
        found.append(Metric(f"{name}_mean_bytes", "float", (f"{name}_bytes", "mean")))
        found.append(Metric(f"{name}_peak_bytes", "int", (f"{name}_bytes", "peak")))
    sizes = ("kv_footprint_bytes", "staging_bytes", "graphs_bytes", "slots")
    found += [Metric(name, "int", (name,)) for name in sizes]
    found += [Metric(f"kv_{name}", "int", (name,)) for name in ("pool_bytes", "pool_blocks")]
    found.append(Metric("block_fill", "float", ("block_fill",)))
    for name in ("running", "waiting"):
        found.append(Metric(f"{name}_mean_requests", "float", (name, "mean")))
        found.append(Metric(f"{name}_peak_requests", "int", (name, "peak")))
    return found


def _transfer() -> list[Metric]:
    return [
        Metric("transfer_groups", "int", ("transfer", "groups")),
        Metric("transfer_groups_per_step", "float", ("transfer", "groups_per_step_mean")),
        Metric("transfer_blocks_per_group", "float", ("transfer", "blocks_per_group_mean")),
        Metric("transfer_moved_bytes", "int", ("transfer", "bytes_moved")),
        Metric("transfer_needed_bytes", "int", ("transfer", "bytes_needed")),
        Metric("transfer_submit_s", "float", ("transfer", "submit_s")),
        Metric("transfer_move_s", "float", ("transfer", "move_s")),
    ]


def _irregularity() -> list[Metric]:
    whole = ("captures", "preemptions", "recomputed_tokens", "prefill_tokens", "delivered_tokens", "prefix_hit_tokens")
    parts = (
        ("swaps", "int", ("host", "swaps")),
        ("host_out_bytes", "int", ("host", "bytes_out")),
        ("host_in_bytes", "int", ("host", "bytes_in")),
        ("compacted_blocks", "int", ("compaction", "blocks")),
        ("wasted_rows", "int", ("run_ahead", "wasted_rows")),
        ("accepted_drafts_share", "float", ("speculation", "accepted_share")),
    )
    return [
        Metric("padding_waste", "float", ("padding_waste",)),
        Metric("recompute_tax", "float", ("recompute_tax",)),
        *(Metric(name, "int", (name,)) for name in (*whole, "evicted_blocks", "spikes")),
        Metric("capture_stall_s", "float", ("capture_stall_s",)),
        *(Metric(name, "int" if of == "int" else "float", path) for name, of, path in parts),
        Metric("steps", "int", ("sim", "steps")),
        Metric("span_s", "float", ("sim", "span_s")),
    ]


#: Every column of results, in the order of the table.
METRICS: tuple[Metric, ...] = (
    *_counts(),
    Metric("completed_share", "float", ("completed_share",)),
    Metric("overloaded", "bool", ("overloaded",)),
    Metric("calibrated", "bool", ("calibrated",)),
    *_times(),
    *_rates(),
    *_memory(),
    *_transfer(),
    *_irregularity(),
)

#: Columns beside the numbers: what became of the cell, why, and what the reader of its numbers should know.
WORDS = ("status", "error", "warnings")


def row_of(summary: Mapping[str, Any]) -> Row:
    """The row of a run that ended."""
    row: Row = {"status": "done", "error": None, "warnings": "; ".join(summary["warnings"])}
    return row | {metric.name: metric.of(summary) for metric in METRICS}


def failed_row(status: str, error: str) -> Row:
    """The row of a cell without results."""
    row: Row = {"status": status, "error": error, "warnings": None}
    return row | {metric.name: None for metric in METRICS}

"""A difference between runs for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvrm_analysis.differences import Difference, Metric

#: What is printed unless all is asked for.
MAIN = (
    "injected_requests", "completed_requests", "rejected_requests", "truncated_requests", "unfinished_requests",
    "ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s", "itl_max_s", "tpot_exclusive_p50_s", "tpot_exclusive_p99_s",
    "e2e_p50_s", "e2e_p99_s", "queue_p99_s", "output_tokens_per_s", "requests_per_s", "kv_footprint_bytes",
    "reserved_kv_mean_bytes", "allocated_kv_mean_bytes", "used_kv_mean_bytes", "kv_pool_blocks", "block_fill",
    "running_mean_requests", "waiting_mean_requests", "transfer_groups_per_step", "transfer_moved_bytes",
    "transfer_move_s", "padding_waste", "captures", "preemptions", "recomputed_tokens", "prefix_hit_tokens", "spikes",
)  # fmt: skip
#: What is in parentheses where latencies are not to be compared.
_LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue", "normalized")
_WIDEST = 44


def render(found: Difference, *, everything: bool = False) -> str:
    """Settings that differ, then results with their change (in parentheses: not to be compared), then why not."""
    lines = [f"A  {_side(found, 0)}", f"B  {_side(found, 1)}", ""]
    lines += _settings(found)
    lines += ["", *_results(found, everything)]
    if found.notes:
        lines += ["", *found.notes]
    return "\n".join(lines)


def _side(found: Difference, at: int) -> str:
    count = found.repeats[at]
    if count == 1:
        return found.names[at]
    return f"{found.names[at]} (mean of {count} repeats{', paired by seed' if found.paired else ''})"


def _settings(found: Difference) -> list[str]:
    if not found.settings:
        return ["settings: the same"]
    cells = [(key, _value(a), _value(b)) for key, (a, b) in found.settings.items()]
    return ["settings", *_columns(cells, "<<<")]


def _value(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _results(found: Difference, everything: bool) -> list[str]:
    differing = [metric for metric in found.metrics if metric.differs]
    if not differing:
        return ["results: the same, every number"]
    shown = [metric for metric in differing if everything or metric.name in MAIN]
    with_interval = any(metric.interval is not None for metric in shown)
    title = f"results: {len(differing)} of {len(found.metrics)} numbers differ"
    if with_interval:
        title += "; [95% of the change, bootstrap over repeats], * leaves out 0"
    more = len(differing) - len(shown)
    last = [f"  and {more} more: --all shows them"] if more else []
    rows = [_cells(metric, found.unranked) for metric in shown]
    return [title, *_columns(rows, "<>>><" if with_interval else "<>>>"), *last]


def _cells(metric: Metric, unranked: bool) -> tuple[str, ...]:
    change = "" if metric.change is None else f"{100 * metric.change:+,.1f}%"
    if unranked and change and metric.name.startswith(_LATENCIES):
        change = f"({change})"
    a, b = (_number(metric, value) for value in (metric.a, metric.b))
    if metric.interval is None:
        return metric.name, a, b, change, ""
    low, high = metric.interval
    sure = "" if low <= 0 <= high else " *"
    return metric.name, a, b, change, f"[{100 * low:+,.1f}%, {100 * high:+,.1f}%]{sure}"


def _number(metric: Metric, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if metric.figure.unit == "count" and float(value).is_integer() else metric.figure.text(value)


def _columns(rows: Sequence[tuple[str, ...]], alignment: str) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(alignment))]
    return [
        ("  " + "  ".join(f"{row[at]:{way}{widths[at]}}" for at, way in enumerate(alignment))).rstrip() for row in rows
    ]

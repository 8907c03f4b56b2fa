"""The lines of a comparison: which number of a summary each shows, in which unit, with how many digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvrm_analysis.ranking import RANKED

GIB = float(1 << 30)
ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the printed table: what it says, where the number is, how it is scaled, its digits and its unit."""

    title: str
    column: str
    path: tuple[str, ...]
    scale: float = 1.0
    digits: int = 0
    #: (metric, statistic) whose best run is marked.
    ranked: tuple[str, str] | None = None

    def value(self, run: dict[str, Any]) -> float | None:
        """The scaled number, or None."""
        found: Any = run
        for key in self.path:
            found = None if found is None else found.get(key)  # a run of an earlier version lacks newer parts
        return None if found is None else found * self.scale

    def text(self, run: dict[str, Any]) -> str:
        """The number with its digits (none above 100,000), in groups of three."""
        value = self.value(run)
        if value is None:
            return ABSENT
        return f"{value:,.{0 if abs(value) >= 1e5 else self.digits}f}"


def _latency(metric: str, statistic: str, name: str, unit: str, scale: float, digits: int) -> Row:
    ranked = (metric, statistic) if (metric, statistic) in RANKED else None
    column = f"{metric.removesuffix('_s')}_{statistic}_{unit}"
    return Row(f"{name} {statistic}, {unit}", column, (metric, statistic), scale, digits, ranked)


def _gib(title: str, column: str, *path: str) -> Row:
    return Row(f"{title}, GiB", f"{column}_gib", path, 1 / GIB, 2)


#: The section that is printed only where a run kept blocks for a hit.
SHARING = "prefix sharing"

#: Sections of parts that most policies lack: a line is printed only where a run has a number for it.
HOST, MORE = "host pool", "other parts"

#: The row that is printed only where a run waited: with graphs that are captured at first use.
CAPTURE_STALL = "capture_stall_s"

SECTIONS: dict[str, tuple[Row, ...]] = {
    "served": (
        Row("injected", "injected_requests", ("counts", "injected")),
        Row("completed", "completed_requests", ("counts", "completed")),
        Row("rejected", "rejected_requests", ("counts", "rejected")),
        Row("truncated", "truncated_requests", ("counts", "truncated")),
        Row("unfinished", "unfinished_requests", ("counts", "unfinished")),
    ),
    "throughput": (
        Row("output tokens/s", "output_tokens_per_s", ("output_tokens_per_s", "whole"), digits=1),
        Row("output tokens/s, steady", "output_tokens_per_s_steady", ("output_tokens_per_s", "steady"), digits=1),
        Row("requests/s", "requests_per_s", ("requests_per_s", "whole"), digits=3),
    ),
    "latency": (
        Row("n of TTFT", "ttft_n", ("ttft_s", "n")),
        _latency("ttft_s", "p50", "TTFT", "s", 1, 3),
        _latency("ttft_s", "p99", "TTFT", "s", 1, 3),
        Row("n of ITL", "itl_n", ("itl_s", "n")),
        _latency("itl_s", "p50", "ITL", "ms", 1e3, 2),
        _latency("itl_s", "p99", "ITL", "ms", 1e3, 2),
        _latency("itl_s", "max", "ITL", "ms", 1e3, 1),
        _latency("e2e_s", "p50", "E2E", "s", 1, 2),
        _latency("e2e_s", "p99", "E2E", "s", 1, 2),
        Row("latency spikes (1 s windows)", "spikes", ("spikes",)),
    ),
    "memory (one device of each replica)": (
        _gib("footprint", "kv_footprint", "kv_footprint_bytes"),
        _gib("  of it staging", "staging", "staging_bytes"),
        _gib("reserved, mean", "reserved_kv_mean", "reserved_kv_bytes", "mean"),
        _gib("reserved, peak", "reserved_kv_peak", "reserved_kv_bytes", "peak"),
        _gib("allocated, mean", "allocated_kv_mean", "allocated_kv_bytes", "mean"),
        _gib("used, mean", "used_kv_mean", "used_kv_bytes", "mean"),
        Row("fill of held blocks, %", "block_fill_percent", ("block_fill",), 100, 1),
        Row("requests running, mean", "running_mean", ("running", "mean"), digits=1),
        Row("requests waiting, mean", "waiting_mean", ("waiting", "mean"), digits=1),
    ),
    SHARING: (
        Row("prompt tokens hit", "prefix_hit_tokens", ("prefix_hit_tokens",)),
        _gib("cached, mean", "cached_kv_mean", "cached_kv_bytes", "mean"),
        Row("blocks evicted", "evicted_blocks", ("evicted_blocks",)),
        Row("tails copied", "copied_blocks", ("copied_blocks",)),
    ),
    "movement": (
        Row("transfer groups a step", "groups_per_step_mean", ("transfer", "groups_per_step_mean"), digits=1),
        Row("blocks a group", "blocks_per_group_mean", ("transfer", "blocks_per_group_mean"), digits=1),
        _gib("moved", "moved", "transfer", "bytes_moved"),
        _gib("needed", "needed", "transfer", "bytes_needed"),
        Row("submit time, s", "submit_s", ("transfer", "submit_s"), digits=2),
        Row("move time, s", "move_s", ("transfer", "move_s"), digits=2),
    ),
    HOST: (
        Row("requests swapped out", "swaps", ("host", "swaps")),
        _gib("copied to the host", "host_out", "host", "bytes_out"),
        _gib("copied from the host", "host_in", "host", "bytes_in"),
        Row("prefix blocks loaded", "loaded_blocks", ("host", "loaded_blocks")),
        Row("done but not noticed, s", "unnoticed_s", ("host", "unnoticed_s"), digits=3),
    ),
    MORE: (
        Row("blocks moved by compaction", "compacted_blocks", ("compaction", "blocks")),
        Row("rows that ran on", "wasted_rows", ("run_ahead", "wasted_rows")),
        Row("rows that waited for blocks", "stalled_rows", ("run_ahead", "stalled_rows")),
        Row("drafts accepted, %", "accepted_drafts_percent", ("speculation", "accepted_share"), 100, 1),
    ),
    "irregularity": (
        Row("padded rows wasted, %", "padding_waste_percent", ("padding_waste",), 100, 1),
        Row("graphs captured", "captures", ("captures",)),
        Row("waited for captures, s", CAPTURE_STALL, (CAPTURE_STALL,), digits=2),
        Row("steps off the ladder", "off_ladder_steps", ("launch", "off_ladder_steps")),
        Row("preemptions", "preemptions", ("preemptions",)),
        Row("recomputed tokens", "recomputed_tokens", ("recomputed_tokens",)),
    ),
}
INTEGERS = frozenset(row.column for rows in SECTIONS.values() for row in rows if row.scale == 1 and row.digits == 0)


def printed_rows(section: str, runs: Sequence[dict[str, Any]]) -> tuple[Row, ...]:
    """The rows of a section that say anything about these runs."""
    if section in (HOST, MORE):
        return tuple(row for row in SECTIONS[section] if any(row.value(run) is not None for run in runs))
    return tuple(row for row in SECTIONS[section] if row.column != CAPTURE_STALL or any(row.value(run) for run in runs))


def is_printed(section: str, runs: Sequence[dict[str, Any]]) -> bool:
    """Whether a section says anything about these runs."""
    if section in (HOST, MORE):
        return bool(printed_rows(section, runs))
    return section != SHARING or any(
        run["prefix_hit_tokens"] or (run["cached_kv_bytes"] or {}).get("peak") for run in runs
    )

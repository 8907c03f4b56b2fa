"""The charts of a report as data: which lines each has, in which unit, on which axis. The page draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvrm_analysis.drawing.series import Floats, Grid, numbers, typical_itl_s, typical_ttft_s, worst_itl_s, worst_ttft_s
from kvrm_analysis.latencies import request_latencies_s
from kvrm_analysis.reading import columns
from kvrm_analysis.report.bins import brief, shares
from kvrm_analysis.report.subject import Lines, Subject, arrivals_of, chart, measure, nines, per_run
from kvrm_sim.columns import RUN_COLUMNS
from kvrm_sim.state import PARTS

GIB = float(1 << 30)


def charts_of(subject: Subject) -> list[dict[str, Any]]:
    """Every chart that has anything to show, in the order of the page."""
    made = [*_load(subject), *_latency(subject), *_memory(subject), *_movement(subject), *_steps(subject)]
    for each in made:
        each["measures"] = [measure for measure in each["measures"] if measure["lines"]]
    return [each for each in made if each["measures"]]


def cut(charts: Sequence[dict[str, Any]], axes: dict[str, Any]) -> None:
    """Leave of every line what its axis shows."""
    for each in charts:
        if "axis" in each:
            for line in (line for measure in each["measures"] for line in measure["lines"]):
                del line["y"][axes[each["axis"]]["count"] :]


def _load(subject: Subject) -> list[dict[str, Any]]:
    arrivals: Lines = []
    for at in subject.traces:
        counts = arrivals_of(subject.runs[at], subject.grid)
        if counts is not None:
            name = str(subject.runs[at].summary["trace"]["name"])
            arrivals.append({"name": name, "y": brief(counts / subject.grid.width_s)})
    return [
        chart("load", "latency", "Load", "Requests that arrive.", [measure("arrivals", "requests/s", arrivals)],
              axis="time", kind="area"),
        chart("queue", "latency", "Queue and batch", "Mean of the records of a bin.", [
            measure("waiting", "requests", per_run(subject, lambda at: subject.bins[at].means("waiting")), "waiting"),
            measure("running", "requests", per_run(subject, lambda at: subject.bins[at].means("running")), "running"),
        ], axis="time"),
    ]  # fmt: skip


def _latency(subject: Subject) -> list[dict[str, Any]]:
    grid, runs = subject.grid, subject.runs
    gaps = [columns(run, "steps", ["end_ns", "gaps", "itl_p50_ns", "itl_p99_ns"]) for run in runs]
    names = ["arrival_ns", "admitted_ns", "first_token_ns", "finish_ns", "delivered_tokens"]
    times = [columns(run, "requests", names) for run in runs]

    def first(name: str, take: Callable[[Any, Grid], Floats]) -> dict[str, Any]:
        lines = per_run(subject, lambda at: take(times[at], grid) if times[at].num_rows else None)
        return measure(name, "s", lines, "ttft_s")

    def by_rank(name: str, unit: str, field: str) -> dict[str, Any]:
        scale = 1e3 if unit == "ms" else 1.0
        lines = per_run(subject, lambda at: scale * _quantiles(times[at], field) if times[at].num_rows else None)
        return measure(name, unit, lines, field)

    return [
        chart("itl", "latency", "Gap between tokens", "Of a bin's records: median by gaps, and worst.", [
            measure("median", "ms", per_run(subject, lambda at: 1e3 * typical_itl_s(gaps[at], grid)), "itl_s"),
            measure("p99, worst window", "ms", per_run(subject, lambda at: 1e3 * worst_itl_s(gaps[at], grid)), "itl_s"),
        ], axis="time", log=True),
        chart("ttft", "latency", "Wait for the first token", "Of the requests that arrived in a bin.", [
            first("median", typical_ttft_s),
            first("longest", worst_ttft_s),
        ], axis="time", log=True),
        chart("percentiles", "latency", "Latency by percentile", "One value a request, nearest rank; the axis "
              "stretches the tail.", [
            by_rank("TTFT", "s", "ttft_s"),
            by_rank("TPOT", "ms", "tpot_exclusive_s"),
            by_rank("E2E", "s", "e2e_s"),
            by_rank("queue", "s", "queue_s"),
        ], axis="percentile", log=True),
        chart("tokens", "latency", "Tokens", "Delivered to users, and prompts computed.", [
            measure("delivered", "tokens/s", per_run(subject, lambda at: subject.bins[at].rates("delivered_tokens"))),
            measure("prefilled", "tokens/s", per_run(subject, lambda at: subject.bins[at].rates("prefill_tokens"))),
        ], axis="time"),
    ]  # fmt: skip


def _quantiles(requests: Any, field: str) -> Floats:
    """Values by nearest rank at each number of nines; NaN beyond the one of the maximum."""
    values = np.sort(request_latencies_s(requests, field))
    if not len(values):
        return np.full(len(nines()), np.nan)
    below = 1 - 10.0 ** -nines()
    ranks = np.clip(np.ceil(below * len(values)), 1, len(values)).astype(np.int64)
    return np.where((1 - below) * len(values) >= 0.999, values[ranks - 1], np.nan)


def _memory(subject: Subject) -> list[dict[str, Any]]:
    def gib(column: str, size: str) -> Lines:
        return per_run(subject, lambda at: subject.bins[at].means(column) * subject.runs[at].summary[size] / GIB)

    pool = [columns(run, "pool", POOL_COLUMNS) for run in subject.runs]
    return [
        chart("memory", "memory", "KV memory", "One device of each replica; mean of the records of a bin.", [
            measure("reserved", "GiB", gib("reserved_blocks", "block_bytes"), "reserved_kv_bytes"),
            measure("allocated", "GiB", gib("allocated_blocks", "block_bytes"), "allocated_kv_bytes"),
            measure("used", "GiB", gib("used_tokens", "kv_bytes_per_token"), "used_kv_bytes"),
            measure("cached", "GiB", gib("cached_blocks", "block_bytes"), "cached_kv_bytes"),
        ], axis="time"),
        chart("fill", "memory", "Share of it that holds tokens", "Used, of reserved and of allocated.", [
            measure("of reserved", "%", per_run(subject, lambda at: _fill(subject, at, "reserved_blocks"))),
            measure("of allocated", "%", per_run(subject, lambda at: _fill(subject, at, "allocated_blocks")),
                    "block_fill"),
        ], axis="time"),
        chart("fragments", "memory", "Fragmentation", "Free blocks outside the largest hole; mean run held.", [
            measure("external", "%", per_run(subject, lambda at: _sampled(subject, at, pool[at], _external))),
            measure("run", "blocks", per_run(subject, lambda at: _sampled(subject, at, pool[at], _run_length))),
        ], axis="time"),
        chart("runs", "memory", "Run lengths", "Share of all runs over the samples of the pool.", [
            measure("runs", "% of runs", per_run(subject, lambda at: _classes(pool[at]))),
        ], axis="runs", kind="points"),
    ]  # fmt: skip


def _fill(subject: Subject, at: int, column: str) -> Floats:
    bins, summary = subject.bins[at], subject.runs[at].summary
    held = bins.means(column) * summary["block_bytes"]
    return shares(bins.means("used_tokens"), held, 100 * summary["kv_bytes_per_token"])


POOL_COLUMNS = ("time_ns", "allocated_blocks", "cached_blocks", "runs", "largest_hole_blocks", "replica", *RUN_COLUMNS)


def _sampled(subject: Subject, at: int, pool: Any, value: Callable[[Any, int], Floats]) -> Floats | None:
    """Samples on the grid, straight lines between them; NaN before the first and behind the last."""
    if not pool.num_rows or "replica" in pool.column_names:
        return None
    times = numbers(pool, "time_ns") / 1e9
    values = value(pool, int(subject.runs[at].summary["pool_blocks"]))
    known = ~np.isnan(values)
    if not known.any():
        return None
    return np.interp(subject.grid.middles_s, times[known], values[known], left=np.nan, right=np.nan)


def _external(pool: Any, pool_blocks: int) -> Floats:
    free = pool_blocks - numbers(pool, "allocated_blocks") - numbers(pool, "cached_blocks")
    return 100 - shares(numbers(pool, "largest_hole_blocks"), free, 100)


def _run_length(pool: Any, pool_blocks: int) -> Floats:
    del pool_blocks
    return shares(numbers(pool, "allocated_blocks"), numbers(pool, "runs"))


def _classes(pool: Any) -> Floats | None:
    if not pool.num_rows:
        return None
    totals = np.array([numbers(pool, name).sum() for name in RUN_COLUMNS])
    return shares(totals, np.full(len(totals), totals.sum()), 100) if totals.sum() else None


def _movement(subject: Subject) -> list[dict[str, Any]]:
    bins, runs = subject.bins, subject.runs

    def rate(column: str, size: str) -> Lines:
        return per_run(subject, lambda at: bins[at].rates(column) * runs[at].summary[size] / GIB, zeros=False)

    return [
        chart("groups", "movement", "Transfer groups", "Of runs that read from staging; contiguous on both sides.", [
            measure("groups a decode step", "groups", per_run(
                subject, lambda at: shares(bins[at].sums("groups"), bins[at].sums("decode_steps")), zeros=False),
                "transfer.groups_per_step_mean"),
            measure("blocks a group", "blocks", per_run(
                subject, lambda at: shares(bins[at].sums("moved_blocks"), bins[at].sums("groups")), zeros=False),
                "transfer.blocks_per_group_mean"),
        ], axis="time"),
        chart("moved", "movement", "Bytes copied into staging", "Of the same runs: whole blocks, and tokens in them.", [
            measure("moved", "GiB/s", rate("moved_blocks", "block_bytes"), "transfer.bytes_moved"),
            measure("needed", "GiB/s", rate("needed_tokens", "kv_bytes_per_token"), "transfer.bytes_needed"),
        ], axis="time"),
    ]  # fmt: skip


def _steps(subject: Subject) -> list[dict[str, Any]]:
    bins = subject.bins
    parts = [{name: each.sums(f"{name}_exposed_ns") / 1e6 for name in PARTS} for each in bins]
    steps = [each.sums("steps") for each in bins]
    stacks = [
        measure(subject.runs[at].name, "ms a step", [
            {"name": name, "colour": PARTS.index(name), "y": brief(shares(values, steps[at]))}
            for name, values in of_run.items() if values.any()
        ]) | {"run": at}
        for at, of_run in enumerate(parts)
    ]  # fmt: skip
    totals = [
        {"name": name, "colour": PARTS.index(name), "y": brief(np.array([of_run[name].sum() / max(1.0, steps[at].sum())
                                            for at, of_run in enumerate(parts)]))}
        for name in PARTS if any(of_run[name].any() for of_run in parts)
    ]  # fmt: skip
    return [
        chart("parts", "steps", "Where a step's time goes", "Exposed times, which add up to the step; mean.",
              [measure("mean step", "ms", totals)], kind="bars"),
        chart("parts-time", "steps", "The same over time", "One run: choose which.", stacks, axis="time", kind="stack"),
        chart("padding", "steps", "Irregularity", "Graph steps: rows that hold no request.", [
            measure("padded rows wasted", "%", per_run(subject, lambda at: shares(
                bins[at].sums("padded_rows") - bins[at].sums("padded_live_rows"), bins[at].sums("padded_rows"), 100)),
                "padding_waste"),
            measure("steps off the ladder", "%", per_run(subject, lambda at: shares(
                bins[at].sums("off_ladder_steps"), steps[at], 100)), "launch.off_ladder_steps"),
            measure("preemptions", "1/s", per_run(subject, lambda at: bins[at].rates("preempted")), "preemptions"),
        ], axis="time"),
    ]  # fmt: skip

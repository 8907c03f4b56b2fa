"""The charts of a report as data: which lines each has, in which unit, on which axis. The page draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvrm_analysis.report.bins import StepBins, brief, columns, shares
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.series import (
    Floats,
    Grid,
    bursts,
    grid_of,
    integers,
    numbers,
    typical_itl_s,
    typical_ttft_s,
    worst_itl_s,
    worst_ttft_s,
)
from kvrm_sim.columns import RUN_COLUMNS
from kvrm_sim.state import PARTS

GIB = float(1 << 30)
#: Bins of time: as many as a wide screen shows apart; fewer where many runs share the page.
BINS, LEAST_BINS, MOST_VALUES = 600, 120, 12_000
#: Axes are in minutes above so many seconds, and in hours above so many.
MINUTES_FROM_S, HOURS_FROM_S = 600.0, 4 * 3600.0
#: Percentiles are shown by the number of nines, 0 to this, in steps of this.
MOST_NINES, NINES_STEP = 4.0, 0.02

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """The runs on their common grid of time. ``traces``: the first run of each distinct trace."""

    runs: Sequence[NamedRun]
    grid: Grid
    bins: Sequence[StepBins]
    traces: Sequence[int]


def subject_of(runs: Sequence[NamedRun]) -> Subject:
    """Put runs on one grid from the first arrival to the last end."""
    ends = [float(integers(columns(run, "steps", ["end_ns"]), "end_ns").max(initial=0)) / 1e9 for run in runs]
    spans = [float(run.summary["trace"]["span_s"]) for run in runs]
    grid = grid_of(max(*ends, *spans, 1e-3), max(LEAST_BINS, min(BINS, MOST_VALUES // len(runs))))
    seen: dict[tuple[str, int], int] = {}
    for at, run in enumerate(runs):
        seen.setdefault((run.summary["trace"]["sha256"], run.summary["trace"]["rows"]), at)
    return Subject(runs, grid, [StepBins(run, grid) for run in runs], list(seen.values()))


def axes_of(subject: Subject) -> dict[str, Any]:
    """The x axes that charts name: ``values`` in ``unit``, or from ``first`` on in equal ``step``s."""
    grid = subject.grid
    unit, scale = time_unit(grid.end_s)
    most = max(int(run.summary["counts"]["injected"]) for run in subject.runs)
    nines = int(np.ceil(min(MOST_NINES, np.log10(max(10, most))) / NINES_STEP)) + 1
    classes = _longest_class(subject)
    return {
        "time": {
            "label": "time since the first arrival",
            "unit": unit,
            "first": grid.width_s / 2 / scale,
            "step": grid.width_s / scale,
            "count": grid.count,
            "bin": f"{grid.width_s:g} s",
        },
        "percentile": {"label": "percentile of requests", "unit": "%", "first": 0, "step": NINES_STEP,
                       "count": nines, "nines": True},
        "runs": {"label": "length of a run, blocks", "unit": "", "first": 0, "step": 1, "count": classes,
                 "words": [_run_class(name) for name in RUN_COLUMNS[:classes]]},
    }  # fmt: skip


def _longest_class(subject: Subject) -> int:
    """How many classes of run lengths have any run."""
    tables = [columns(run, "pool", RUN_COLUMNS) for run in subject.runs]
    return 1 + max(at for at, name in enumerate(RUN_COLUMNS) if not at or any(
        table.num_rows and numbers(table, name).any() for table in tables))


def time_unit(end_s: float) -> tuple[str, float]:
    """Unit of an axis of time, and the seconds in it."""
    return ("h", 3600.0) if end_s > HOURS_FROM_S else ("min", 60.0) if end_s > MINUTES_FROM_S else ("s", 1.0)


def _run_class(column: str) -> str:
    return column.removeprefix("runs_").removesuffix("_blocks").replace("_up", "+").replace("_", "–")


def shaded(subject: Subject) -> list[list[float]]:
    """Bursts of the first trace, as [from, to] on the axis of time."""
    scale = time_unit(subject.grid.end_s)[1]
    edges = subject.grid.edges_s / scale
    run = subject.runs[subject.traces[0]]
    arrivals = _arrivals(run, subject.grid)
    if arrivals is None:
        return []
    span_bins = min(subject.grid.count, int(np.ceil(run.summary["trace"]["span_s"] / subject.grid.width_s)))
    return [[float(edges[first]), float(edges[last])] for first, last in bursts(arrivals, span_bins)]


def _arrivals(run: NamedRun, grid: Grid) -> Floats | None:
    table = columns(run, "requests", ["arrival_ns"])
    if not table.num_rows:
        return None
    return np.bincount(grid.bin_of(integers(table, "arrival_ns")), minlength=grid.count).astype(np.float64)


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


def chart(name: str, section: str, title: str, note: str, measures: list[dict[str, Any]], **how: Any) -> dict[str, Any]:
    """One chart; ``how``: axis, kind, log."""
    return {"id": name, "section": section, "title": title, "note": note, "measures": measures, **how}


def measure(name: str, unit: str, lines: Lines, field: str | None = None) -> dict[str, Any]:
    """One quantity that a chart can show; ``field``: where it is defined."""
    return {"name": name, "unit": unit, "lines": lines, **({"field": field} if field else {})}


def per_run(subject: Subject, values: Callable[[int], Floats | None], *, zeros: bool = True) -> Lines:
    """A line a run; none where no run has a value other than 0. Without ``zeros``: none for a run that has no other."""
    found = [values(at) for at in range(len(subject.runs))]
    moves = [line is not None and bool(np.nansum(np.abs(line)) > 0) for line in found]
    if not any(moves):
        return []
    return [
        {"run": at, "y": brief(line)} for at, line in enumerate(found) if line is not None and (zeros or moves[at])
    ]


def _load(subject: Subject) -> list[dict[str, Any]]:
    arrivals: Lines = []
    for at in subject.traces:
        counts = _arrivals(subject.runs[at], subject.grid)
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

    def by_rank(name: str, begin: str, end: str, unit: str, field: str) -> dict[str, Any]:
        lines = per_run(subject, lambda at: _quantiles(times[at], begin, end, unit) if times[at].num_rows else None)
        return measure(name, unit, lines, field)

    return [
        chart("itl", "latency", "Gap between tokens", "Of the records of a bin: their median, by gaps, and their worst.", [
            measure("median", "ms", per_run(subject, lambda at: 1e3 * typical_itl_s(gaps[at], grid)), "itl_s"),
            measure("p99, worst window", "ms", per_run(subject, lambda at: 1e3 * worst_itl_s(gaps[at], grid)), "itl_s"),
        ], axis="time", log=True),
        chart("ttft", "latency", "Wait for the first token", "Of the requests that arrived in a bin.", [
            first("median", typical_ttft_s),
            first("longest", worst_ttft_s),
        ], axis="time", log=True),
        chart("percentiles", "latency", "Latency by percentile", "One value a request, nearest rank; the axis stretches "
              "the tail.", [
            by_rank("TTFT", "arrival_ns", "first_token_ns", "s", "ttft_s"),
            by_rank("TPOT", "first_token_ns", "finish_ns", "ms", "tpot_exclusive_s"),
            by_rank("E2E", "arrival_ns", "finish_ns", "s", "e2e_s"),
            by_rank("queue", "arrival_ns", "admitted_ns", "s", "queue_s"),
        ], axis="percentile", log=True),
        chart("tokens", "latency", "Tokens", "Delivered to users, and prompts computed.", [
            measure("delivered", "tokens/s", per_run(subject, lambda at: subject.bins[at].rates("delivered_tokens"))),
            measure("prefilled", "tokens/s", per_run(subject, lambda at: subject.bins[at].rates("prefill_tokens"))),
        ], axis="time"),
    ]  # fmt: skip


def _nines() -> Floats:
    return np.arange(0.0, MOST_NINES + NINES_STEP / 2, NINES_STEP)


def _quantiles(table: Any, begin: str, end: str, unit: str) -> Floats:
    """Values by nearest rank at each number of nines; NaN beyond the one of the maximum."""
    spans = (numbers(table, end) - numbers(table, begin)) / 1e9
    if unit == "ms":  # a token
        tokens = numbers(table, "delivered_tokens") - 1
        spans = np.divide(1e3 * spans, tokens, out=np.full(len(spans), np.nan), where=tokens > 0)
    spans = np.sort(spans[~np.isnan(spans)])
    if not len(spans):
        return np.full(len(_nines()), np.nan)
    below = 1 - 10.0 ** -_nines()
    ranks = np.clip(np.ceil(below * len(spans)), 1, len(spans)).astype(np.int64)
    return np.where((1 - below) * len(spans) >= 0.999, spans[ranks - 1], np.nan)


def _memory(subject: Subject) -> list[dict[str, Any]]:
    def gib(column: str, size: str) -> Lines:
        return per_run(
            subject, lambda at: subject.bins[at].means(column) * subject.runs[at].summary[size] / GIB
        )

    pool = [columns(run, "pool", POOL_COLUMNS) for run in subject.runs]
    return [
        chart("memory", "memory", "KV memory", "One device of each replica; mean of the records of a bin.", [
            measure("reserved", "GiB", gib("reserved_blocks", "block_bytes"), "reserved_kv_bytes"),
            measure("allocated", "GiB", gib("allocated_blocks", "block_bytes"), "allocated_kv_bytes"),
            measure("used", "GiB", gib("used_tokens", "kv_bytes_per_token"), "used_kv_bytes"),
            measure("cached", "GiB", gib("cached_blocks", "block_bytes"), "cached_kv_bytes"),
        ], axis="time"),
        chart("fill", "memory", "Share of it that holds tokens", "Used, of what is reserved and of what is allocated.", [
            measure("of reserved", "%", per_run(subject, lambda at: _fill(subject, at, "reserved_blocks"))),
            measure("of allocated", "%", per_run(subject, lambda at: _fill(subject, at, "allocated_blocks")),
                    "block_fill"),
        ], axis="time"),
        chart("fragments", "memory", "Fragmentation", "Samples: 1 − largest hole / free blocks; run of blocks, mean.", [
            measure("external", "%", per_run(subject, lambda at: _sampled(subject, at, pool[at], _external))),
            measure("blocks a run", "blocks", per_run(subject, lambda at: _sampled(subject, at, pool[at], _run_length))),
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
    return [
        chart("groups", "movement", "Transfer groups", "Of the runs that read from staging; contiguous on both sides.", [
            measure("groups a decode step", "groups", per_run(
                subject, lambda at: shares(bins[at].sums("groups"), bins[at].sums("decode_steps")), zeros=False),
                "transfer.groups_per_step_mean"),
            measure("blocks a group", "blocks", per_run(
                subject, lambda at: shares(bins[at].sums("moved_blocks"), bins[at].sums("groups")), zeros=False),
                "transfer.blocks_per_group_mean"),
        ], axis="time"),
        chart("moved", "movement", "Bytes copied into staging", "Of the same runs: whole blocks, and the tokens in them.", [
            measure("moved", "GiB/s", per_run(
                subject, lambda at: bins[at].rates("moved_blocks") * runs[at].summary["block_bytes"] / GIB, zeros=False),
                "transfer.bytes_moved"),
            measure("needed", "GiB/s", per_run(
                subject, lambda at: bins[at].rates("needed_tokens") * runs[at].summary["kv_bytes_per_token"] / GIB, zeros=False),
                "transfer.bytes_needed"),
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
        chart("parts", "steps", "Where a step's time goes", "Exposed times: they add up to the step. Mean over all steps.",
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

"""A run as a timeline: steps and their parts, transfers, counters, lives of requests, and who holds which block.

In the trace event format (trace_events.py), a stretch of the run at a time. Single steps come from steps.parquet where
it has them; else, and for blocks, the run is simulated again up to the end of the stretch (inspection.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvrm_analysis.drawing.series import integers
from kvrm_analysis.inspection import PoolMap, inspect
from kvrm_analysis.reading import columns, rows
from kvrm_analysis.recorded import as_replayed, check_replica, recorded
from kvrm_analysis.runs import NamedRun, RunLike, open_runs
from kvrm_analysis.timeline.timeline_tracks import write_blocks, write_counters, write_requests, write_steps
from kvrm_analysis.timeline.trace_events import EventWriter
from kvrm_sim.errors import InputError
from kvrm_traces import Trace

#: Steps of a timeline whose stretch nobody named: what a viewer still opens at once.
MOST_STEPS = 100_000
#: Tracks of blocks at most, and samples of the pool that they are made of.
MOST_BLOCKS, BLOCK_SAMPLES = 4096, 20_000


@dataclass(frozen=True)
class Timeline:
    """What was written: the file, the stretch that it shows, and how much is in it.

    ``all_steps``: of the whole run, of this replica; more than ``steps`` where only a stretch is shown.
    """

    path: Path
    start_s: float
    end_s: float
    steps: int
    all_steps: int
    events: int


@dataclass(frozen=True)
class _Shown:
    """A stretch of one replica: times in ns, tables as in the run's folder; events and blocks where simulated again."""

    start_ns: int
    end_ns: int
    steps: pa.Table
    requests: pa.Table
    events: pa.Table | None
    pool: PoolMap | None


def write_timeline(
    source: str | Path | RunLike,
    path: str | Path,
    *,
    window_s: tuple[float, float | None] | None = None,
    blocks: tuple[int, int] | None = None,
    trace: Trace | None = None,
    replica: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Timeline:
    """Write a stretch of a run as gzipped JSON.

    ``window_s``: from and to, in seconds of the run; without, as many steps from its start as ``MOST_STEPS``.
    ``blocks``: first and last block (from 0, the last included) whose owners get a track each. ``trace``: the
    trace, before it was cut and scaled, where run.toml does not say enough to find it. ``replica``: which one of
    a cluster. Raises InputError for a folder that is no run's, a stretch or blocks that there are not, and RunError
    when the run cannot be simulated again as it was.
    """
    runs = open_runs([source])
    if len(runs) != 1:
        raise InputError(f"{source}: holds {len(runs)} runs, a timeline is of one: name the folder of one of them")
    run = runs[0]
    _check_blocks(run, blocks)
    start_s, end_s = window_s if window_s is not None else (0.0, _end_of(run, replica, MOST_STEPS))
    if start_s < 0 or (end_s is not None and end_s <= start_s):
        raise InputError(
            f"window {start_s:g}:{end_s:g}: should be START:END in seconds, START at least 0 and below END"
        )
    if blocks is None and _has_single_steps(run):
        shown = _from_folder(run, start_s, end_s, replica)
    else:
        shown = _simulated(run, start_s, end_s, blocks, trace, replica, progress)
    if not shown.steps.num_rows:
        raise InputError(
            f"run {run.name!r}: no step ends in {start_s:g} to {shown.end_ns / 1e9:g} s: name another --window"
        )
    target = Path(path)
    with EventWriter(target, _about(run, shown, blocks)) as writer:
        name = f"{run.name} on {run.summary['trace']['name']}"
        write_steps(writer, name, shown.steps)
        write_counters(writer, shown.steps)
        write_requests(writer, shown.requests, shown.events, shown.start_ns, shown.end_ns)
        if shown.pool is not None and blocks is not None:
            write_blocks(writer, shown.pool, blocks, shown.end_ns)
    return Timeline(
        path=target,
        start_s=shown.start_ns / 1e9,
        end_s=shown.end_ns / 1e9,
        steps=shown.steps.num_rows,
        all_steps=int(integers(_of_replica(columns(run, "steps", ["steps", "replica"]), replica), "steps").sum()),
        events=writer.events,
    )


def _check_blocks(run: NamedRun, blocks: tuple[int, int] | None) -> None:
    if blocks is None:
        return
    first, last = blocks
    pool = int(run.summary["pool_blocks"])
    if not 0 <= first <= last < pool:
        raise InputError(
            f"blocks {first}:{last}: should be FIRST:LAST among the {pool:,} blocks of the pool, from 0 on"
        )
    if last - first >= MOST_BLOCKS:
        raise InputError(f"blocks {first}:{last}: {last - first + 1:,} tracks, at most {MOST_BLOCKS:,} are drawn")


def _has_single_steps(run: NamedRun) -> bool:
    return run.folder is not None and float(run.document().get("window_s", 1.0)) == 0.0


def _end_of(run: NamedRun, replica: int | None, steps: int) -> float | None:
    """When so many steps of the replica have ended; None when it has no more."""
    table = _of_replica(columns(run, "steps", ["end_ns", "steps", "replica"]), replica)
    ended = np.cumsum(integers(table, "steps"))
    if not len(ended) or int(ended[-1]) <= steps:
        return None
    at = max(0, int(np.searchsorted(ended, steps, side="right")) - 1)
    end_s = int(integers(table, "end_ns")[at]) / 1e9
    return max(end_s, 1e-9)


def _of_replica(table: pa.Table, replica: int | None) -> pa.Table:
    if "replica" not in table.column_names:
        return table
    return table.filter(pc.equal(table["replica"], replica))


def _from_folder(run: NamedRun, start_s: float, end_s: float | None, replica: int | None) -> _Shown:
    times = columns(run, "steps", ["end_ns", "replica"])
    clustered = "replica" in times.column_names
    check_replica(run, int(run.summary["cluster"]["replicas"]) if clustered else None, replica)
    ends = integers(times, "end_ns")
    start_ns = round(start_s * 1e9)
    end_ns = int(ends.max(initial=0)) if end_s is None else round(end_s * 1e9)
    within = np.flatnonzero((ends >= start_ns) & (ends <= end_ns))
    steps = _of_replica(rows(run, "steps", int(within[0]), int(within[-1]) + 1) if len(within) else times[:0], replica)
    ends = integers(steps, "end_ns")
    steps = steps.filter(pa.array((ends >= start_ns) & (ends <= end_ns)))
    assert run.requests is not None
    requests = _alive(_of_replica(run.requests, replica), start_ns, end_ns)
    return _Shown(start_ns, end_ns, steps, requests, None, None)


def _alive(requests: pa.Table, start_ns: int, end_ns: int) -> pa.Table:
    """Requests of which any time falls into the stretch; one without a finish is alive until the run's end."""
    arrival = integers(requests, "arrival_ns")
    finish = np.asarray(requests["finish_ns"].fill_null(np.iinfo(np.int64).max).to_numpy(), np.int64)
    rejected = np.asarray(pc.equal(requests["outcome"].cast(pa.string()), "rejected").to_numpy(zero_copy_only=False))
    finish = np.where(rejected, arrival, finish)
    return requests.filter(pa.array((arrival <= end_ns) & (finish >= start_ns)))


def _simulated(
    run: NamedRun,
    start_s: float,
    end_s: float | None,
    blocks: tuple[int, int] | None,
    trace: Trace | None,
    replica: int | None,
    progress: Callable[[float], None] | None,
) -> _Shown:
    if run.folder is None:
        raise InputError(f"run {run.name!r} is in memory, and its steps were not kept singly: write it to a folder")
    samples = BLOCK_SAMPLES if blocks is not None else 0
    whole = None if trace is None else as_replayed(run, trace)
    source = recorded(run, trace=whole, replica=replica)
    stretch = inspect(source, start_s, end_s, pool_samples=samples, progress=progress)
    assert run.requests is not None
    requests = _alive(_of_replica(run.requests, source.replica), stretch.start_ns, stretch.end_ns)
    return _Shown(stretch.start_ns, stretch.end_ns, stretch.steps, requests, stretch.events, stretch.pool)


def _about(run: NamedRun, shown: _Shown, blocks: tuple[int, int] | None) -> dict[str, Any]:
    """What the file says of itself."""
    summary = run.summary
    found: dict[str, Any] = {
        "made by": "kvrm timeline",
        "policy": summary["policy"],
        "model": summary["model"],
        "hardware": summary["hardware"] + ("" if summary["calibrated"] else " (uncalibrated)"),
        "trace": summary["trace"]["name"],
        "trace sha256": summary["trace"]["sha256"],
        "from_s": shown.start_ns / 1e9,
        "to_s": shown.end_ns / 1e9,
        "steps": shown.steps.num_rows,
    }
    if blocks is not None and shown.pool is not None:
        times: NDArray[np.int64] = shown.pool.times_ns
        found["blocks"] = f"{blocks[0]} to {blocks[1]}, {len(times):,} samples"
    return found

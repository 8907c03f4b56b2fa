"""The public functions that write a report of runs and a timeline of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvrm.folders import check, staged

if TYPE_CHECKING:
    from kvrm.results import Replay
    from kvrm_analysis.timeline.timeline import Timeline
    from kvrm_sim.engine import RunResult
    from kvrm_traces import Trace


def report(
    runs: str | Path | Sequence[str | Path | RunResult],
    out: str | Path = "report.html",
    *,
    names: Sequence[str] | None = None,
    trace: str | Path | Trace | None = None,
    inspect: bool = True,
    force: bool = False,
) -> Path:
    """Write one file of HTML about runs: results with definitions, charts, configurations, trace, provenance.

    ``runs``: folders of runs or of comparisons, or runs in memory (``Comparison.results``). ``names``: one a run, where
    they should not be called by their policies. ``trace``: one that they replayed, where run.toml does not say enough
    to find or to read it; what a run cut or scaled of it is done to it again. Without ``inspect`` no other trace is
    opened again: its page is of the requests that the run recorded. The file asks for nothing from anywhere
    (docs/report.md). Returns its path. Raises InputError for what is no run's folder, for a trace that no run replayed,
    and for an existing file, unless ``force`` and it is a report.
    """
    from kvrm.api import open_trace
    from kvrm_analysis.report import write_report

    target = Path(out)
    opened = open_trace(trace) if isinstance(trace, (str, Path)) else trace
    sources = [runs] if isinstance(runs, (str, Path)) else list(runs)
    with staged(target, kind="report", force=force) as unfinished:
        write_report(sources, unfinished, names=names, trace=opened, reopen=inspect)
    return target


def timeline(
    run: str | Path | Replay,
    out: str | Path = "trace.json.gz",
    *,
    window_s: tuple[float, float | None] | None = None,
    blocks: tuple[int, int] | None = None,
    trace: str | Path | Trace | None = None,
    replica: int | None = None,
    force: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Timeline:
    """Write a stretch of a run in the trace event format, which Perfetto and chrome://tracing open.

    ``run``: a run's folder. ``window_s``: from and to, seconds (None: the end); without, the first 100,000 steps.
    ``blocks``: first and last block of the pool that get a track each. ``trace``: the trace, where run.toml does not
    say enough to find or to read it; what the run cut or scaled of it is done to it again. Single steps and blocks that
    the folder does not hold are simulated again, which raises RunError where the run is not the recorded one. Raises
    InputError for what is not there, and for an existing file, unless ``force`` and it is a timeline.
    """
    from dataclasses import replace

    from kvrm.api import open_trace
    from kvrm_analysis.timeline.timeline import write_timeline

    target = Path(out)
    check(target, kind="timeline", force=force)
    source = run if isinstance(run, (str, Path)) else run.results[0]
    opened = open_trace(trace) if isinstance(trace, (str, Path)) else trace

    def advance(share: float) -> None:
        if progress is not None:
            progress(Path(source).name if isinstance(source, (str, Path)) else "run", share)

    with staged(target, kind="timeline", force=force) as unfinished:
        done = write_timeline(
            source, unfinished, window_s=window_s, blocks=blocks, trace=opened, replica=replica, progress=advance
        )
    return replace(done, path=target)

"""``kvrm.diff`` and ``kvrm.explain``: what differs between runs, and what one request of a run went through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kvrm.presets import plugged

if TYPE_CHECKING:
    from kvrm.plugins import PartSource
    from kvrm_analysis.differences import Difference
    from kvrm_analysis.lives import Life
    from kvrm_analysis.runs import RunLike
    from kvrm_traces import Trace

#: A run's folder, a folder that holds repeats of one run, or those repeats one by one.
Side: TypeAlias = "str | Path | Sequence[str | Path]"


def diff(a: Side, b: Side, *, fail_if: Sequence[str] = ()) -> Difference:
    """What differs between two runs: settings (run.toml) and results (summary.json), B over A.

    With several runs on both sides, repeats of one configuration with other seeds, each change has a 95% bootstrap
    interval. ``fail_if``: conditions such as ``"itl_p99 > +5%"``, whose failures are in the result (docs/figures.md).
    Raises InputError for what is no run's folder, for runs that are no repeats, and for a wrong condition.
    """
    from kvrm_analysis.differences import difference
    from kvrm_analysis.runs import open_runs

    sides = [[side] if isinstance(side, (str, Path)) else list(side) for side in (a, b)]
    runs = [open_runs(side) for side in sides]
    names = [str(side[0]) if len(side) == 1 else f"{len(side)} runs" for side in sides]
    return difference(runs[0], runs[1], (names[0], names[1]), fail_if)


def explain(
    run: str | Path | RunLike,
    request: int | None = None,
    *,
    slowest: str = "e2e",
    replica: int | None = None,
    trace: str | Path | Trace | None = None,
    progress: Callable[[float], None] | None = None,
    plugins: Sequence[PartSource] = (),
) -> Life:
    """One request's life, part by part, and who it waited for. The run is simulated again over that life.

    ``request``: its row of the trace as replayed (``row`` of requests.parquet); None: the slowest by ``slowest``: e2e,
    ttft, queue or tpot, of ``replica`` where one is named. ``trace``: the file where it is now, or an opened trace
    as it was replayed. Raises InputError for a request that there is not or that was not served, and RunError when the
    run that is simulated again is another one.
    """
    from kvrm.api import open_trace
    from kvrm_analysis.lives import choose, life_of
    from kvrm_analysis.recorded import as_replayed, recorded
    from kvrm_analysis.runs import open_runs
    from kvrm_traces.errors import InputError

    runs = open_runs([run])
    if len(runs) > 1:
        raise InputError(f"{run}: holds {len(runs)} runs: name the folder of one, e.g. {runs[0].folder}")
    with plugged(plugins):
        chosen = choose(runs[0], request, slowest, replica)
        of = chosen.get("replica")
        opened = as_replayed(runs[0], open_trace(trace)) if isinstance(trace, (str, Path)) else trace
        source = recorded(runs[0], trace=opened, replica=None if of is None else int(of))
        return life_of(source, chosen, progress)

"""``kvrm capacity``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvrm import capacities, folders
from kvrm.commands.run import TraceArgument, cluster_options, replica_options
from kvrm.commands.source import opened
from kvrm.console import note, progress_bars, say, say_text
from kvrm.flags import Cluster, Load, Reading, Replica, Running
from kvrm.presets import plugged

if TYPE_CHECKING:
    from kvrm_traces import Trace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searching:
    """How far the search goes."""

    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            help="Realisations: other seeds of a built-in trace, draws from a file; 1: the trace alone (default 6).",
            show_default=False,
        ),
    ] = None
    share: Annotated[float, typer.Option("--share", help="Share of realisations that meet it at the capacity.")] = 0.5
    confidence: Annotated[float, typer.Option("--confidence", help="Of the interval of the capacity.")] = 0.95
    tolerance: Annotated[float, typer.Option("--tolerance", help="Relative width to which it is bisected.")] = 0.01
    guard: Annotated[int, typer.Option("--guard", help="Runs in a row that have to agree beside an edge.")] = 3


def capacity(
    trace: TraceArgument,
    *,
    slo: Annotated[
        list[str],
        typer.Option("--slo", metavar="BOUND", help="Objective, e.g. 'itl_p99 <= 50ms'. Repeatable: all have to hold."),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="Policy, repeatable: a name or a TOML file (default kv-rm).", show_default=False),
    ] = None,
    fewest_replicas: Annotated[
        bool, typer.Option("--fewest-replicas", help="Not the highest rate: the fewest replicas for the trace's own.")
    ] = False,
    search: Searching,
    load: Load,
    replica: Replica,
    cluster: Cluster,
    reading: Reading,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Folder to write: summary.json and the figure.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier run wrote there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the machine-readable result, alone.")] = False,
) -> None:
    """The highest arrival rate at which a policy meets an objective, by bisection, with an interval (docs/capacity.md).

    With --fewest-replicas: the fewest replicas behind a router that meet it at the trace's own rate, or at --rate.
    """
    _check(load, cluster, fewest_replicas=fewest_replicas, replacing=force, out=out)
    if out is not None:
        folders.check(Path(out), kind="folder", force=force)
    with plugged(replica.plugin):
        options = replica_options(replica, reading, Running())
        # A router alone is refused where nothing is routed; here the number of replicas is still to come.
        routed = dataclasses.replace(cluster, cluster=1) if fewest_replicas else cluster
        shared = cluster_options(routed, load, Running())
        if fewest_replicas:
            shared["cluster"] = None
        with progress_bars() as progress:
            done = capacities.capacity(
                _Opener(trace, reading, dataclasses.replace(load, rate=None)),
                policy or ["kv-rm"],
                slo=slo,
                find="replicas" if fewest_replicas else "rate",
                offered_per_s=load.rate,
                **dataclasses.asdict(search),
                out=out,
                force=force,
                progress=progress,
                **options,
                **shared,
            )
    if json:
        say(done.to_json())
    else:
        say_text(done.to_text())
    where = note if json else say
    if done.folder is not None:
        where(f"results: {done.folder}")
        where(f"figure: {done.figure}")
    if all(each.at is None for each in done.found):
        raise typer.Exit(1)


def _check(load: Load, cluster: Cluster, *, fewest_replicas: bool, replacing: bool, out: str | None) -> None:
    """Refuse options that say nothing, or that say what is searched for."""
    if replacing and out is None:
        raise typer.BadParameter("there is nothing to replace without --out", param_hint="--force")
    if load.speedup is not None or load.time_stretch is not None or (load.rate is not None and not fewest_replicas):
        raise typer.BadParameter(
            "the rate is what is searched for: leave these out; with --fewest-replicas pass --rate",
            param_hint="--rate, --speedup, --time-stretch",
        )
    if fewest_replicas and (cluster.cluster, cluster.prefill_replicas, cluster.decode_replicas) != (None,) * 3:
        raise typer.BadParameter("chooses their number: leave the other out", param_hint="--fewest-replicas, --cluster")


class _Opener:
    """The trace with a seed; what it is, is said once."""

    def __init__(self, source: str, reading: Reading, load: Load) -> None:
        self._source, self._reading, self._load = source, reading, load
        self._told = False

    def __call__(self, seed: int) -> Trace:
        told, self._told = self._told, True
        return opened(self._source, dataclasses.replace(self._reading, seed=seed), self._load, quiet=told)

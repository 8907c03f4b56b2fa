"""``kvrm replay`` and ``kvrm compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvrm import api, folders, parse
from kvrm.clusters import cluster_text
from kvrm.commands.source import opened
from kvrm.console import complain, note, progress_bars, say, say_text, terminal_width, working
from kvrm.flags import Cluster, Load, Output, Reading, Replica, Running
from kvrm.presets import plugged
from kvrm.results import Comparison, nothing_completed
from kvrm_analysis.engines.replicas import check_cluster

if TYPE_CHECKING:
    from kvrm_traces import Trace

TraceArgument = Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or a name of `kvrm list traces`.")]


def replay(
    trace: TraceArgument,
    *,
    policy: Annotated[
        str, typer.Option("--policy", help="Policy: a name of `kvrm list policies` or a TOML file.")
    ] = "kv-rm",
    load: Load,
    replica: Replica,
    cluster: Cluster,
    reading: Reading,
    running: Running,
    output: Output,
) -> None:
    """Replay a trace under one policy; print its summary, and write the run's folder with --out."""
    _check_output(output)
    api.check_stop(running.stop_at)
    with plugged(replica.plugin):
        options = replica_options(replica, reading, running)
        shared = cluster_options(cluster, load, running)
        plan = api.plan(policy, **options)
        if output.out is not None:
            folders.check(Path(output.out), kind="folder", force=output.force)
        with working(f"reading {trace}"):
            source = opened(trace, reading, load)
        for line in plan.lines():
            note(line)
        with progress_bars() as progress:
            done = api.replay(
                source,
                policy,
                out=output.out,
                force=output.force,
                driver=running.driver,
                stop_at_s=running.stop_at,
                progress=progress,
                keep=False,  # what is printed comes from the summary
                **options,
                **shared,
            )
    _report(done, output)


def compare(
    trace: TraceArgument,
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help=f"Policy, repeatable: a name of `kvrm list policies` or a TOML file. "
            f"Default: {', '.join(api.DEFAULT_POLICIES)}.",
            show_default=False,
        ),
    ] = None,
    load: Load,
    replica: Replica,
    cluster: Cluster,
    reading: Reading,
    running: Running,
    output: Output,
) -> None:
    """Replay a trace under several policies: one table, one figure.

    Without --out the results go to runs/compare-TRACE-N; with --json and no --out nothing is written.
    """
    _check_output(output)
    api.check_stop(running.stop_at)
    with plugged(replica.plugin):
        options = replica_options(replica, reading, running)
        shared = cluster_options(cluster, load, running)
        policies = policy or api.DEFAULT_POLICIES
        for name in policies:
            api.plan(name, **options)
        if output.out is not None:
            folders.check(Path(output.out), kind="folder", force=output.force)
        with working(f"reading {trace}"):
            source = opened(trace, reading, load)
        with progress_bars() as progress:
            done = api.compare(
                source,
                policies,
                out=_comparison_folder(source, output),
                force=output.force,
                driver=running.driver,
                stop_at_s=running.stop_at,
                progress=progress,
                keep=False,  # what is printed comes from the summary
                **options,
                **shared,
            )
    _report(done, output)


def _comparison_folder(trace: Trace, output: Output) -> Path | None:
    if output.out is not None:
        return Path(output.out)
    return None if output.json else folders.next_free(Path("runs"), f"compare-{trace.info.name}")


def _check_output(output: Output) -> None:
    """Options that would be ignored are refused."""
    if output.json and output.table != "text":
        raise typer.BadParameter("each is the whole of stdout: pass one of them", param_hint="--json and --table")
    if output.force and output.out is None:
        raise typer.BadParameter("there is nothing to replace without --out", param_hint="--force")


def cluster_options(cluster: Cluster, load: Load, running: Running) -> api.ClusterOptions:
    """The options of the cluster; those that contradict each other are refused before the trace is read."""
    several = {
        "--cluster": cluster.cluster,
        "--prefill-replicas": cluster.prefill_replicas,
        "--decode-replicas": cluster.decode_replicas,
    }
    for name, value in several.items():
        if value is not None and load.replicas is not None:
            raise typer.BadParameter(
                f"--replicas {load.replicas} replays one replica's share of the trace, {name} {value} all replicas on "
                "the whole of it: pass one of them",
                param_hint=f"--replicas and {name}",
            )
    of_a_cluster = {
        "--router": cluster.router,
        "--prefix-weight": cluster.prefix_weight,
        "--engine": cluster.engine,
        "--workers": cluster.workers,
        "--address": cluster.address,
    }
    for name, given in of_a_cluster.items():
        if given is not None and all(value is None for value in several.values()):
            nothing = "has nothing to route" if name in ("--router", "--prefix-weight") else "is one process"
            raise typer.BadParameter(f"one replica {nothing}: pass --cluster N as well", param_hint=name)
    options: api.ClusterOptions = {
        "cluster": cluster.cluster,
        "prefill_replicas": cluster.prefill_replicas,
        "decode_replicas": cluster.decode_replicas,
        "router": cluster.router,
        "prefix_weight": cluster.prefix_weight,
        "engine": cluster.engine,
        "workers": cluster.workers,
        "address": cluster.address,
    }
    check_cluster(options, running.driver)
    return options


def replica_options(replica: Replica, reading: Reading, running: Running) -> api.ReplicaOptions:
    """The options that were given; the rest keeps the defaults of the configuration."""
    options: api.ReplicaOptions = {
        "model": replica.model,
        "hardware": replica.hardware,
        "check": running.check,
        "seed": reading.seed,
        "overrides": parse.assignments(replica.assign or ()),
    }
    if replica.tp is not None:
        options["tensor_parallel"] = replica.tp
    if replica.memory_utilisation is not None:
        options["memory_utilisation"] = replica.memory_utilisation
    if replica.max_context is not None:
        options["max_context_tokens"] = replica.max_context
    if replica.over_limit is not None:
        options["over_limit"] = replica.over_limit
    if replica.pool_blocks is not None:
        options["pool_blocks"] = replica.pool_blocks
    if replica.prefill is not None:
        options["prefill"] = replica.prefill
    if running.window_s is not None:
        options["window_s"] = running.window_s
    return options


def _report(done: Comparison, output: Output) -> None:
    """Results on stdout in the form asked for, and where they lie; exit code 1 when a run served nothing."""
    if output.json:
        say(done.to_json())
    else:
        text = {"text": lambda: done.to_text(terminal_width()), "md": done.to_markdown, "csv": done.to_csv}
        say(text[output.table]().rstrip("\n"))
    for result in done.results:
        if output.table == "text" and not output.json and "cluster" in result.summary:
            say_text(cluster_text(result.summary))
    where = say if output.table == "text" and not output.json else note
    if done.folder is not None:
        where(f"results: {done.folder}")
    if done.figure is not None:
        where(f"figure: {done.figure}")
    failures = nothing_completed(done.results)
    for line in failures:
        complain(line)
    if failures:
        raise typer.Exit(1)

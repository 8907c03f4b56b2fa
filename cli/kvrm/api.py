"""The public functions: the verbs of the command line for a notebook or a script.

    import kvrm

    table = kvrm.compare("azure-conv-like", policies=["static", "graph-paged", "kv-rm"]).to_pandas()

Imports of the parts are inside the functions, so that ``import kvrm`` and ``kvrm --help`` stay quick. Errors are those
of :mod:`kvrm_traces.errors` and :mod:`kvrm_sim.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, cast

from kvrm.folders import staged
from kvrm.presets import Kind, plugged
from kvrm.results import Comparison, Replay
from kvrm.traces import open_trace as open_trace
from kvrm.traces import opened
from kvrm_analysis.engines.replicas import OF_A_CLUSTER, OF_AN_ENGINE, check_cluster, replica_config, run_replicas

if TYPE_CHECKING:
    from kvrm.plugins import PartSource
    from kvrm_analysis.engines.engines import Engine
    from kvrm_sim.config import ReplicaConfig
    from kvrm_sim.engine import RunResult
    from kvrm_sim.hardware import HardwareProfile
    from kvrm_sim.memory import MemoryPlan
    from kvrm_sim.model import ModelSpec
    from kvrm_sim.policy import Policy
    from kvrm_traces import Trace

#: Called with the name of a run and its share done, 0 to 1.
Progress: TypeAlias = Callable[[str, float], None]
Driver: TypeAlias = Literal["span", "events", "closed-loop"]

#: What `compare` sets side by side when no policy is named: static and dynamic decoders, today's baseline, and KV-RM.
DEFAULT_POLICIES = ("static", "bucketed", "dynamic", "graph-paged", "kv-rm", "kv-rm-delta")

#: Half of what int64 nanoseconds hold; traces end before it too.
LONGEST_RUN_S = 4.6e9


class ClusterOptions(TypedDict, total=False):
    """Several replicas behind a router, instead of one: ``cluster``, or both ``prefill_replicas`` and
    ``decode_replicas``. Without them a router is refused.
    """

    #: How many equal replicas serve the whole trace.
    cluster: int | None
    #: Replicas that compute prompts and give first tokens; the router shares requests among them.
    prefill_replicas: int | None
    #: Replicas that decode what those have prefilled, each where the fewest blocks are taken.
    decode_replicas: int | None
    #: A name of ``catalogue("routers")``; default round-robin.
    router: str | None
    #: Of router ``prefix-aware``: blocks held that weigh as much as one block to be prefilled. Default 1.
    prefix_weight: float | None
    #: Run the replicas of ``cluster`` apart, over processes, with a router that does not look at them: ``local`` or
    #: ``ray``, or an engine that is open (kvrm_analysis.engines.engines). The result is the same.
    engine: Literal["local", "ray"] | Engine | None
    #: Processes of the engine; default one a core.
    workers: int | None
    #: Of an existing Ray cluster; default one on this machine.
    address: str | None


class ReplicaOptions(TypedDict, total=False):
    """The engine that serves the trace; what is left out has the default of :class:`kvrm_sim.config.ReplicaConfig`."""

    #: A name of ``catalogue("models")``, a TOML file, or the object. Default llama-3-8b.
    model: str | Path | ModelSpec
    #: A name of ``catalogue("hardware")``, a TOML file, or the object. Default a100-80gb-sxm.
    hardware: str | Path | HardwareProfile
    tensor_parallel: int
    memory_utilisation: float
    max_context_tokens: int
    over_limit: Literal["reject", "truncate", "error"]
    #: Size of the KV pool instead of what the memory allows.
    pool_blocks: int
    #: Seconds that a record of steps.parquet covers; 0: one a step.
    window_s: float
    #: Check every invariant after every step.
    check: bool
    seed: int
    #: Replaces ``schedule.prefill`` of every policy.
    prefill: Literal["none", "chunked", "separate"]
    #: Dotted policy keys to replace, e.g. ``{"pager.block_size_tokens": 32}``.
    overrides: Mapping[str, Any]


class RunOptions(ReplicaOptions, ClusterOptions, total=False):
    """What serves the trace."""


def split_options(options: RunOptions) -> tuple[ClusterOptions, ReplicaOptions]:
    """The options of the cluster, and those of each replica."""
    given: dict[str, Any] = dict(options)
    cluster = {name: given.pop(name) for name in (*OF_A_CLUSTER, *OF_AN_ENGINE) if name in given}
    return cast("ClusterOptions", cluster), cast("ReplicaOptions", given)


def catalogue(kind: Kind, *, plugins: Sequence[PartSource] = ()) -> dict[str, str]:
    """The names that can be given for a policy, a part of one, a model, a device, a trace or a router, each with what
    it is. ``plugins``: users' parts to list beside those of installed packages (docs/plugins.md).
    """
    from kvrm.presets import described

    with plugged(plugins):
        return described(kind)


def plan(
    policy: str | Path | Policy, *, plugins: Sequence[PartSource] = (), **replica: Unpack[ReplicaOptions]
) -> MemoryPlan:
    """How the device's memory would be divided under a policy, without running: every factor in bytes, and the pool.

    Raises ConfigError for wrong options and DoesNotFitError, with every factor, when no usable pool is left.
    """
    from kvrm_sim.memory import plan_memory

    with plugged(plugins):
        return plan_memory(replica_config(policy, replica))


def replay(
    trace: str | Path | Trace,
    policy: str | Path | Policy = "kv-rm",
    *,
    out: str | Path | None = None,
    force: bool = False,
    driver: Driver = "span",
    stop_at_s: float | None = None,
    progress: Progress | None = None,
    keep: bool = True,
    plugins: Sequence[PartSource] = (),
    **options: Unpack[RunOptions],
) -> Replay:
    """Replay a trace under one policy, on one replica or (``cluster=N``) on N behind a router.

    ``trace`` is a file, the name of a built-in trace, or an opened trace. With ``out`` the run's folder
    (docs/metrics.md) is written there; an existing one is refused unless ``force``. Without, the tables stay in memory,
    unless ``keep`` is false: then only the summary is left. ``stop_at_s``: simulated
    seconds after which what is in flight is unfinished. ``plugins``: users' parts, classes or files, that the policy or
    the router may name (docs/plugins.md). Raises InputError (wrong input) and WorkError (the run failed).
    """
    with plugged(plugins):
        check_stop(stop_at_s)
        cluster, replica = split_options(options)
        (config,) = _configs([policy], replica)
        source = opened(trace)
        check_cluster(cluster, driver, source, (config,))
        if out is None:
            return Replay((_run(source, config, None, driver, stop_at_s, progress, keep, cluster),))
        target = Path(out)
        with staged(target, kind="folder", force=force) as unfinished:
            result = _run(source, config, unfinished, driver, stop_at_s, progress, True, cluster)
        return Replay((replace(result, folder=target),), folder=target)


def compare(
    trace: str | Path | Trace,
    policies: Sequence[str | Path | Policy] = DEFAULT_POLICIES,
    *,
    out: str | Path | None = None,
    force: bool = False,
    driver: Driver = "span",
    stop_at_s: float | None = None,
    progress: Progress | None = None,
    keep: bool = True,
    plugins: Sequence[PartSource] = (),
    **options: Unpack[RunOptions],
) -> Comparison:
    """Replay a trace under several policies on the same replica, or the same cluster. Every policy is checked, and
    fitted into the device's memory, before the first one runs.

    With ``out``: one folder a run inside, ``comparison.md``, ``comparison.csv``, the figure
    ``comparison.png`` and ``.svg``, and ``summary.json``. Other options and errors: :func:`replay`.
    """
    with plugged(plugins):
        check_stop(stop_at_s)
        cluster, replica = split_options(options)
        configs = _configs(policies, replica)
        names = _distinct(config.policy.name for config in configs)
        source = opened(trace)
        check_cluster(cluster, driver, source, configs)
        if out is None:
            return Comparison(
                tuple(_run(source, config, None, driver, stop_at_s, progress, keep, cluster) for config in configs)
            )
        target = Path(out)
        with staged(target, kind="folder", force=force) as unfinished:
            unfinished.mkdir()
            results = tuple(
                _run(source, config, unfinished / name, driver, stop_at_s, progress, True, cluster)
                for config, name in zip(configs, names, strict=True)
            )
            figure = _write_comparison(Comparison(results), unfinished)
        moved = tuple(replace(result, folder=target / name) for result, name in zip(results, names, strict=True))
        return Comparison(moved, folder=target, figure=target / figure)


def check_stop(stop_at_s: float | None) -> None:
    """Raise InputError for a stop that no run reaches."""
    from kvrm_traces.errors import InputError

    if stop_at_s is not None and not 0 < stop_at_s <= LONGEST_RUN_S:
        raise InputError(f"stop_at_s = {stop_at_s}: should be seconds above 0 and at most {LONGEST_RUN_S:g}")


def _configs(policies: Sequence[str | Path | Policy], replica: ReplicaOptions) -> list[ReplicaConfig]:
    from kvrm_sim.memory import plan_memory
    from kvrm_traces.errors import InputError

    if not policies:
        raise InputError(f"no policy was named: `kvrm list policies` shows them; the usual six are {DEFAULT_POLICIES}")
    configs = [replica_config(policy, replica) for policy in policies]
    for config in configs:
        plan_memory(config)  # raises when it does not fit: before any work
    return configs


def _distinct(names: Iterable[str]) -> list[str]:
    """Folder names: a policy that appears twice (say, once from a file) gets a number."""
    found: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in found:
            candidate, number = f"{name}-{number}", number + 1
        found.append(candidate)
    return found


def _run(
    trace: Trace,
    config: ReplicaConfig,
    out: Path | None,
    driver: Driver,
    stop_at_s: float | None,
    progress: Progress | None,
    keep: bool,
    cluster: ClusterOptions,
) -> RunResult:
    name = config.policy.name

    def advance(share: float) -> None:
        if progress is not None:
            progress(name, share)

    advance(0.0)  # the first run of a version compiles the core, which takes long before any of the trace is done
    report = None if progress is None else advance
    return run_replicas(trace, config, cluster, out=out, driver=driver, progress=report, stop_at_s=stop_at_s, keep=keep)


def _write_comparison(comparison: Comparison, folder: Path) -> str:
    """The tables, the summary and the figure; returns the figure's name."""
    from kvrm_analysis.drawing.figures import compare_figure

    (folder / "comparison.md").write_text(comparison.to_markdown(), encoding="utf-8")
    (folder / "comparison.csv").write_text(comparison.to_csv(), encoding="utf-8")
    (folder / "summary.json").write_text(comparison.to_json() + "\n", encoding="utf-8")
    return compare_figure(comparison.results, folder / "comparison.png").name

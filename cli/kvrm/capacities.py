"""``kvrm.capacity``: the highest rate, or the fewest replicas, with which an objective is met (docs/capacity.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from kvrm import api
from kvrm.folders import staged
from kvrm.presets import plugged
from kvrm_analysis.engines.replicas import check_cluster, is_one_replica, replica_config, run_replicas

if TYPE_CHECKING:
    import pandas as pd

    from kvrm.plugins import PartSource
    from kvrm_analysis.searches.capacity import Capacity, Effort
    from kvrm_analysis.searches.slo import Slo
    from kvrm_sim.config import ReplicaConfig
    from kvrm_sim.policy import Policy
    from kvrm_traces import Trace

#: What is searched for.
Find: TypeAlias = Literal["rate", "replicas"]

#: Warnings of a run that the reader of a capacity has to know too.
_PASSED_ON = ("uncalibrated", "small_n", "prefill_none", "rejected", "truncated", "prefix_sharing")


@dataclass(frozen=True, kw_only=True)
class Capacities:
    """One capacity a policy, over the same realisations of one trace.

    ``realisations``: what they are, in words. ``offered_per_s``: the rate at which replicas were counted (None when the
    rate was searched for). ``gpus_per_replica``: the tensor-parallel degree.
    """

    found: tuple[Capacity, ...]
    find: Find
    slo: Slo
    effort: Effort
    trace: str
    model: str
    hardware: str
    calibrated: bool
    realisations: str
    offered_per_s: float | None
    gpus_per_replica: int
    warnings: tuple[str, ...]
    folder: Path | None = None
    figure: Path | None = None

    @property
    def unit(self) -> str:
        """Of the load."""
        return "requests/s" if self.find == "rate" else "replicas"

    @property
    def title(self) -> str:
        """The question, in one line."""
        marked = "" if self.calibrated else " (uncalibrated)"
        asked = "highest rate" if self.find == "rate" else f"fewest replicas at {self.offered_per_s:.4g} requests/s"
        return f"{self.trace}, {self.model} on {self.hardware}{marked}: {asked} with {self.slo}"

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints: requests/s or replicas, times in s, sizes in bytes; absent is None."""
        from kvrm_analysis.searches.capacity import SCHEMA

        return {
            "schema": SCHEMA,
            "find": self.find,
            "unit": self.unit,
            "slo": str(self.slo),
            "figures": [term.figure.path for term in self.slo.terms],
            "trace": self.trace,
            "model": self.model,
            "hardware": self.hardware,
            "calibrated": self.calibrated,
            "realisations": self.realisations,
            "offered_per_s": self.offered_per_s,
            "gpus_per_replica": self.gpus_per_replica,
            "share": self.effort.share,
            "confidence": self.effort.confidence,
            "tolerance": self.effort.tolerance,
            "capacities": [each.to_dict() for each in self.found],
            "warnings": list(self.warnings),
        }

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """One row a policy: capacity, interval, coverage."""
        import pandas as pd

        rows = [
            {
                "policy": each.policy,
                "capacity": each.at,
                "low": None if each.interval is None else each.interval[0],
                "high": None if each.interval is None else each.interval[1],
                "coverage": each.coverage,
            }
            for each in self.found
        ]
        return pd.DataFrame(rows).set_index("policy")

    def to_text(self) -> str:
        """The table for a terminal, and what has to be known of it."""
        from kvrm_analysis.searches.capacity_text import notes, table

        counted = self.find == "replicas"
        lines = [self.title]
        lines += table(self.found, self.unit, 0 if counted else 3, self.gpus_per_replica if counted else None)
        if counted:
            lines.append(f"GPUs: replicas x {self.gpus_per_replica} (--tp)")
        elif self.gpus_per_replica > 1:
            lines.append(f"a replica is {self.gpus_per_replica} GPUs (--tp)")
        of_all = f"; the capacity is met by {self.effort.share:.0%} of all alike" if self.found[0].coverage else ""
        lines.append(f"realisations: {self.realisations}{of_all}")
        return "\n".join([*lines, *notes(self.found, self.unit, self.slo), *self.warnings])


def capacity(
    trace: str | Path | Trace | Callable[[int], Trace],
    policies: Sequence[str | Path | Policy] = ("kv-rm",),
    *,
    slo: str | Sequence[str],
    find: Find = "rate",
    offered_per_s: float | None = None,
    repeats: int | None = None,
    share: float = 0.5,
    confidence: float = 0.95,
    tolerance: float = 0.01,
    guard: int = 3,
    most_replicas: int = 256,
    out: str | Path | None = None,
    force: bool = False,
    progress: api.Progress | None = None,
    plugins: Sequence[PartSource] = (),
    **options: Unpack[api.RunOptions],
) -> Capacities:
    """The highest rate (``find="rate"``), or the fewest replicas for its own (``"replicas"``), that meets ``slo``.

    ``trace``: a file, a built-in trace, an opened trace, or a function that opens it with a seed. ``slo``: such as
    ``"itl_p99 <= 50ms"``. ``offered_per_s``: the rate that replicas are to serve (default: the trace's own).
    ``repeats``: realisations (default 6); of a built-in trace with seeds from ``seed`` on, of a file by resampling, 1
    for the trace alone. ``share`` of them meets the objective at the capacity, whose interval has ``confidence``.
    ``tolerance``: relative width of the bisection; ``guard``: runs in a row that have to agree beyond it. With ``out``:
    a folder with summary.json and the figure capacity.png and .svg.

    Raises InputError, and the errors of :func:`kvrm.replay`.
    """
    from kvrm_analysis.searches.capacity import Effort, realisations
    from kvrm_analysis.searches.slo import parse_slo
    from kvrm_sim.memory import plan_memory
    from kvrm_traces.errors import InputError

    if not policies:
        raise InputError("no policy was named: `kvrm list policies` shows them")
    if find not in ("rate", "replicas"):
        raise InputError(f"find = {find!r}: should be 'rate' or 'replicas'")
    if find == "rate" and offered_per_s is not None:
        raise InputError(f"offered_per_s = {offered_per_s!r}: the rate is what is searched for; leave it out")
    objective = parse_slo(slo)
    effort = Effort(share=share, confidence=confidence, tolerance=tolerance, guard=guard)
    with plugged(plugins):
        cluster, replica = api.split_options(options)
        if find == "replicas" and not is_one_replica(cluster):
            raise InputError("find = 'replicas' chooses their number: leave cluster and the split out")
        configs = [replica_config(policy, replica) for policy in policies]
        for config in configs:
            plan_memory(config)  # raises when it does not fit: before any work
        if find == "rate":
            check_cluster(cluster, "span", None, configs)
        traces, what = realisations(_opener(trace), seed=options.get("seed", 0), repeats=repeats)
        if find == "replicas":
            offered_per_s = offered_per_s or traces[0].info.rate_per_s
            if offered_per_s is not None:  # None: all at one instant, which is as it is
                traces = tuple(each.at_rate(offered_per_s) for each in traces)
        search = _Search(objective, effort, find, traces, cluster, progress, most_replicas)
        found = tuple(search.of(config) for config in configs)
        result = search.result(found, what, offered_per_s)
    return result if out is None else _written(result, Path(out), force)


class _Search:
    """The runs of one question; what every one of them says beside its numbers is kept."""

    def __init__(
        self,
        slo: Slo,
        effort: Effort,
        find: Find,
        traces: tuple[Trace, ...],
        cluster: Mapping[str, Any],
        progress: api.Progress | None,
        most_replicas: int,
    ) -> None:
        self._slo, self._effort, self._find, self._traces = slo, effort, find, traces
        self._cluster, self._progress, self._most = cluster, progress, most_replicas
        self._last: dict[str, Any] = {}
        self._warnings: dict[str, str] = {}

    def of(self, config: ReplicaConfig) -> Capacity:
        from kvrm_analysis.searches.capacity import fewest_replicas, rate_capacity

        name = config.policy.name

        def advance(done: float) -> None:
            if self._progress is not None:
                self._progress(name, done)

        advance(0.0)  # compiling the core may come before the first run

        def run(trace: Trace, cluster: int | None = None) -> dict[str, Any]:
            of_cluster = self._cluster if cluster is None else {**self._cluster, "cluster": cluster}
            check_cluster(of_cluster, "span", trace, (config,))
            self._last = run_replicas(trace, config, of_cluster, keep=False).summary
            for line in self._last["warnings"]:
                if (kind := line.partition(":")[0]) in _PASSED_ON:
                    self._warnings.setdefault(kind, line)
            return self._last

        if self._find == "rate":
            return rate_capacity(name, self._traces, run, self._slo, self._effort, advance)
        return fewest_replicas(name, self._traces, run, self._slo, self._effort, most=self._most, progress=advance)

    def result(self, found: tuple[Capacity, ...], what: str, offered_per_s: float | None) -> Capacities:
        return Capacities(
            found=found,
            find=self._find,
            slo=self._slo,
            effort=self._effort,
            trace=self._last["trace"]["name"],
            model=self._last["model"],
            hardware=self._last["hardware"],
            calibrated=self._last["calibrated"],
            realisations=what,
            offered_per_s=offered_per_s,
            gpus_per_replica=self._last["tensor_parallel"],
            warnings=tuple(self._warnings.values()),
        )


def _opener(trace: str | Path | Trace | Callable[[int], Trace]) -> Callable[[int], Trace]:
    if isinstance(trace, (str, Path)):
        return lambda seed: api.open_trace(trace, seed=seed)
    if callable(trace):
        return trace
    return lambda _: trace


def _written(result: Capacities, target: Path, force: bool) -> Capacities:
    from dataclasses import replace

    from kvrm_analysis.searches.capacity_text import capacity_figure

    with staged(target, kind="folder", force=force) as unfinished:
        unfinished.mkdir()
        (unfinished / "summary.json").write_text(result.to_json() + "\n", encoding="utf-8")
        capacity_figure(result.found, result.slo, result.unit, result.title, unfinished / "capacity.png")
    return replace(result, folder=target, figure=target / "capacity.png")

"""A cell: one simulation that settings determine, and the row of results that it gives.

:func:`run_cell` is what every study does, whatever chose the settings::

    cells = Cells()                                # opens traces, builds configurations, remembers both
    row = run_cell({"trace": "azure-conv-like", "trace.rows": 2000, "policy": "kv-rm"}, {"seed": 1}, cells=cells)
    row["status"], row["ttft_p99_s"], row["output_tokens_per_s"]

The row has ``status`` (``STATUSES``), ``error`` (None, or why there are no results) and every column of
``cell_rows.METRICS``; it holds nothing that depends on the machine, the time or the process. What the simulation took
is in ``cell_rows.Timed``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvrm_analysis.engines.replicas import (
    DEFAULT_HARDWARE,
    DEFAULT_MODEL,
    OF_A_CLUSTER,
    check_cluster,
    replica_config,
    run_replicas,
)
from kvrm_analysis.studies.cell_rows import Row, failed_row, row_of
from kvrm_analysis.studies.cell_traces import CellTraces
from kvrm_analysis.studies.names import located
from kvrm_analysis.studies.settings import RunSettings, Settings, TraceOptions, checked
from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy
from kvrm_sim.errors import ConfigError, DoesNotFitError, InputError, KvrmError
from kvrm_sim.memory import plan_memory
from kvrm_sim.plugin_registry import using
from kvrm_sim.result import RunResult
from kvrm_sim.tables import Table
from kvrm_traces import Trace

T = TypeVar("T", bound=Table)

DEFAULT_POLICY = "kv-rm"

#: What becomes of a cell. ``does_not_fit``: the device's memory leaves no pool. ``refused``: its settings do not agree
#: with each other or with the trace. ``failed``: the run went wrong, or its process died.
STATUSES = ("done", "does_not_fit", "refused", "failed")


@dataclass(frozen=True)
class Prepared:
    """A cell whose settings agree with each other: everything but the rows of its trace."""

    config: ReplicaConfig
    trace: TraceOptions
    run: RunSettings

    @property
    def cluster(self) -> dict[str, Any]:
        """The options of a cluster that are set; none for one replica."""
        return {name: value for name in OF_A_CLUSTER if (value := getattr(self.run, name)) is not None}


class Cells:
    """Settings into runs. ``folder``: where the files that settings name lie, and ``plugins`` (files of users' parts);
    ``traces`` opens the traces, by default each as it is asked for.

    Remembers the policies, models and devices that it built: cells of a study share most of them.
    """

    def __init__(
        self, *, folder: Path | None = None, plugins: Sequence[str | Path] = (), traces: CellTraces | None = None
    ) -> None:
        self.folder = folder
        self.plugins = tuple(self._path(plugin) for plugin in plugins)
        self.traces = traces or CellTraces(folder=folder)
        self._built: dict[str, Table] = {}

    def prepare(self, settings: Settings) -> Prepared:
        """Build what (checked) settings say. Raises DoesNotFitError or ConfigError when they cannot be run together."""
        with using(self.plugins):
            of_trace, of_run = _section(settings, "trace"), {n: settings[n] for n in RUN_KEYS if n in settings}
            run = RunSettings(**{name: value for name, value in of_run.items() if value is not None})
            own = {n: v for n, v in settings.items() if "." not in n and n not in of_run and n not in _NAMED}
            config = replica_config(
                self._policy(settings),
                {
                    **{name: value for name, value in own.items() if value is not None},
                    "model": self._part(load_model, "model", DEFAULT_MODEL, settings),
                    "hardware": self._part(load_hardware, "hardware", DEFAULT_HARDWARE, settings),
                    **({} if run.prefill is None else {"prefill": run.prefill}),
                },
            )
            trace = TraceOptions(**{name: value for name, value in of_trace.items() if value is not None})
            prepared = Prepared(config, trace, run)
            check_cluster(prepared.cluster, prepared.run.driver, None, (config,))
            plan_memory(config)
        return prepared

    def open(self, prepared: Prepared) -> Trace:
        """The trace of a cell. Raises TraceError or ConfigError."""
        return self.traces.open(prepared.trace, prepared.config.seed)

    def run(self, prepared: Prepared, *, out: Path | None = None, keep: bool = False) -> RunResult:
        """Simulate. With ``out`` the run's folder is written there, over one that kvrm wrote; ``keep`` keeps the tables
        without. Raises what ``kvrm.replay`` raises.
        """
        with using(self.plugins):
            trace = self.open(prepared)
            check_cluster(prepared.cluster, prepared.run.driver, trace, (prepared.config,))
            how = {"out": out, "keep": keep, "force": out is not None, "stop_at_s": prepared.run.stop_at_s}
            return run_replicas(trace, prepared.config, prepared.cluster, driver=prepared.run.driver, **how)

    def _path(self, name: str | Path) -> str:
        """A file of the study: relative ones are in its folder."""
        return str(name) if self.folder is None else str(self.folder / name)

    def _policy(self, settings: Settings) -> Any:
        return self._part(load_policy, "policy", DEFAULT_POLICY, settings)

    def _part(self, load: Any, section: str, default: str, settings: Settings) -> Any:
        """The policy, model or device that settings name, with what they change in it."""
        name, changes = settings.get(section) or default, _section(settings, section)
        known = json.dumps([section, name, changes], sort_keys=True)
        if known not in self._built:
            loaded = load(located(name, self.folder))
            if len(self._built) >= _MOST_REMEMBERED:
                self._built.clear()
            self._built[known] = _with(loaded, section, changes) if changes else loaded
        return self._built[known]


#: Where every cell has a policy of its own, as in a sample, those of before are let go.
_MOST_REMEMBERED = 512

RUN_KEYS = tuple(RunSettings.model_fields)
_NAMED = ("policy", "model", "hardware")


def _section(settings: Settings, section: str) -> dict[str, Any]:
    """What settings say below a section, without its name."""
    prefix = f"{section}."
    return {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}


def _with(table: T, section: str, changes: Mapping[str, Any]) -> T:
    """A table with keys replaced; a coefficient that is a bare number is assumed, by the study."""
    if section == "hardware":
        changes = {
            name: {"value": value, "provenance": "assumed", "source": "set by a study"}
            if isinstance(value, float)
            else value
            for name, value in changes.items()
        }
    return table.override(changes)


def run_cell(
    base: Settings,
    overrides: Settings | None = None,
    *,
    cells: Cells | None = None,
    out: Path | None = None,
) -> Row:
    """Run the cell that ``base`` with ``overrides`` over it determines; its row of results, whatever happens.

    With ``out`` the run's folder is written there. A wrong key or a value that its key cannot take raises ConfigError;
    everything that comes of the settings together, or of the run, is in the row's ``status`` and ``error``.
    """
    cells = cells or Cells()
    with using(cells.plugins):
        settings = checked({**base, **(overrides or {})})
    try:
        return row_of(cells.run(cells.prepare(settings), out=out).summary)
    except KvrmError as error:
        return failed_row(status_of(error), str(error))


def status_of(error: KvrmError) -> str:
    """Which of ``STATUSES`` an error makes of a cell."""
    if isinstance(error, DoesNotFitError):
        return "does_not_fit"
    return "refused" if isinstance(error, (ConfigError, InputError)) else "failed"

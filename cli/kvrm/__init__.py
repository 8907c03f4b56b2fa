"""Replay LLM serving traces under static-graph, dynamic and KV-RM decoders, and measure what each one costs.

import kvrm
kvrm.compare("azure-conv-like", policies=["static", "kv-rm"]).to_pandas()
"""

from kvrm.api import (
    ClusterOptions,
    ReplicaOptions,
    catalogue,
    compare,
    plan,
    replay,
)
from kvrm.capacities import Capacities, capacity
from kvrm.device import Validation, calibrate, calibrate_from_steps, validate
from kvrm.looking import diff, explain
from kvrm.plotting import Plots, plot, plot_kinds
from kvrm.reporting import report, timeline
from kvrm.results import Comparison, Replay
from kvrm.sensitivities import sensitivity
from kvrm.sweeps import sweep, sweep_dry_run
from kvrm.traces import convert_trace, fetch_trace, fit_trace, inspect_trace, merge_traces, open_trace
from kvrm.tunes import tune

__all__ = [
    "Capacities",
    "ClusterOptions",
    "Comparison",
    "Plots",
    "Replay",
    "ReplicaOptions",
    "Validation",
    "calibrate",
    "calibrate_from_steps",
    "capacity",
    "catalogue",
    "compare",
    "convert_trace",
    "diff",
    "explain",
    "fetch_trace",
    "fit_trace",
    "inspect_trace",
    "merge_traces",
    "open_trace",
    "plan",
    "plot",
    "plot_kinds",
    "replay",
    "report",
    "sensitivity",
    "sweep",
    "sweep_dry_run",
    "timeline",
    "tune",
    "validate",
]

__version__: str


def __getattr__(name: str) -> str:
    # Reading the installed version takes longer than the rest of this import, and few ask for it.
    if name == "__version__":
        from importlib.metadata import version

        return version("kvrm")
    raise AttributeError(f"module 'kvrm' has no attribute {name!r}")

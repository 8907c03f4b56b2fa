"""run.toml: all that a run was made from (DESIGN section 7): the replica, the trace, the driver, the versions."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.plugin_registry import provenance
from kvrm_sim.plugins import Part
from kvrm_traces import Trace

#: Packages whose version decides what a run computes or how it is written.
_PACKAGES = ("kvrm", "numba", "numpy", "pyarrow", "simpy")


def run_toml(
    trace: Trace,
    config: ReplicaConfig,
    *,
    driver: str,
    stop_at_s: float | None,
    cluster: Mapping[str, Any] | None = None,
    parts: Sequence[type[Part]] = (),
) -> str:
    """The text of run.toml: the configuration (``ReplicaConfig.from_file`` reads it back), then [trace] and [run].

    ``cluster``: of a cluster's run, what its router was; written as [run.cluster]. ``parts``: users' parts beside those
    that the policy names; all are written as [[run.plugins]].
    """
    info = trace.info
    about_trace: dict[str, Any] = {
        "name": info.name,
        "source": info.source,
        "format": info.format,
        "unit": info.unit,
        "sha256": info.sha256,
        "rows": info.rows,
        "span_ns": info.span_ns,
    }
    if trace.transforms is not None:
        about_trace["transforms"] = trace.transforms
    about_run: dict[str, Any] = {"driver": driver}
    if stop_at_s is not None:
        about_run["stop_at_s"] = stop_at_s
    about_run["python"] = platform.python_version()
    about_run |= {package: importlib.metadata.version(package) for package in _PACKAGES}
    if cluster is not None:
        about_run["cluster"] = dict(cluster)
    plugins = provenance((*config.policy.parts, *parts))
    if plugins:
        about_run["plugins"] = plugins
    return tomli_w.dumps({**config.to_dict(), "trace": about_trace, "run": about_run})

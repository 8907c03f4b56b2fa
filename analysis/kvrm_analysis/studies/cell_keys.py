"""The key of a cell: a hash of all that determines its results, and apart from it the version of the code.

Determined by: the built configuration (not the names and files that it was built from), the rows of the trace and what
is done to them, the cluster and the stop, users' parts, and the seed where something is drawn. Not by: the study, the
place in its table, the engine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from kvrm_analysis.studies.cell_traces import reading_of, shape_is_drawn
from kvrm_analysis.studies.cells import Prepared
from kvrm_sim.compiled import core_mode
from kvrm_sim.plugin_registry import provenance
from kvrm_sim.routers import router_parts

#: Modules of this package that results pass through.
_OURS = (
    "studies/cells.py", "studies/cell_rows.py", "studies/cell_traces.py", "studies/settings.py", "engines/replicas.py"
)  # fmt: skip
_PACKAGES = ("llvmlite", "numba", "numpy", "pyarrow", "simpy")


@cache
def code_version() -> str:
    """Twelve hex digits over the code that decides results: the simulator, the traces, cells, and what they rest on."""
    digest = hashlib.sha256()
    for package, patterns in (("kvrm_sim", ("*.py",)), ("kvrm_traces", ("**/*.py", "presets/*.toml"))):
        root = Path(str(resources.files(package)))
        for path in sorted(found for pattern in patterns for found in root.glob(pattern)):
            _add(digest, f"{package}/{path.relative_to(root).as_posix()}", path)
    for name in _OURS:
        _add(digest, name, Path(str(resources.files("kvrm_analysis"))) / name)
    for package in _PACKAGES:
        digest.update(f"{package}={importlib.metadata.version(package)}\0".encode())
    digest.update(f"python={platform.python_version()} core={core_mode()}".encode())
    return digest.hexdigest()[:12]


def _add(digest: Any, name: str, path: Path) -> None:
    digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")


def cell_key(prepared: Prepared, trace_sha256: str | None) -> str:
    """Sixteen hex digits. ``trace_sha256``: of the file behind its trace; None for a built-in one."""
    options, seed = prepared.trace, prepared.config.seed
    reading = reading_of(options, seed)
    if trace_sha256 is not None:
        reading["source"] = trace_sha256
    shape = options.model_dump(mode="json", exclude={"source", "seed", "columns"}, exclude_none=True)
    if shape_is_drawn(options):
        shape["seed"] = seed if options.seed is None else options.seed
    config = prepared.config.to_dict()
    if prepared.config.policy.speculation is None:
        config.pop("seed")  # nothing in the replica is drawn: the same run, whatever its seed
    parts = (*prepared.config.policy.parts, *(router_parts(prepared.run.router) if prepared.run.router else ()))
    plugins = [(part["kind"], part["name"], part["sha256"]) for part in provenance(parts)]
    run = prepared.run.to_dict()
    if run["driver"] == "span":
        del run["driver"]  # what every cell was before there was another
    text = json.dumps([config, reading, shape, run, plugins], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""What every table and figure reads: a run's summary and its records, from memory or from a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from kvrm_sim.errors import InputError


class RunLike(Protocol):
    """``kvrm_sim.records.Run`` (read from a folder) and ``kvrm_sim.engine.RunResult`` (just simulated) both are one."""

    @property
    def summary(self) -> dict[str, Any]:
        """The RUN object (DESIGN section 7)."""

    @property
    def steps(self) -> pa.Table:
        """The columns of steps.parquet."""

    @property
    def requests(self) -> pa.Table | None:
        """The columns of requests.parquet; None when they were not kept."""


def summaries(runs: Iterable[RunLike]) -> list[dict[str, Any]]:
    """The summaries of at least one run. Raises InputError when there is none."""
    found = [run.summary for run in runs]
    if not found:
        raise InputError("no run was given: a comparison needs at least one")
    return found


def labels(runs: Sequence[dict[str, Any]]) -> list[str]:
    """A distinct name for each run: its policy, with what differs (trace, model, hardware) or a number where needed."""
    names = [str(run["policy"]) for run in runs]
    for key in ("model", "hardware", "trace"):
        values = [run[key]["name"] if key == "trace" else str(run[key]) for run in runs]
        if len(set(names)) < len(names) and len(set(values)) > 1:
            names = [f"{name} · {value}" for name, value in zip(names, values, strict=True)]
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in distinct:
            candidate, number = f"{name} ({number})", number + 1
        distinct.append(candidate)
    return distinct

"""What a run gives back: its summary, its plan, and its tables, from memory or from the folder that it wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.columns import REPLICA, pool_table, request_table, step_table, with_fields
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.errors import InputError
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.records import load_run


@dataclass(frozen=True)
class RunResult:
    """One ended run. Tables are in memory when nothing was written, else read from ``folder`` when asked for."""

    summary: dict[str, Any]
    memory_plan: MemoryPlan
    config: ReplicaConfig
    folder: Path | None = None
    _tables: dict[str, pa.Table] = field(default_factory=dict, repr=False, compare=False)

    @property
    def warnings(self) -> list[str]:
        """What the reader of the numbers should know."""
        return list(self.summary["warnings"])

    def _table(self, name: str) -> pa.Table:
        if self.folder is None:
            if name not in self._tables:
                raise InputError(
                    f"{name}: the tables of this run were not kept; run it with keep=True or with a folder"
                )
            return self._tables[name]
        table: pa.Table = getattr(load_run(self.folder), name)
        return table

    @property
    def requests(self) -> pa.Table:
        """One row for every request injected, in the order in which they ended (columns.py)."""
        return self._table("requests")

    @property
    def steps(self) -> pa.Table:
        """One row a window, or a step."""
        return self._table("steps")

    @property
    def pool(self) -> pa.Table:
        """One row a sample of the pool."""
        return self._table("pool")


class Collector:
    """Keeps the records of a run that writes nothing. ``request_fields``: as of a RunWriter."""

    def __init__(self, *, request_fields: tuple[str, ...] = ()) -> None:
        self._request_fields = request_fields
        self._parts: dict[str, list[pa.Table]] = {"requests": [], "steps": [], "pool": []}

    def requests(self, records: st.Records) -> None:
        self._parts["requests"].append(request_table(records))

    def windows(self, records: st.Records) -> None:
        self._parts["steps"].append(step_table(records))

    def pool(self, samples: st.Records, classes: NDArray[np.int64]) -> None:
        self._parts["pool"].append(pool_table(samples, classes))

    def tables(self) -> dict[str, pa.Table]:
        of_requests, of_others = self._request_fields, REPLICA if self._request_fields else ()
        out = np.zeros(0, with_fields(st.OUT, of_requests))
        windows, samples = (np.zeros(0, with_fields(dtype, of_others)) for dtype in (st.WINDOWS, st.POOL_SAMPLES))
        empty = {
            "requests": request_table(out),
            "steps": step_table(windows),
            "pool": pool_table(samples, np.zeros((0, st.RUN_CLASSES), np.int64)),
        }
        return {name: pa.concat_tables(parts) if parts else empty[name] for name, parts in self._parts.items()}

"""Cells as the work of an engine: what a process needs to run them, and what it sends back."""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvrm_analysis.engines.engines import Lost
from kvrm_analysis.studies.cell_keys import code_version
from kvrm_analysis.studies.cell_rows import Row, failed_row
from kvrm_analysis.studies.cell_traces import CellTraces
from kvrm_analysis.studies.cells import Cells, run_cell
from kvrm_sim.compiled import is_warm
from kvrm_sim.errors import RunError
from kvrm_traces.shared import SharedTrace

#: What has to be compiled is compiled by a run of one request.
_WARM: dict[str, Any] = {"trace.source": "azure-conv-like", "trace.rows": 1, "policy": "graph-paged"}


@dataclass(frozen=True)
class CellTask:
    """One cell to run. ``out``: where its run folder is written; None: only its row is wanted."""

    settings: Mapping[str, Any]
    out: Path | None = None


@dataclass(frozen=True)
class Ran:
    """A cell's row, and what is true of the process that ran it alone: its wall time, its peak memory so far."""

    row: Row
    wall_s: float = 0.0
    peak_rss_bytes: int = 0


@dataclass(frozen=True)
class CellWork:
    """See :class:`kvrm_analysis.engines.engines.Work`: tasks are :class:`CellTask`, results :class:`Ran`.

    ``shared``: traces by their reading (cell_traces.py); ``folder`` and ``plugins``: as of ``Cells``.
    """

    shared: Mapping[str, SharedTrace] = field(default_factory=dict)
    folder: Path | None = None
    plugins: tuple[str, ...] = ()
    #: The version of the code that all processes have to have, so that rows are of one; "": any.
    code: str = ""

    def start(self) -> Callable[[CellTask], Ran]:
        """Compile what is not compiled yet, and open nothing: traces are mapped when a cell needs them.

        Raises RunError in a process that has another version of the code.
        """
        if self.code and self.code != code_version():
            raise RunError(
                f"a worker on {platform.node()} has other code than this process ({code_version()}, not {self.code}): "
                "install the same kvrm, Python and packages there"
            )
        if not is_warm():
            run_cell(_WARM)
        cells = Cells(folder=self.folder, plugins=self.plugins, traces=CellTraces(self.shared, self.folder))

        def do(task: CellTask) -> Ran:
            started = time.perf_counter()
            try:
                row = run_cell(task.settings, cells=cells, out=task.out)
            except Exception as error:  # noqa: BLE001  # one cell's misfortune is its row; the others go on
                row = failed_row("failed", f"{type(error).__name__}: {error}")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            return Ran(row, time.perf_counter() - started, peak)

        return do

    def portable(self) -> CellWork:
        """With the traces' columns in it."""
        return replace(self, shared={name: trace.portable() for name, trace in self.shared.items()})


def ran(result: Ran | Lost) -> Ran:
    """The result of a task; of one whose process died, the row that says so."""
    return Ran(failed_row("failed", result.reason)) if isinstance(result, Lost) else result

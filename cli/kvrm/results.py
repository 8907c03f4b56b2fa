"""What the public functions return: one run or several, as objects that turn into tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from kvrm_sim.engine import RunResult


@dataclass(frozen=True)
class Comparison:
    """Runs of one trace under several policies, in the order in which the policies were named.

    ``folder`` holds one folder a run, named after its policy, and the table and the figure; None when nothing was
    written.
    """

    results: tuple[RunResult, ...]
    folder: Path | None = None
    figure: Path | None = None

    @property
    def runs(self) -> tuple[dict[str, Any], ...]:
        """The summary of each run, as in summary.json."""
        return tuple(result.summary for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """``{"schema": 1, "runs": [...]}``: what ``--json`` prints. Times in s, sizes in bytes, absent is None."""
        from kvrm_sim.records import SCHEMA

        return {"schema": SCHEMA, "runs": list(self.runs)}

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON text, without NaN or infinity (either is a ValueError)."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """The comparison table, one row a run; units are in the column names."""
        from kvrm_analysis.compare import comparison_table

        return comparison_table(self.results)

    def to_text(self, width: int | None = None) -> str:
        """The table for a terminal (of so many columns), with the audit line of every run."""
        from kvrm_analysis.compare import render_text

        return render_text(self.results, width)

    def to_markdown(self) -> str:
        """The table as Markdown."""
        from kvrm_analysis.compare import to_markdown

        return to_markdown(self.results)

    def to_csv(self) -> str:
        """The table as CSV, one row a run."""
        from kvrm_analysis.compare import to_csv

        return to_csv(self.results)


class Replay(Comparison):
    """One run, with its records."""

    @property
    def summary(self) -> dict[str, Any]:
        """The run's summary, as in summary.json."""
        return self.runs[0]

    def requests(self) -> pd.DataFrame:
        """One row for every request injected, in the order in which they ended."""
        return self._frame("requests")

    def steps(self) -> pd.DataFrame:
        """One row a window of ``window_s`` seconds, or a step."""
        return self._frame("steps")

    def pool(self) -> pd.DataFrame:
        """Occupancy, run lengths and holes over time: one row a sample."""
        return self._frame("pool")

    def _frame(self, name: str) -> pd.DataFrame:
        table: pa.Table = getattr(self.results[0], name)
        frame: pd.DataFrame = table.to_pandas()
        return frame


def nothing_completed(results: Sequence[RunResult]) -> list[str]:
    """One line for each run in which no request was served to its end, saying where they went."""
    lines = []
    for result in results:
        counts = result.summary["counts"]
        if counts["completed"] + counts["truncated"] == 0:
            lines.append(
                f"{result.summary['policy']}: none of {counts['injected']} requests completed "
                f"({counts['rejected']} rejected, {counts['unfinished']} unfinished)"
            )
    return lines

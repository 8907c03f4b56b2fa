"""Opening a trace by the name of a built-in one or by its path."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from kvrm_traces.errors import TraceError
from kvrm_traces.synth.builtin import BUILTINS, open_builtin
from kvrm_traces.trace import Trace


def open_trace(
    source: str | Path,
    *,
    format: str | None = None,
    unit: str | None = None,
    columns: Mapping[str, str] | None = None,
    strict: bool = False,
    missing_timestamp: Literal["refuse", "zero"] = "refuse",
    seed: int = 0,
    rows: int | None = None,
) -> Trace:
    """Open a built-in trace or a file."""
    if isinstance(source, str) and source in BUILTINS:
        return open_builtin(source, rows=rows, seed=seed)
    raise TraceError(
        f"{source}: no such file, nor a built-in trace; did you mean {difflib.get_close_matches(str(source), BUILTINS)}?"
    )

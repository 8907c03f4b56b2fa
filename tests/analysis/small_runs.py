"""Runs that take a second together, written to folders, for what reads them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kvrm
from kvrm_analysis.runs import NamedRun, open_runs

ROWS = 300


def replayed(folder: Path, policy: str, *, speedup: float = 0.5, **options: Any) -> NamedRun:
    """A burst of chat, of ``ROWS`` requests, in a pool that they fill."""
    trace = kvrm.open_trace("chat-burst").limit(ROWS).speedup(speedup)
    options = {"pool_blocks": 2600, "max_context_tokens": 4096, **options}
    kvrm.replay(trace, policy, out=folder, **options)
    (run,) = open_runs([folder])
    return run

"""Studies: fixed experiments beside published numbers.

``kv_memory_shares`` repeats Fig. 2 of the PagedAttention paper (Kwon et al., SOSP 2023, arXiv:2309.06180): which share
of the KV memory holds tokens under Orca's reservations and under paging, OPT-13B on an A100-40GB, chat-length requests.
Ours are drawn lengths with ShareGPT's means, not their trace: agreement says that the memory model is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from kvrm_analysis.drawing.series import integers, numbers
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import RunResult, run
from kvrm_sim.errors import WorkError
from kvrm_traces import Trace, open_trace

#: Policy of ours, its name in the figure, and the share of the whole KV memory that holds tokens there, percent.
PAPER_SHARES = {
    "orca-max": ("Orca (Max)", 20.4),
    "orca-pow2": ("Orca (Pow2)", 26.8),
    "orca-oracle": ("Orca (Oracle)", 38.2),
    "graph-paged": ("vLLM", 96.3),
}
TRACE = "sharegpt-like"
MODEL = "opt-13b"
HARDWARE = "a100-40gb"
ROWS = 3000
#: Arrivals four times as fast as the built-in trace: more than any policy serves, so that memory is what limits.
SPEEDUP = 4.0


def kv_memory_shares(
    trace: Trace | None = None, *, seed: int = 0, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Run the four policies at saturation; one row a policy, shares in percent beside the paper's.

    Means are over the time in which requests wait, weighted with it: then each policy holds as much as it can. Raises
    WorkError when a policy never made a request wait (the trace does not saturate it).
    """
    trace = open_trace(TRACE, rows=ROWS, seed=seed).speedup(SPEEDUP) if trace is None else trace
    rows = []
    for policy, (paper_name, paper_share) in PAPER_SHARES.items():
        config = ReplicaConfig.from_names(policy, MODEL, HARDWARE)
        result = run(trace, config, progress=_named(progress, policy))
        rows.append(
            {"policy": policy, "paper_system": paper_name, **_shares(result), "paper_tokens_percent": paper_share}
        )
    return pd.DataFrame(rows).set_index("policy")


def _named(progress: Callable[[str, float], None] | None, policy: str) -> Callable[[float], None] | None:
    if progress is None:
        return None
    tell = progress
    return lambda share: tell(policy, share)


def _shares(result: RunResult) -> dict[str, Any]:
    steps, summary = result.steps, result.summary
    full = numbers(steps, "waiting") > 0
    weights = (integers(steps, "end_ns") - integers(steps, "start_ns"))[full].astype(np.float64)
    if not weights.sum():
        raise WorkError(f"{summary['policy']}: no request ever waited on {summary['trace']['name']}: not saturated")

    def mean(column: str) -> float:
        return float(np.average(numbers(steps, column)[full], weights=weights))

    tokens = mean("used_tokens") / summary["block_size_tokens"]
    reserved, held, pool = mean("reserved_blocks"), mean("allocated_blocks"), summary["pool_blocks"]
    return {
        "tokens_percent": 100 * tokens / pool,
        "tokens_of_reserved_percent": 100 * tokens / reserved,
        "tokens_of_held_percent": 100 * tokens / held,
        "reserved_percent": 100 * reserved / pool,
        "held_percent": 100 * held / pool,
        "requests_running_mean": mean("running"),
        "saturated_s": float(weights.sum()) / 1e9,
    }


def frame_markdown(frame: pd.DataFrame, digits: int = 1) -> str:
    """A frame as a Markdown table, its index first."""
    plain = frame.reset_index()
    lines = ["| " + " | ".join(plain.columns) + " |", "|---" * len(plain.columns) + "|"]
    for row in plain.itertuples(index=False):
        cells = [f"{cell:,.{digits}f}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"

"""Runs as tables and figures read them, made up: a load with two bursts, and policies that take it differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kvrm_sim.columns import request_table, step_table
from kvrm_sim.state import H_E2E, H_ITL, H_TTFT, NONE, OUT, WINDOWS
from tests.sim.run_arrays import MS, S, make_config, summary_of

SPAN_S = 100
#: Arrivals in each second: quiet, with bursts at 30-33 s and 70-72 s.
ARRIVALS = np.where(np.isin(np.arange(SPAN_S), (30, 31, 32, 70, 71)), 60, 6)


@dataclass(frozen=True)
class MadeUpRun:
    summary: dict[str, Any]
    steps: pa.Table
    requests: pa.Table | None


def windows_of(gap_ms: float, reserved_per_request: int) -> np.ndarray:
    windows = np.zeros(SPAN_S, WINDOWS)
    backlog = np.convolve(ARRIVALS, np.ones(5), "full")[:SPAN_S]
    windows["start_ns"] = np.arange(SPAN_S) * S
    windows["end_ns"] = windows["start_ns"] + S - 1
    windows["itl_p50_ns"] = gap_ms * MS * (1 + backlog / 400)
    windows["itl_p99_ns"] = 3 * windows["itl_p50_ns"]
    windows["itl_p99_ns"][50] = windows["itl_p50_ns"][50] = NONE
    windows["waiting"] = np.maximum(0, ARRIVALS - 30)
    windows["admitted"] = ARRIVALS - np.diff(windows["waiting"], prepend=0)
    windows["reserved_blocks"] = reserved_per_request * backlog
    windows["used_tokens"] = 200 * backlog
    return windows


def requests_of(ttft_ms: float) -> np.ndarray:
    arrival = np.repeat(np.arange(SPAN_S) * S, ARRIVALS)
    out = np.zeros(len(arrival), OUT)
    out["row"] = np.arange(len(arrival))
    out["arrival_ns"] = arrival
    out["first_token_ns"] = arrival + ttft_ms * MS
    out["finish_ns"] = arrival + 5 * S
    out["prompt_tokens"] = 200
    out["output_tokens"] = out["delivered"] = 11
    return out


def made_up_run(policy: str, gap_ms: float = 20, ttft_ms: float = 100, reserved: int = 20, **scalars: int) -> MadeUpRun:
    count = int(ARRIVALS.sum())
    times = {
        H_TTFT: np.full(count, ttft_ms * MS),
        H_ITL: np.full(10 * count, gap_ms * MS),
        H_E2E: np.full(count, 5 * S),
    }
    totals = {"injected": count, "completed": count, "last_finish_ns": 105 * S, **scalars}
    summary = summary_of(times, config=make_config(policy), **totals)
    return MadeUpRun(summary, step_table(windows_of(gap_ms, reserved)), request_table(requests_of(ttft_ms)))


def six_runs() -> list[MadeUpRun]:
    moves = {"groups": 80_000, "moved_blocks": 40_000_000, "needed_tokens": 600_000_000}
    return [
        made_up_run("static", 45, 300, reserved=512),
        made_up_run("bucketed", 40, 250, reserved=60),
        made_up_run("dynamic", 22, 120, reserved=13),
        made_up_run("graph-paged", 15, 110, reserved=13),
        made_up_run("kv-rm", 35, 130, reserved=13, **moves),
        made_up_run("kv-rm-delta", 16, 125, reserved=13, groups=80, moved_blocks=40_000, needed_tokens=600_000),
    ]

"""The arrays of a finished run, made up: what `summarize` takes, filled with times and totals by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.ended import About
from kvrm_sim.memory import plan_memory
from kvrm_sim.meters import BUCKETS
from kvrm_sim.state import NUM_HISTOGRAMS, PARAMS, SCALARS, TALLY
from kvrm_sim.summary import summarize
from kvrm_sim.totals import Totals
from kvrm_traces import TraceInfo

MS = 1_000_000
S = 1_000_000_000
SPAN_NS = 100 * S

#: A plain run: 1,000 requests that all completed, over 100 s of arrivals and 10 s more.
SCALAR_DEFAULTS = {
    "injected": 1000,
    "completed": 1000,
    "last_arrival_ns": SPAN_NS,
    "last_finish_ns": 110 * S,
    "now_ns": 110 * S,
    "steps": 500,
    "decode_steps": 400,
    "mixed_steps": 100,
    "delivered_tokens": 50_000,
    "steady_tokens": 40_000,
    "steady_finishes": 900,
    "peak_allocated_blocks": 1 << 30,
}


def bucket_indices(values_ns: Sequence[int] | np.ndarray) -> np.ndarray:
    """The bucket of each time: the head of its float64 form."""
    bits = np.maximum(np.asarray(values_ns), 1).astype(np.float64).view(np.int64)
    return np.minimum((bits >> 42) - (1023 << 10), BUCKETS - 1)


def tallied(times_ns: Mapping[int, Sequence[int] | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """TALLY [NUM] and int64 [NUM, BUCKETS] of the times of each histogram."""
    tallies = np.zeros(NUM_HISTOGRAMS, TALLY)
    histograms = np.zeros((NUM_HISTOGRAMS, BUCKETS), np.int64)
    for which, values in times_ns.items():
        array = np.asarray(values, np.int64)
        if len(array):
            np.add.at(histograms[which], bucket_indices(array), 1)
            tallies[which] = (len(array), array.min(), array.max(), float(array.sum()))
    return tallies, histograms


def make_config(policy: str = "kv-rm", prefill: str = "chunked", **settings: Any) -> ReplicaConfig:
    config = ReplicaConfig.from_names(policy, "llama-3-8b", "a100-80gb-sxm", **settings)
    return (
        config.override({"policy.schedule.prefill": prefill}) if prefill != config.policy.schedule.prefill else config
    )


def make_trace(rows: int = 1000, **fields: Any) -> TraceInfo:
    values = {"name": "made-up", "source": "made-up", "format": "test", "unit": "ns", "span_ns": SPAN_NS, "sha256": "0"}
    return TraceInfo(**{**values, "rows": rows, **fields})


def summary_of(
    times_ns: Mapping[int, Sequence[int] | np.ndarray] | None = None,
    *,
    config: ReplicaConfig | None = None,
    trace: TraceInfo | None = None,
    waiting_means: Sequence[float] = (0.0,) * 10,
    steady_until_ns: int = SPAN_NS,
    burstiness: Mapping[str, float | None] | None = None,
    **scalars: float,
) -> dict[str, Any]:
    """Summarise a plain run with other times and scalars, by name. ``waiting_means``: requests waiting, by tenth."""
    config = config or make_config()
    plan = plan_memory(config)
    params = np.zeros(1, PARAMS)
    params["block_size"] = config.policy.pager.block_size_tokens
    params["pool_blocks"] = plan.pool_blocks
    params["steady_from_ns"] = steady_until_ns // 10
    params["steady_until_ns"] = steady_until_ns
    params["backlog_tenth_ns"] = SPAN_NS // 10
    record = np.zeros(1, SCALARS)
    for name, value in {**SCALAR_DEFAULTS, **scalars}.items():
        record[name] = value
    tallies, histograms = tallied(times_ns or {})
    waiting_tenths = np.asarray(waiting_means, np.float64) * (SPAN_NS // 10)
    about = About(
        config=config,
        plans=((plan, 1),),
        trace=trace or make_trace(rows=int(record[0].injected)),
        wall_s=0.5,
        peak_rss_bytes=1 << 28,
    )
    return summarize(Totals(params, record, tallies, histograms, waiting_tenths), about, burstiness=burstiness)

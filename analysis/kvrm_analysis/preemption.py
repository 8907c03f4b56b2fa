"""Preemption beside published reports: a watermark for admissions, and filling the pool against reserving it.

Both reports are of other models, devices and requests: what is compared is the shape. Requests are those of the
built-in trace ``sharegpt-like``, opt-13b on an A100 with 40 GB, whose pool holds some 25 of them at their end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import FAINT, colour, dash, look
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import run
from kvrm_traces import open_trace

TRACE, MODEL, HARDWARE, POLICY = "sharegpt-like", "opt-13b", "a100-40gb", "graph-paged"
ROWS = 3000
#: Arrivals four times as fast as the built-in trace: more than can be served, so that requests wait all along.
SPEEDUP = 4.0

#: Watermark: preemptions and output tokens/s of https://github.com/vllm-project/vllm/pull/44594.
PUBLISHED_WATERMARKS = {
    0.0: (1065, 11582),
    0.02: (400, 12134),
    0.05: (187, 12167),
    0.1: (168, 11835),
    0.15: (168, 11635),
}

#: What "no eviction" is here: each request reserves exactly what it will write, in one run, read at the same speed.
RESERVES = {"reserve.mode": "oracle", "pager.placement": "contiguous", "read.what": "live"}
SCHEMES: dict[str, dict[str, str]] = {"fills the pool": {}, "reserves": RESERVES}
#: Speed-ups of the trace: the pool never fills up, or half again as much comes as can be served by reserving.
LOADS = {"not over-subscribed": 0.5, "over-subscribed": 1.5}


def watermark_sweep(seed: int = 0) -> pd.DataFrame:
    """Preemptions and output tokens/s by watermark, beside the published ones; one row a watermark."""
    trace = open_trace(TRACE, rows=ROWS, seed=seed).speedup(SPEEDUP)
    rows = []
    for watermark, (preemptions, rate) in PUBLISHED_WATERMARKS.items():
        summary = run(trace, _config({"schedule.watermark": watermark})).summary
        rows.append(
            {
                "watermark": watermark,
                "preemptions": summary["preemptions"],
                "output_tokens_per_s": summary["output_tokens_per_s"]["whole"],
                "published_preemptions": preemptions,
                "published_output_tokens_per_s": rate,
            }
        )
    return pd.DataFrame(rows).set_index("watermark")


def over_subscription() -> pd.DataFrame:
    """ "Maximum utilisation" (take blocks as they are written) against "no eviction" (reserve), at two loads.

    One row a load and scheme: preemptions, output tokens/s, median TTFT and p99 of TPOT, both in seconds.
    """
    rows = []
    for load, speedup in LOADS.items():
        trace = open_trace(TRACE, rows=ROWS).speedup(speedup)
        for scheme, overrides in SCHEMES.items():
            summary = run(trace, _alike(overrides)).summary
            rows.append(
                {
                    "load": load,
                    "scheme": scheme,
                    "preemptions": summary["preemptions"],
                    "output_tokens_per_s": summary["output_tokens_per_s"]["whole"],
                    "ttft_p50_s": summary["ttft_s"]["p50"],
                    "tpot_p99_s": summary["tpot_exclusive_s"]["p99"],
                }
            )
    return pd.DataFrame(rows).set_index(["load", "scheme"])


def _alike(overrides: Mapping[str, str]) -> ReplicaConfig:
    """The device reads pages as fast as contiguous KV: schemes differ in what they reserve, and in nothing else."""
    config = _config(overrides)
    contiguous = config.hardware.attention_contiguous_efficiency
    hardware = config.hardware.model_copy(update={"attention_table_efficiency": contiguous})
    return config.model_copy(update={"hardware": hardware})


def _config(overrides: Mapping[str, str | float]) -> ReplicaConfig:
    config = ReplicaConfig.from_names(POLICY, MODEL, HARDWARE)
    return config.override({f"policy.{key}": value for key, value in overrides.items()})


def draw_watermark(sweep: pd.DataFrame) -> Figure:
    """Preemptions and throughput by watermark, each relative to watermark 0, ours beside the published ones."""
    with look():
        page = Page(7.4, 2.85)
        page.text(0.1, 0.08, "A watermark for admissions: ours (uncalibrated) beside a published sweep", fontsize=9.5)
        left = page.axes(0.62, 0.82, 2.9, 1.45)
        right = page.axes(4.3, 0.82, 2.9, 1.45)
        _draw_relative(left, sweep, "preemptions", "Preemptions")
        left.set_ylim(bottom=0)
        _draw_relative(right, sweep, "output_tokens_per_s", "Output tokens/s")
        page.legend(left, 0.32, 2)
    return page.figure


def _draw_relative(axes: Axes, sweep: pd.DataFrame, column: str, title: str) -> None:
    at = np.asarray(sweep.index, np.float64) * 100
    for index, (name, label) in enumerate(((column, "kvrm"), (f"published_{column}", "vllm, pull request 44594"))):
        values = np.asarray(sweep[name], np.float64)
        axes.plot(
            at, values / values[0], clip_on=False, marker="o", markersize=3.5, color=colour(index + 1), label=label
        )
    axes.axhline(1.0, color=FAINT, linewidth=0.8, linestyle=dash(1))
    axes.set_xticks(at)
    axes.set_title(title)
    axes.set_ylabel("relative to no watermark")
    axes.set_xlabel("watermark, % of the pool")

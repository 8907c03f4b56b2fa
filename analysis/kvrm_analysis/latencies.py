"""Latencies of single requests, and their distribution in as many points as a figure can show."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvrm_analysis.drawing.series import Floats, numbers
from kvrm_sim.meters import bucket_ns


class Latency(NamedTuple):
    """A metric of requests: its key in the summary (``ttft_s``), and what people call it."""

    key: str
    title: str


#: In the order in which a request meets them (docs/metrics.md defines each).
LATENCIES = (
    Latency("queue_s", "Wait for admission"),
    Latency("ttft_s", "Wait for the first token (TTFT)"),
    Latency("tpot_exclusive_s", "Time per output token (TPOT)"),
    Latency("e2e_s", "Arrival to last token (E2E)"),
)
#: Points of a distribution that a figure shows apart.
POINTS = 400


class Cdf(NamedTuple):
    """Share of ``n`` values that are at most ``value``: float64 [points] each, both rising."""

    value: Floats
    share: Floats
    n: int


def request_latencies_s(requests: pa.Table, key: str) -> Floats:
    """One metric of every request that has it, seconds, in the order of the table."""
    values = latencies_s(requests, key)
    return values[~np.isnan(values)]


def latencies_s(requests: pa.Table, key: str) -> Floats:
    """One metric of every request, seconds, in the order of the table, as docs/metrics.md defines it; NaN without."""
    arrival, first, finish = (numbers(requests, f"{name}_ns") for name in ("arrival", "first_token", "finish"))
    tokens = numbers(requests, "delivered_tokens")
    several = np.where(tokens > 1, tokens, np.nan)
    found = {
        "queue_s": numbers(requests, "admitted_ns") - arrival,
        "ttft_s": first - arrival,
        "tpot_exclusive_s": (finish - first) / (several - 1),
        "tpot_inclusive_s": (finish - arrival) / several,
        "e2e_s": finish - arrival,
        "normalized_latency_s": (finish - arrival) / np.where(tokens > 0, tokens, np.nan),
    }[key]
    return np.asarray(found / 1e9, np.float64)


def cdf_of(values: Floats, points: int = POINTS) -> Cdf:
    """The distribution of values: every one where they are few, else at evenly spaced ranks and towards the tail."""
    ordered = np.sort(values)
    n = len(ordered)
    if n <= points:
        return Cdf(ordered, np.arange(1, n + 1) / max(n, 1), n)
    body = np.linspace(0, n - 1, points // 2)
    tail = n - np.geomspace(1, n, points // 2)
    at = np.unique(np.concatenate([body, tail]).round().astype(np.int64))
    return Cdf(ordered[at], (at + 1) / n, n)


def cdf_of_counts(counts: NDArray[np.int64]) -> Cdf:
    """The distribution of a run's histogram of times (int64 [meters.BUCKETS]), in seconds."""
    filled = np.flatnonzero(counts)
    value = np.array([bucket_ns(int(at)) for at in filled]) / 1e9
    total = int(counts.sum())
    return Cdf(value, np.cumsum(counts[filled]) / max(total, 1), total)

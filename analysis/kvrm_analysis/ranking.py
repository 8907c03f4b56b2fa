"""Who was faster, and when that may not be said: among runs that kept up and served the same requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: What is ranked, lowest first: (metric of the summary, statistic).
RANKED = (("ttft_s", "p50"), ("ttft_s", "p99"), ("itl_s", "p50"), ("itl_s", "p99"), ("e2e_s", "p50"), ("e2e_s", "p99"))


def unranked_because(run: dict[str, Any], runs: Sequence[dict[str, Any]]) -> str | None:
    """Why a run's latencies are not ranked beside the others'; None when they are.

    An overloaded run's latencies grow with the trace's length; one that served fewer requests has lost the slowest.
    """
    if run["overloaded"]:
        return "overloaded"
    if _served(run) < max(_served(other) for other in runs):
        return "served fewer requests"
    if run["trace"]["sha256"] != runs[0]["trace"]["sha256"] or run["trace"]["rows"] != runs[0]["trace"]["rows"]:
        return "another trace"
    return None


def ranks(runs: Sequence[dict[str, Any]], metric: str, statistic: str) -> list[int | None]:
    """1 for the lowest value, equal values sharing a rank; None for what is not ranked, and when fewer than two are."""
    values = [run[metric][statistic] if unranked_because(run, runs) is None else None for run in runs]
    ranked = sorted(value for value in values if value is not None)
    if len(ranked) < 2:
        return [None] * len(runs)
    return [None if value is None else ranked.index(value) + 1 for value in values]


def _served(run: dict[str, Any]) -> int:
    return int(run["counts"]["completed"] + run["counts"]["truncated"])

"""Goodput: requests that met every part of a service-level objective, of those injected and of those completed.

A request that was rejected, cut short or not finished did not meet it. The two shares differ exactly by what was
dropped: a policy that rejects its slow requests looks good by completed, and not by injected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvrm_sim.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Upper bounds in seconds; None: not asked for. TPOT is the exclusive one; a one-token output has none to miss."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.ttft_s, self.tpot_s, self.e2e_s) if value is not None]
        if not given or any(not value > 0 for value in given):
            raise InputError(f"{self}: an objective needs at least one bound, each above 0 seconds")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """``good`` requests of ``injected`` and of ``completed``; shares are None of nothing; per second of the span."""

    good: int
    injected: int
    completed: int
    by_injected: float | None
    by_completed: float | None
    requests_per_s: float | None


def goodput(requests: pa.Table, objective: Objective) -> Goodput:
    """Goodput of the rows of requests.parquet. The span is from the first arrival to the last finish."""
    done = requests.filter(pc.equal(requests["outcome"].cast(pa.string()), "completed"))
    arrival, first, finish = (_numbers(done, name) for name in ("arrival_ns", "first_token_ns", "finish_ns"))
    good = np.ones(done.num_rows, bool)
    if objective.ttft_s is not None:
        good &= first - arrival <= objective.ttft_s * 1e9
    if objective.e2e_s is not None:
        good &= finish - arrival <= objective.e2e_s * 1e9
    if objective.tpot_s is not None:
        gaps = _numbers(done, "delivered_tokens") - 1
        good &= finish - first <= objective.tpot_s * 1e9 * gaps
    count, injected, completed = int(good.sum()), requests.num_rows, done.num_rows
    span_ns = int(finish.max() - pc.min(requests["arrival_ns"]).as_py()) if completed else 0
    return Goodput(
        good=count,
        injected=injected,
        completed=completed,
        by_injected=count / injected if injected else None,
        by_completed=count / completed if completed else None,
        requests_per_s=count / span_ns * 1e9 if span_ns else None,
    )


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table[name].to_numpy(), np.int64)

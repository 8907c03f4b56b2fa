"""Goodput by injected and by completed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kvrm_analysis.goodput import Objective, goodput
from kvrm_sim.columns import request_table
from kvrm_sim.errors import InputError
from kvrm_sim.state import COMPLETED, NONE, OUT, REJECTED, UNFINISHED
from tests.sim.run_arrays import MS, S


def four_requests() -> pa.Table:
    """TTFT 1 s and TPOT 50 ms; TTFT 3 s, one token; rejected; unfinished."""
    out = np.zeros(4, OUT)
    out["outcome"] = [COMPLETED, COMPLETED, REJECTED, UNFINISHED]
    out["arrival_ns"] = [0, S, 2 * S, 3 * S]
    out["first_token_ns"] = [S, 4 * S, NONE, 4 * S]
    out["finish_ns"] = [1500 * MS, 4 * S, NONE, NONE]
    out["delivered"] = [11, 1, 0, 5]
    return request_table(out)


@pytest.mark.parametrize(
    ("objective", "good"),
    [
        (Objective(ttft_s=1), 1),
        (Objective(ttft_s=3), 2),
        (Objective(tpot_s=0.05), 2),  # a one-token output has no TPOT to miss
        (Objective(tpot_s=0.049), 1),
        (Objective(e2e_s=1.4), 0),
        (Objective(ttft_s=3, tpot_s=0.05, e2e_s=2), 1),
    ],
)
def test_only_completed_requests_that_meet_every_bound_are_good(objective: Objective, good: int) -> None:
    """G12: shares of what was injected and of what was completed differ by what was dropped."""
    found = goodput(four_requests(), objective)
    assert (found.good, found.injected, found.completed) == (good, 4, 2)
    assert (found.by_injected, found.by_completed) == (good / 4, good / 2)
    assert found.requests_per_s == good / 4


def test_nothing_completed_is_no_share_of_completed() -> None:
    found = goodput(four_requests().slice(2), Objective(ttft_s=1))
    assert (found.by_injected, found.by_completed, found.requests_per_s) == (0.0, None, None)


@pytest.mark.parametrize("bounds", [{}, {"ttft_s": 0.0}, {"tpot_s": float("nan")}])
def test_an_objective_without_a_bound_is_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(InputError, match="at least one bound"):
        Objective(**bounds)

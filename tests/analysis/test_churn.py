"""Placement over time: the series from made-up samples, and the figure of small multiples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.text import Text

from kvrm_analysis.churn import BINS, PLACEMENTS, churn_grid, churn_of, draw_churn, run_blocks_mean
from kvrm_analysis.drawing.style import look
from kvrm_sim.columns import pool_table, step_table
from kvrm_sim.config import load_policy
from kvrm_sim.state import POOL_SAMPLES, RUN_CLASSES, WINDOWS
from tests.sim.run_arrays import S

POOL_BLOCKS = 1000


@dataclass(frozen=True)
class Sampled:
    summary: dict[str, Any]
    steps: pa.Table
    pool: pa.Table


def sampled(blocks_a_run: int = 4, span_s: float = BINS) -> Sampled:
    """Two samples in each bin but the last, with 60 and 40 blocks held, and one window of 10 decode steps."""
    pool = np.zeros(2 * (BINS - 1), POOL_SAMPLES)
    pool["time_ns"] = np.arange(len(pool)) * (S * span_s / BINS) // 2
    pool["allocated_blocks"] = np.tile((60, 40), BINS - 1)
    pool["runs"] = pool["allocated_blocks"] // blocks_a_run
    pool["largest_hole_blocks"] = (POOL_BLOCKS - pool["allocated_blocks"]) // 2
    windows = np.zeros(BINS - 1, WINDOWS)
    windows["end_ns"] = (np.arange(BINS - 1) + 0.5) * S * span_s / BINS
    windows["decode_steps"], windows["groups"] = 10, 10 * np.arange(BINS - 1)
    summary = {
        "trace": {"span_s": span_s}, "pool_blocks": POOL_BLOCKS, "policy": "kv-rm", "hardware": "h200",
        "calibrated": False,
    }  # fmt: skip
    return Sampled(summary, step_table(windows), pool_table(pool, np.zeros((len(pool), RUN_CLASSES), np.int64)))


def test_a_bin_is_the_mean_over_what_it_holds_and_absent_where_it_holds_nothing() -> None:
    run = sampled()
    found = churn_of(run, churn_grid(run))
    assert found.run_blocks[:-1] == pytest.approx(4.0)
    assert found.groups_a_step[:-1].tolist() == list(range(BINS - 1))
    assert found.largest_hole_share[:-1] == pytest.approx(50.0)
    for series in (found.run_blocks, found.groups_a_step, found.largest_hole_share):
        assert np.isnan(series[-1])
    assert run_blocks_mean(run) == 4.0


def test_every_placement_is_one_that_the_policy_takes() -> None:
    policies = [load_policy("kv-rm").override(overrides) for overrides in PLACEMENTS.values()]
    assert {policy.pager.placement for policy in policies} == {
        "lifo", "fifo", "lowest", "contiguous", "extent", "buddy"
    }  # fmt: skip
    assert len({(policy.pager.placement, policy.pager.release_order) for policy in policies}) == len(PLACEMENTS)


def test_a_line_a_placement_in_every_panel_and_the_same_bytes_every_time(tmp_path: Path) -> None:
    columns = {
        "hours": {name: sampled(1 + at, span_s=40_000) for at, name in enumerate(PLACEMENTS)},
        "minutes": {name: sampled(1 + at, span_s=600) for at, name in enumerate(PLACEMENTS)},
    }
    figure = draw_churn(columns)
    assert len(figure.axes) == 6
    for axes in figure.axes:
        assert [line.get_label() for line in axes.get_lines()] == list(PLACEMENTS)
    text = " ".join(found.get_text() for found in figure.findobj(Text))
    for expected in ("kv-rm", "h200", "uncalibrated", "first arrival, h", "first arrival, min", *PLACEMENTS, *columns):
        assert expected in text
    with look():
        for name in ("a", "b"):
            draw_churn(columns).savefig(tmp_path / f"{name}.png", metadata={"Software": None})
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()

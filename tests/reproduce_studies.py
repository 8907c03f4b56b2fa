"""The tables and figures of docs/capacity.md and docs/tuning.md, for ``make reproduce``."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import kvrm
from kvrm_analysis.drawing.page import Page
from kvrm_analysis.drawing.style import colour, look
from kvrm_analysis.engines.engines import SerialEngine
from kvrm_analysis.engines.replicas import replica_config
from kvrm_analysis.searches.sensitivity_figure import draw_sensitivity as drawn
from kvrm_analysis.searches.tune_answer import Tuned
from kvrm_sim.engine import run
from kvrm_traces import Trace
from tests.reproduce_tables import REPO, markdown

CAPACITY = REPO / "docs" / "capacity.md"
TUNING = REPO / "docs" / "tuning.md"
STUDY = REPO / "docs" / "studies" / "most-requests.toml"

SLO, BOUND_S = "ttft_p99 <= 2s", 2.0
ROWS, REPEATS, FRESH, STEP = 1000, 20, range(1000, 1100), 1.03
SEEDS = range(10)
SAMPLERS = {"tpe": "kvrm tune", "random": "random search"}


@cache
def _trace(seed: int) -> Trace:
    return kvrm.open_trace("azure-conv-like", rows=ROWS, seed=seed)


def capacity(out: Path) -> str:
    """Capacities of two policies, beside a grid in steps of 3% of 100 realisations that the search has not seen."""
    del out
    policies = ["graph-paged", "kv-rm"]
    found = kvrm.capacity(_trace, policies, slo=SLO, repeats=REPEATS)
    rows = []
    for each in found.found:
        assert each.at is not None
        assert each.interval is not None
        low, high = (float(end or 0) for end in each.interval)
        config = replica_config(each.policy, {})

        def meets(seed: int, rate: float, config: object = config) -> bool:
            summary = run(_trace(seed).at_rate(rate), config, keep=False).summary  # type: ignore[arg-type]
            return not summary["overloaded"] and summary["ttft_s"]["p99"] <= BOUND_S

        grid = [low * 0.95 * STEP**at for at in range(200) if low * 0.95 * STEP**at <= high * 1.05]
        shares = [np.mean([meets(seed, rate) for seed in FRESH]) for rate in grid]
        half = max(rate for rate, share in zip(grid, shares, strict=True) if share >= 0.5)
        runs = sum(len(probes) for probes in each.probes)
        rows.append(
            [
                each.policy,
                f"{each.at:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{half:.2f}",
                str(runs),
                str(len(grid) * len(FRESH)),
            ]
        )
    header = [
        "policy",
        "capacity, requests/s",
        f"{found.found[0].coverage:.1%} interval",
        "grid",
        "runs of the search",
        "of the grid",
    ]
    return markdown(header, rows)


@cache
def _searches(sampler: str) -> tuple[Tuned, ...]:
    with SerialEngine() as engine:
        return tuple(kvrm.tune(STUDY, engine=engine, sampler=sampler, seed=seed) for seed in SEEDS)


def _value(found: Tuned) -> float:
    assert found.best is not None
    assert found.best.values is not None
    return found.best.values[0]


def tuning(out: Path) -> str:
    """The best of 64 cells, by the search and at random, over ten seeds."""
    del out
    values = {name: [_value(found) for found in _searches(name)] for name in SAMPLERS}
    rows = [
        [title, *(f"{value:.2f}" for value in values[name]), f"{np.mean(values[name]):.2f}"]
        for name, title in SAMPLERS.items()
    ]
    return markdown(["requests/s", *(f"seed {seed}" for seed in SEEDS), "mean"], rows)


def draw_tuning(out: Path) -> Figure:
    """The best so far over the trials: mean and range over the seeds."""
    del out
    with look():
        page = Page(7.4, 3.5)
        axes = page.axes(0.7, 0.45, 6.4, 2.5)
        for at, (name, title) in enumerate(SAMPLERS.items()):
            curves = np.array([_curve(found) for found in _searches(name)])
            axes.plot(curves.mean(axis=0), color=colour(1 - at), label=title, drawstyle="steps-post")
            trials = np.arange(curves.shape[1])
            axes.fill_between(
                trials,
                curves.min(axis=0),
                curves.max(axis=0),
                color=colour(1 - at),
                alpha=0.15,
                step="post",
                linewidth=0,
            )
        axes.set_xlim(0, curves.shape[1] - 1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("cells")
        axes.set_ylabel("requests/s, the best so far")
        axes.legend(loc="lower right")
        page.text(
            0.1,
            0.09,
            "most-requests: mean over ten seeds, and least to most (0: none meets the objective yet)",
            fontsize=9.5,
        )
    return page.figure


def _curve(found: Tuned) -> list[float]:
    best, curve = 0.0, []
    for trial in found.trials:
        if trial.feasible and trial.values is not None:
            best = max(best, trial.values[0])
        curve.append(best)
    return curve


def draw_sensitivity(out: Path) -> Figure:
    """Sobol indices of the same study."""
    del out
    return drawn(kvrm.sensitivity(STUDY))

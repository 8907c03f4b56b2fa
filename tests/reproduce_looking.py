"""The figures and texts of docs/figures.md: what plot, diff and explain show of three runs and of a small study."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure

import kvrm
from kvrm_analysis.difference_text import render as difference_text
from kvrm_analysis.life_text import render as life_text
from kvrm_analysis.runs import open_runs
from tests.reproduce_tables import HARDWARE

POLICIES = ("static", "graph-paged", "kv-rm")
#: The burst that the picture of the pool shows, seconds.
BURST_S = (1500.0, 1800.0)
SLO = ("ttft_p99 <= 2s", "itl_p99 <= 100ms")

#: Kinds of ``kvrm plot`` that are drawn of the runs; the picture of the pool by owner has a name of its own.
OF_RUNS = ("latency", "gaps", "time", "memory", "pool", "transfers", "bytes", "parts", "padding")
OF_A_STUDY = ("heatmap", "pareto", "tornado")


@cache
def burst_runs(folder: Path) -> tuple[Path, ...]:
    """Bursts of chat at half the rate, under three policies: seconds to make."""
    trace = kvrm.open_trace("chat-burst").speedup(0.5)
    done = kvrm.compare(trace, POLICIES, hardware=HARDWARE, out=folder)
    return tuple(result.folder for result in done.results if result.folder is not None)


@cache
def study(folder: Path) -> Path:
    """A sweep of 72 cells, a tenth of a second each: policies, block sizes, loads, two seeds."""
    axes = {
        "policy": list(POLICIES),
        "policy.pager.block_size_tokens": [8, 16, 32, 64],
        "trace.speedup": [0.5, 1.0, 2.0],
    }
    base = {"trace": "chat-burst", "trace.limit": 300, "hardware": HARDWARE, "memory_utilisation": 0.4}
    kvrm.sweep({"name": "bursts", "repeats": 2, "base": base, "axes": axes}, out=folder)
    return folder


def _figure(plots: kvrm.Plots, kind: str) -> Figure:
    figure: Figure = plots.figures[kind]
    return figure


def drawing(kind: str) -> Callable[[Path], Figure]:
    """What draws a figure, given the folder of its name."""

    def draw(out: Path) -> Figure:
        if kind in OF_A_STUDY:
            return _figure(kvrm.plot([study(out.parent / "study")], [kind]), kind)
        runs = burst_runs(out.parent / "bursts")
        if kind == "owners":
            owners = kvrm.plot(runs[1:], ["pool"], window_s=(1500.0, 1620.0), colour_by="owner")
            return _figure(owners, "pool")
        slo = SLO if kind in ("latency", "gaps") else None
        return _figure(kvrm.plot(runs, [kind], slo=slo, window_s=BURST_S if kind == "pool" else None), kind)

    return draw


def diff(out: Path) -> str:
    """What ``kvrm diff`` prints of two of the runs."""
    _, graph_paged, kv_rm = burst_runs(out.parent / "bursts")
    found = kvrm.diff(graph_paged, kv_rm)
    return _code(difference_text(found).replace(str(out.parent / "bursts"), "runs/bursts"))


def explain(out: Path) -> str:
    """What ``kvrm explain`` prints of the slowest request of one."""
    *_, kv_rm = burst_runs(out.parent / "bursts")
    assert open_runs([kv_rm])[0].name == "kv-rm"
    return _code(life_text(kvrm.explain(kv_rm, slowest="ttft")))


def _code(text: str) -> str:
    """An indented block, its long lines folded."""
    lines = [
        folded
        for line in text.splitlines()
        for folded in (textwrap.wrap(line, 116, subsequent_indent="    ", drop_whitespace=False) or [""])
    ]
    return "\n".join(f"    {line}".rstrip() for line in lines)

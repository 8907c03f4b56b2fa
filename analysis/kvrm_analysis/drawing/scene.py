"""The runs of one figure, on their common time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvrm_analysis.compare import heading
from kvrm_analysis.drawing.series import Floats, Grid, arrivals_per_bin, bursts, grid_of, numbers
from kvrm_analysis.ranking import unranked_because
from kvrm_analysis.runs import RunLike, labels, summaries

#: A run that goes on for longer than this many arrival spans is cut off in the figure, which says so.
LONGEST_SPANS = 1.5
#: Above these the axis is in minutes, then in hours.
MINUTES_FROM_S, HOURS_FROM_S = 600, 6 * 3600
_SECONDS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Scene:
    """``arrivals``: requests in each bin of ``grid``; ``bursts``: stretches [first, last) of its bins."""

    runs: Sequence[RunLike]
    found: Sequence[dict[str, Any]]
    names: Sequence[str]
    ends_s: Sequence[float]
    grid: Grid
    arrivals: Floats
    bursts: Sequence[tuple[int, int]]

    @property
    def unit(self) -> str:
        """Unit of the time axis."""
        return "h" if self.grid.end_s > HOURS_FROM_S else "min" if self.grid.end_s > MINUTES_FROM_S else "s"

    def time(self, seconds: Floats) -> Floats:
        """Seconds in the unit of the time axis."""
        return seconds / _SECONDS[self.unit]

    def clock(self, seconds: float) -> str:
        """A time for people."""
        digits = {"s": ".3g", "min": ".0f", "h": ".1f"}[self.unit]
        return f"{seconds / _SECONDS[self.unit]:{digits}} {self.unit}"


def scene_of(runs: Sequence[RunLike], names: Sequence[str] | None = None) -> Scene:
    """Put runs of one trace on one axis: from the first arrival to the last end, or 1.5 arrival spans.

    ``names``: what to call the runs; without, ``runs.labels``.
    """
    found = summaries(runs)
    span_s = max(float(run["trace"]["span_s"]) for run in found)
    ends_s = [float(numbers(run.steps, "end_ns").max(initial=0.0)) / 1e9 for run in runs]
    end_s = max(min(max(ends_s), LONGEST_SPANS * span_s) if span_s else max(ends_s), 1e-3)
    grid = grid_of(end_s)
    whole = max(range(len(runs)), key=lambda at: int(found[at]["counts"]["injected"]))
    arrivals = arrivals_per_bin(runs[whole], grid)
    span_bins = min(grid.count, int(np.ceil(span_s / grid.width_s)))
    return Scene(runs, found, list(names or labels(found)), ends_s, grid, arrivals, bursts(arrivals, span_bins))


def title(scene: Scene) -> str:
    """Trace, size, model, device, and whether the cost was measured."""
    return heading(scene.found)


def caption(scene: Scene) -> str:
    """On how many requests the figure rests, how it was made, and how far it may be believed."""
    counts = [summary["counts"] for summary in scene.found]
    if all(count == counts[0] for count in counts):
        parts = [f"Each policy: {scene.found[0]['audit']}; {scene.found[0]['itl_s']['n']:,} gaps between tokens."]
    else:
        parts = [f"{name}: {run['audit']}." for name, run in zip(scene.names, scene.found, strict=True)]
    parts.append(f"Time is in bins of {scene.grid.width_s:g}\N{NO-BREAK SPACE}s.")
    if scene.bursts:
        parts.append("Shaded: bins with at least twice the mean number of arrivals.")
    parts += _not_ranked(scene)
    cut = [
        f"{name} at {scene.clock(end)}"
        for name, end in zip(scene.names, scene.ends_s, strict=True)
        if end > scene.grid.end_s
    ]
    if cut:
        parts.append(f"Beyond the axis ends: {', '.join(cut)}.")
    if not all(run["calibrated"] for run in scene.found):
        parts.append("Uncalibrated: times follow from datasheet, published and assumed coefficients, none measured.")
    return " ".join(parts)


def _not_ranked(scene: Scene) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for name, run in zip(scene.names, scene.found, strict=True):
        reason = unranked_because(run, scene.found)
        if reason:
            reasons.setdefault(reason, []).append(name)
    return [f"No latency ranking ({reason}): {', '.join(names)}." for reason, names in reasons.items()]

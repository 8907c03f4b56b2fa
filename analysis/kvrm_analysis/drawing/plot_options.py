"""What a reader may ask of a figure, and the words that every figure has: what was run, on how much it rests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from kvrm_analysis.compare import heading
from kvrm_analysis.drawing.sheet import PAGE
from kvrm_analysis.ranking import unranked_because
from kvrm_analysis.runs import NamedRun
from kvrm_analysis.searches.slo import Slo, Term
from kvrm_sim.errors import InputError
from kvrm_traces import Trace

#: How the blocks of a pool are coloured: each request by a colour of its own, or each block by its state.
ColourBy: TypeAlias = Literal["state", "owner"]

#: Metrics of which a distribution is drawn, and so a bound.
BOUNDED = ("queue_s", "ttft_s", "itl_s", "tpot_exclusive_s", "e2e_s")


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """``slo``: bounds on figures of ``BOUNDED`` metrics, such as ``ttft_p99 <= 2s``. ``window_s``: the stretch that a
    picture of the pool shows, None: the whole run. ``traces``: of runs whose run.toml does not say enough, by name.
    ``replica``: of a cluster's run.
    """

    width: float = PAGE
    slo: Slo | None = None
    window_s: tuple[float, float | None] | None = None
    colour_by: ColourBy = "state"
    traces: Mapping[str, Trace] = field(default_factory=dict)
    replica: int | None = None
    progress: Callable[[str, float], None] | None = None

    def __post_init__(self) -> None:
        for term in self.slo.terms if self.slo is not None else ():
            if term.figure.path.partition(".")[0] not in BOUNDED:
                raise InputError(
                    f"--slo: {term}: no distribution shows it; there are bounds on queue, ttft, itl, tpot_exclusive "
                    "and e2e, e.g. 'ttft_p99 <= 2s'"
                )

    def bounds(self, metric: str) -> list[Term]:
        """The bounds on a metric of the summary, such as ``ttft_s``."""
        terms = self.slo.terms if self.slo is not None else ()
        return [term for term in terms if term.figure.path.partition(".")[0] == metric]

    def told(self, run: NamedRun) -> Callable[[float], None] | None:
        """Where to tell how far a run that is simulated again has come."""
        if self.progress is None:
            return None
        progress = self.progress
        return lambda share: progress(run.name, share)


def title_of(runs: Sequence[NamedRun]) -> str:
    """Trace, size, model, device, and whether the cost was measured."""
    return heading([run.summary for run in runs])


def status_of(runs: Sequence[NamedRun]) -> str:
    """How far the times of these runs may be believed, as a sentence for the caption."""
    if all(run.summary["calibrated"] for run in runs):
        return "Calibrated: the device's coefficients were measured."
    return "Uncalibrated: times follow from datasheet, published and assumed coefficients, none measured."


def audits_of(runs: Sequence[NamedRun]) -> str:
    """How many requests each run served, once where they are the same."""
    audits = [str(run.summary["audit"]) for run in runs]
    if len(set(audits)) == 1:
        return f"{'Each run: ' if len(runs) > 1 else ''}{audits[0]}."
    return " ".join(f"{run.name}: {audit}." for run, audit in zip(runs, audits, strict=True))


def not_ranked(runs: Sequence[NamedRun]) -> str:
    """Which latencies are in no ranking, and why; empty where all are."""
    found: list[dict[str, Any]] = [run.summary for run in runs]
    reasons: dict[str, list[str]] = {}
    for run in runs:
        reason = unranked_because(run.summary, found)
        if reason:
            reasons.setdefault(reason, []).append(run.name)
    return " ".join(f"No latency ranking ({reason}): {', '.join(names)}." for reason, names in reasons.items())

"""`trace fit`: a generator that resembles a trace, and how well it does, by two-sample distances.

Arrivals: Poisson, gamma-renewal, or a two-state modulated Poisson process, whichever is nearest in CV of the gaps and
Fano factors; of a trace of two days or more, under the hours of its day. Lengths: the trace's own quantiles. What is
left out: prompt and output are drawn independently of one another and of the arrivals, and nothing of sessions and
prefixes is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from kvrm_traces.arrow import int64_values
from kvrm_traces.burstiness import FANO_WINDOWS_S, Gaps, WindowCounts
from kvrm_traces.errors import TraceError
from kvrm_traces.schema import REQUIRED
from kvrm_traces.synth.builtin import generated
from kvrm_traces.synth.daily import DAY_NS
from kvrm_traces.synth.mmpp import fitted_mmpp
from kvrm_traces.synth.preset import parse_preset
from kvrm_traces.trace import Trace

#: Probabilities at which a length's quantiles are kept.
PROBABILITIES = (
    0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7,
    0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99, 0.995, 0.999, 1,
)  # fmt: skip

#: Requests that are compared, of the trace and of the generator; and the fewest that can be fitted.
COMPARED = 200_000
FEWEST = 100
HOURS = 24
_DAYS_FOR_HOURS = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distance:
    """Largest difference between two empirical distribution functions (Kolmogorov and Smirnov). ``chance``: what two
    samples of one distribution exceed once in twenty times.
    """

    distance: float
    chance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """``toml``: the generator, as ``trace synth`` takes it. ``distances``: of gaps, prompt_tokens, output_tokens and
    arrivals a second. ``measured``, ``generated``: rate, CV of gaps, Fano factors of both. ``correlation``: between the
    ranks of prompt and output of the trace, which the generator loses.
    """

    toml: str
    process: str
    rows: int
    distances: dict[str, Distance]
    measured: dict[str, float | None]
    generated: dict[str, float | None]
    correlation: float

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return dataclasses.asdict(self)

    def to_text(self) -> str:
        """A table for a terminal."""
        lines = [
            f"process         {self.process}",
            f"requests        {self.rows}",
            "",
            f"{'':16}{'trace':>12}{'generator':>12}",
        ]
        for name, value in self.measured.items():
            ours = self.generated[name]
            lines.append(
                f"{name:16}" + "".join("-".rjust(12) if one is None else f"{one:12.4g}" for one in (value, ours))
            )
        lines += ["", f"{'distance':16}{'KS':>12}{'by chance':>12}"]
        lines += [f"{name:16}{one.distance:12.4f}{one.chance:12.4f}" for name, one in self.distances.items()]
        lines += ["", f"rank correlation of prompt and output {self.correlation:+.3f} (the generator has none)"]
        return "\n".join(lines)


def fit_trace(trace: Trace, *, seed: int = 0) -> Fit:
    """Fit a generator to a trace and compare the two; `seed`: of the generator's sample.

    One pass for arrivals, and one over the first 200,000 requests. Raises TraceError for fewer than 100 requests, or a
    trace that is all at one instant.
    """
    info = trace.info
    if info.rows < FEWEST or info.rate_per_s is None:
        raise TraceError(
            f"{info.source}: has {info.rows} requests over {info.span_s:g} s; {FEWEST} or more can be fitted"
        )
    shares = _hours(trace) if info.span_ns >= _DAYS_FOR_HOURS * DAY_NS else None
    measured = _statistics(_arrivals(trace, shares), info.span_ns)
    sample = _sample(trace.limit(COMPARED))
    tables = _candidates(measured, info.rate_per_s)
    best: tuple[float, str, str, Trace] | None = None
    for process, table in tables.items():
        text = _toml(trace, process, table, shares, sample)
        made = generated(parse_preset(info.name, text, "the fitted generator"), COMPARED, seed, "generator", "fitted")
        off = _off(measured, _statistics(_arrivals(made, shares), made.info.span_ns))
        if best is None or off < 0.9 * best[0]:  # a process with more parameters has to be worth them
            best = (off, process, text, made)
    assert best is not None  # a Poisson process always is a candidate
    _, process, text, made = best
    theirs = _sample(made.limit(sample["prompt_tokens"].size))
    return Fit(
        toml=text,
        process=process + (" under the hours of the day" if shares is not None else ""),
        rows=info.rows,
        distances={name: _distance(sample[name], theirs[name]) for name in sample},
        measured=_statistics(_arrivals(trace, None), info.span_ns),
        generated=_statistics(_arrivals(made, None), made.info.span_ns),
        correlation=_rank_correlation(sample["prompt_tokens"], sample["output_tokens"]),
    )


def _arrivals(trace: Trace, shares: npt.NDArray[np.float64] | None) -> Iterator[npt.NDArray[np.int64]]:
    """Arrivals; with `shares` of the hours, on the clock on which their rate is constant."""
    edges_ns = np.arange(HOURS + 1) * (DAY_NS / HOURS)
    for batch in trace.batches(columns=("arrival_ns",)):
        arrival_ns = int64_values(batch.column(0))
        if shares is None:
            yield arrival_ns
            continue
        work_ns = np.concatenate(([0.0], np.cumsum(shares) / shares.sum())) * DAY_NS
        days, rest_ns = np.divmod(arrival_ns, DAY_NS)
        yield days * DAY_NS + np.rint(np.interp(rest_ns, edges_ns, work_ns)).astype(np.int64)


def _hours(trace: Trace) -> npt.NDArray[np.float64]:
    """Relative rates of the hours of the trace's day, which begins with its first request."""
    counts = np.zeros(HOURS, np.int64)
    for arrival_ns in _arrivals(trace, None):
        counts += np.bincount(arrival_ns % DAY_NS // (DAY_NS // HOURS), minlength=HOURS)
    whole, rest_ns = divmod(trace.info.span_ns, DAY_NS)
    seen = whole + np.clip(rest_ns / (DAY_NS / HOURS) - np.arange(HOURS), 0, 1)  # how often each hour was there
    rates = np.maximum(counts, 0.5) / np.maximum(seen, 0.01)
    return np.asarray(rates / rates.mean(), np.float64)


def _statistics(arrivals: Iterator[npt.NDArray[np.int64]], span_ns: int) -> dict[str, float | None]:
    gaps, windows = Gaps(), {window_s: WindowCounts(window_s * 10**9, span_ns) for window_s in FANO_WINDOWS_S}
    rows = last_ns = 0
    for arrival_ns in arrivals:
        gaps.see(arrival_ns)
        for counts in windows.values():
            counts.see(arrival_ns)
        rows, last_ns = rows + arrival_ns.size, int(arrival_ns[-1])
    rate = (rows - 1) / (last_ns / 1e9) if last_ns else None
    return {"rate_per_s": rate, "gap_cv": gaps.cv()} | {f"fano_{w}s": counts.fano() for w, counts in windows.items()}


def _candidates(measured: dict[str, float | None], rate_per_s: float) -> dict[str, dict[str, Any]]:
    """Tables of the processes that may fit, simplest first."""
    rate = round(rate_per_s, 6) or rate_per_s
    found: dict[str, dict[str, Any]] = {"poisson": {"rate_per_s": rate}}
    cv = measured["gap_cv"]
    if cv is not None and cv > 0:
        found["gamma"] = {"rate_per_s": rate, "cv": round(min(cv, 100.0), 6)}
        fanos = {window_s: measured[f"fano_{window_s}s"] for window_s in FANO_WINDOWS_S}
        process = fitted_mmpp(rate_per_s, cv, {window_s: fano for window_s, fano in fanos.items() if fano is not None})
        if process is not None:
            found["mmpp"] = {
                "rates_per_s": [float(f"{rate:.6g}") for rate in process.rates_per_s],
                "mean_sojourns_s": [float(f"{stay:.6g}") for stay in process.sojourns_s],
            }
    return found


def _off(measured: dict[str, float | None], made: dict[str, float | None]) -> float:
    """Mean of the logarithms by which CV and Fano factors differ."""
    pairs = [(measured[name], made[name]) for name in measured if name != "rate_per_s"]
    ratios = [abs(math.log(ours / theirs)) for ours, theirs in pairs if ours and theirs]
    return sum(ratios) / max(1, len(ratios))


def _toml(
    trace: Trace,
    process: str,
    table: dict[str, Any],
    shares: npt.NDArray[np.float64] | None,
    sample: dict[str, npt.NDArray[np.int64]],
) -> str:
    arrivals = {"process": process, **table}
    if shares is not None:
        arrivals["day_shares"] = [round(max(float(share), 1e-4), 4) for share in shares]
    lengths = {}
    for name in ("prompt_tokens", "output_tokens"):
        tokens = np.rint(np.quantile(sample[name], PROBABILITIES)).astype(int).tolist()
        lengths[name] = {"distribution": "quantiles", "probabilities": list(PROBABILITIES), "tokens": tokens}
    about = {
        "description": f"Like {trace.info.name}",
        "source": f"fitted to {trace.info.name}, sha256 {trace.info.sha256[:16]}"
        + (f" ({trace.transforms})" if trace.transforms else ""),
        "rows": min(trace.info.rows, 2**31 - 1),
    }
    return tomli_w.dumps({**about, "arrivals": arrivals, **lengths})


def _sample(trace: Trace) -> dict[str, npt.NDArray[np.int64]]:
    columns: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in REQUIRED}
    for batch in trace.batches(columns=REQUIRED):
        for name in REQUIRED:
            columns[name].append(int64_values(batch.column(name)))
    arrival_ns, prompt, output = (np.concatenate(columns[name]) for name in REQUIRED)
    second = np.bincount(arrival_ns // 10**9) if arrival_ns[-1] // 10**9 <= 10**8 else np.empty(0, np.int64)
    found = {"gaps": np.diff(arrival_ns), "prompt_tokens": prompt, "output_tokens": output}
    return found | ({"arrivals_a_s": second} if second.size else {})


def _distance(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> Distance:
    ours, theirs = np.sort(ours), np.sort(theirs)
    at = np.concatenate((ours, theirs))
    below = [np.searchsorted(values, at, side="right") / values.size for values in (ours, theirs)]
    chance = 1.36 * math.sqrt((ours.size + theirs.size) / (ours.size * theirs.size))
    return Distance(distance=float(np.abs(below[0] - below[1]).max()), chance=chance)


def _rank_correlation(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> float:
    """Spearman's, ties by their mean rank; 0 where one of them is constant."""
    ranks = []
    for values in (ours, theirs):
        _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[which])
    if any(rank.min() == rank.max() for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])

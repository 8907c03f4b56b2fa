"""The arrival process nearest to a trace's: Poisson, gamma-renewal, or a two-state modulated Poisson process.

Nearest in CV of the gaps and Fano factors; of a trace of two days or more, under the hours of its day.
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
from kvrm_traces.synth.arrivals import CVS, STAYS_ARRIVALS, within
from kvrm_traces.synth.builtin import generated
from kvrm_traces.synth.daily import DAY_NS
from kvrm_traces.synth.mmpp import fitted_mmpp
from kvrm_traces.synth.preset import parse_preset
from kvrm_traces.trace import Trace

#: Arrivals that a candidate is judged by.
JUDGED = 200_000
HOURS = 24
_DAYS_FOR_HOURS = 2.0
#: How much nearer a process with more parameters has to be.
_WORTH = 0.9

_ANY_LENGTH = {"distribution": "constant", "tokens": 1}


@dataclasses.dataclass(frozen=True)
class Process:
    """``table``: as ``[arrivals]`` of a generator's file states it."""

    name: str
    table: dict[str, Any]


def fitted_process(trace: Trace, seed: int) -> Process:
    """The nearest one. The trace has a rate; `seed`: of the samples by which candidates are judged."""
    rate_per_s = trace.info.rate_per_s
    assert rate_per_s is not None  # as callers see to
    shares = _hours(trace) if trace.info.span_ns >= _DAYS_FOR_HOURS * DAY_NS else None
    measured = statistics(_on_even_clock(trace, shares), trace.info.span_ns)
    hours = {} if shares is None else {"day_shares": [round(max(float(share), 1e-4), 4) for share in shares]}
    best: tuple[float, Process] | None = None
    for name, parameters in _candidates(measured, rate_per_s).items():
        table = {"process": name, **parameters, **hours}
        text = tomli_w.dumps({"rows": 1, "arrivals": table, "prompt_tokens": _ANY_LENGTH, "output_tokens": _ANY_LENGTH})
        made = generated(parse_preset("candidate", text, "the fitted generator"), JUDGED, seed, "generator", "fitted")
        off = _off(measured, statistics(_on_even_clock(made, shares), made.info.span_ns))
        if best is None or off < _WORTH * best[0]:
            best = (off, Process(name + (" under the hours of the day" if hours else ""), table))
    assert best is not None  # a Poisson process always is a candidate
    return best[1]


def statistics(arrivals: Iterator[npt.NDArray[np.int64]], span_ns: int) -> dict[str, float | None]:
    """Rate, CV of the gaps and Fano factors of blocks of arrivals, int64 ns; None where there are too few."""
    gaps, windows = Gaps(), {window_s: WindowCounts(window_s * 10**9, span_ns) for window_s in FANO_WINDOWS_S}
    rows = last_ns = 0
    for arrival_ns in arrivals:
        gaps.see(arrival_ns)
        for counts in windows.values():
            counts.see(arrival_ns)
        rows, last_ns = rows + arrival_ns.size, int(arrival_ns[-1])
    rate = (rows - 1) / (last_ns / 1e9) if last_ns else None
    return {"rate_per_s": rate, "gap_cv": gaps.cv()} | {f"fano_{w}s": counts.fano() for w, counts in windows.items()}


def arrivals_of(trace: Trace) -> Iterator[npt.NDArray[np.int64]]:
    """Blocks of arrivals, int64 ns."""
    for batch in trace.batches(columns=("arrival_ns",)):
        yield int64_values(batch.column(0))


def _on_even_clock(trace: Trace, shares: npt.NDArray[np.float64] | None) -> Iterator[npt.NDArray[np.int64]]:
    """Arrivals; with `shares` of the hours, on the clock on which their rate is constant."""
    edges_ns = np.arange(HOURS + 1) * (DAY_NS / HOURS)
    for arrival_ns in arrivals_of(trace):
        if shares is None:
            yield arrival_ns
            continue
        work_ns = np.concatenate(([0.0], np.cumsum(shares) / shares.sum())) * DAY_NS
        days, rest_ns = np.divmod(arrival_ns, DAY_NS)
        yield days * DAY_NS + np.rint(np.interp(rest_ns, edges_ns, work_ns)).astype(np.int64)


def _hours(trace: Trace) -> npt.NDArray[np.float64]:
    """Relative rates of the hours of the trace's day, which begins with its first request."""
    counts = np.zeros(HOURS, np.int64)
    for arrival_ns in arrivals_of(trace):
        counts += np.bincount(arrival_ns % DAY_NS // (DAY_NS // HOURS), minlength=HOURS)
    whole, rest_ns = divmod(trace.info.span_ns, DAY_NS)
    seen = whole + np.clip(rest_ns / (DAY_NS / HOURS) - np.arange(HOURS), 0, 1)  # how often each hour was there
    rates = np.maximum(counts, 0.5) / np.maximum(seen, 0.01)
    return np.asarray(rates / rates.mean(), np.float64)


def _candidates(measured: dict[str, float | None], rate_per_s: float) -> dict[str, dict[str, Any]]:
    """Parameters of the processes that may fit, simplest first."""
    rate = round(rate_per_s, 6) or rate_per_s
    found: dict[str, dict[str, Any]] = {"poisson": {"rate_per_s": rate}}
    cv = measured["gap_cv"]
    if cv is not None and cv > 0:
        found["gamma"] = {"rate_per_s": rate, "cv": max(round(min(cv, 100.0), 6), CVS[0])}
        fanos = {window_s: measured[f"fano_{window_s}s"] for window_s in FANO_WINDOWS_S}
        process = fitted_mmpp(rate_per_s, cv, {window_s: fano for window_s, fano in fanos.items() if fano is not None})
        if process is not None and within(process.arrivals_a_cycle, STAYS_ARRIVALS):
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

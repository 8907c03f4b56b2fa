"""The two-state modulated Poisson process in closed form, and its parameters from what was measured of a trace.

Fano factor and CV of the gaps: Fischer and Meier-Hellstern, The Markov-modulated Poisson process cookbook (1993).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kvrm_traces.synth.arrivals import ModulatedPoisson

#: The longest mean stay that is tried, in seconds, and the shortest.
_LONGEST_S, _SHORTEST_S = 1e5, 1e-2


def fano(process: ModulatedPoisson, window_s: float) -> float:
    """Variance / mean of the arrivals in a window, in the long run."""
    (first, second), (stay, other) = process.rates_per_s, process.sojourns_s
    change = 1 / stay + 1 / other
    share = stay / (stay + other)
    spread = share * (1 - share) * (first - second) ** 2
    shape = 1 + np.expm1(-change * window_s) / (change * window_s)
    return float(1 + 2 * spread / (process.rate_per_s * change) * shape)


def gap_cv(process: ModulatedPoisson) -> float:
    """Coefficient of variation of the gaps between arrivals, in the long run."""
    (first, second), (stay, other) = process.rates_per_s, process.sojourns_s
    leave, come = 1 / stay, 1 / other
    more = 2 * leave * come * (first - second) ** 2
    return float(np.sqrt(1 + more / ((leave + come) ** 2 * (first * second + first * come + second * leave))))


def fitted_mmpp(rate_per_s: float, cv: float, fanos: Mapping[int, float]) -> ModulatedPoisson | None:
    """The process of this mean rate whose CV and Fano factors are nearest, by the squares of their logarithms.

    None for a trace that is no burstier than Poisson, or whose windows tell nothing.
    """
    wanted = {window_s: value for window_s, value in fanos.items() if value > 0}
    if cv <= 1 or not wanted or max(wanted.values()) <= 1:
        return None
    from scipy.optimize import minimize

    def process(point: npt.NDArray[np.float64]) -> ModulatedPoisson:
        ratio, stay_s, other_s = np.exp(np.clip(point, -16, 16))
        stay_s, other_s = (float(np.clip(value, _SHORTEST_S, _LONGEST_S)) for value in (stay_s, other_s))
        share = stay_s / (stay_s + other_s)
        low = rate_per_s / (share * (1 + ratio) + 1 - share)
        return ModulatedPoisson(rates_per_s=(float(low * (1 + ratio)), float(low)), sojourns_s=(stay_s, other_s))

    def off(point: npt.NDArray[np.float64]) -> float:
        one = process(point)
        terms = [np.log(gap_cv(one) / cv), *(np.log(fano(one, window_s) / value) for window_s, value in wanted.items())]
        return float(np.sum(np.square(terms)))

    starts = [(ratio, stay, other) for ratio in (0.5, 3.0, 7.0) for stay in (0.0, 3.0, 6.0) for other in (2.0, 5.0)]
    found = [
        minimize(off, np.array(start), method="Nelder-Mead", options={"maxiter": 600, "xatol": 1e-4, "fatol": 1e-8})
        for start in starts
    ]
    return process(min(found, key=lambda one: float(one.fun)).x)

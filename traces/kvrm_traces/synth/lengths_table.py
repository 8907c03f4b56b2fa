"""A distribution of whole numbers as a table of a generator's file, with the unit in the names of its keys."""

from __future__ import annotations

from kvrm_traces.numbers import LARGEST
from kvrm_traces.synth.keys import Keys
from kvrm_traces.synth.lengths import Constant, Geometric, Lengths, LogNormal, Mixture, Pareto, Quantiles

_DISTRIBUTIONS = ("lognormal", "quantiles", "pareto", "mixture", "geometric", "constant")


def lengths_of(keys: Keys, unit: str = "tokens") -> Lengths:
    """The distribution that a table states; `unit` ends the names of its keys: ``least_tokens``, ``least_turns``.

    Raises TraceError that names the key, its value, and what would be right.
    """
    lengths: Lengths
    match keys.word("distribution", _DISTRIBUTIONS):
        case "lognormal":
            least, most = _bounds(keys, unit)
            mu = keys.number("mu", least=-100.0, above=False, most=100.0)
            # Far from where exp() leaves float64, and far beyond what any length is.
            lengths = LogNormal(mu=mu, sigma=keys.number("sigma", most=50.0), least=least, most=most)
        case "pareto":
            least, most = _bounds(keys, unit)
            lengths = Pareto(alpha=keys.number("alpha"), least=least, most=most)
        case "geometric":
            least, most = _bounds(keys, unit)
            lengths = Geometric(mean=keys.number("mean", least=1.0, above=False), least=least, most=most)
        case "mixture":
            parts = keys.tables("parts")
            weights = tuple(part.number("weight") for part in parts)
            lengths = Mixture(weights=weights, parts=tuple(lengths_of(part, unit) for part in parts))
        case "constant":
            lengths = Constant(value=keys.whole(unit))
        case _:
            lengths = _quantiles(keys, unit)
    keys.finish()
    return lengths


def _bounds(keys: Keys, unit: str) -> tuple[int, int]:
    least, most = keys.whole(f"least_{unit}"), keys.whole(f"most_{unit}")
    if least >= most:
        raise keys.wrong(f"most_{unit}", f"must be above least_{unit} = {least}")
    return least, most


def _quantiles(keys: Keys, unit: str) -> Quantiles:
    probabilities = keys.numbers("probabilities", above=-1e-12)
    values = keys.numbers(unit, count=len(probabilities))
    if sorted(set(probabilities)) != list(probabilities) or (probabilities[0], probabilities[-1]) != (0, 1):
        raise keys.wrong("probabilities", "must ascend from 0 to 1")
    if sorted(values) != list(values) or any(value != int(value) for value in values) or values[-1] > LARGEST:
        raise keys.wrong(unit, f"must be whole numbers up to {LARGEST} that never descend")
    return Quantiles(probabilities=probabilities, values=tuple(int(value) for value in values))

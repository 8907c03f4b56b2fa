"""The figures of a validation: each error beside the spread of repeats. What is smaller than that is noise.

One repeat has no spread: it is None then, and so is whether an error is noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.validate_run import FIGURES, Run
from kvrm_sim import state as st

#: Every end-to-end figure of a load.
END_TO_END = (*FIGURES, "throughput")
#: Goals, as relative errors: a step's time (median absolute), and p50 of TTFT and ITL below saturation.
STEP_GOAL, END_TO_END_GOAL = 0.10, 0.10

Floats = NDArray[np.float64]


def step_errors(runs: Sequence[Run], *, parts_known: bool) -> dict[str, Any]:
    """Of the median over the repeats of each step; beside it how far single repeats are from that median.

    ``abs_errors`` float64 [steps] is for :func:`together`, which takes it out. ``step_times`` is for figures.
    """
    measured = np.stack([run.measured_ns for run in runs])
    predicted = runs[0].predicted_ns
    singles = measured.sum(axis=2)
    whole = np.median(singles, axis=0)
    error = predicted.sum(axis=1) / whole - 1.0
    raw = predicted.sum(axis=1) / np.median([run.raw_ns for run in runs], axis=0) - 1.0
    mixed = np.array(runs[0].mixed)
    low, high = np.percentile(singles, (10, 90), axis=0)
    return {
        "step_times": {
            "mixed": mixed.tolist(),
            "p10_ns": np.rint(low).astype(np.int64).tolist(),
            "p50_ns": np.rint(whole).astype(np.int64).tolist(),
            "p90_ns": np.rint(high).astype(np.int64).tolist(),
            "predicted_ns": predicted.sum(axis=1).tolist(),
        },
        "step_time_median_abs_error": float(np.median(np.abs(error))),
        "step_time_p90_abs_error": float(np.percentile(np.abs(error), 90)),
        "step_time_median_error": float(np.median(error)),
        "step_time_repeat_spread": float(np.median(np.abs(singles / whole - 1.0))) if len(runs) > 1 else None,
        "step_time_median_abs_error_at_the_machines_pace": float(np.median(np.abs(raw))),
        "decode_steps_median_abs_error": float(np.median(np.abs(error[~mixed]))) if (~mixed).any() else None,
        "prefill_steps_median_abs_error": float(np.median(np.abs(error[mixed]))) if mixed.any() else None,
        "total_time_error": float(predicted.sum() / whole.sum() - 1.0),
        "parts": part_errors(measured, predicted, parts_known=parts_known),
        "abs_errors": np.abs(error),
    }


def part_errors(measured: NDArray[np.int64], predicted: NDArray[np.int64], *, parts_known: bool) -> dict[str, Any]:
    """Error of each part's sum over the run, its share of the measured time, and the spread of repeats.

    ``measured`` [repeats, steps, parts]. Launches cannot be timed apart from the dense layers; attention and transport
    only where kernels are timed.
    """
    alone = ("host", "commit", "transport", "attention") if parts_known else ("host", "commit")
    rest = tuple(part for part in st.PARTS if part not in alone)
    middle = np.median(measured, axis=0)
    parts: dict[str, Any] = {}
    for members in (*((name,) for name in alone), rest):
        at = [st.PARTS.index(member) for member in members]
        was, said = float(middle[:, at].sum()), float(predicted[:, at].sum())
        if was == 0.0:
            continue
        sums = measured[:, :, at].sum(axis=(1, 2))
        spread = float((sums.max() - sums.min()) / was) if len(measured) > 1 else None
        parts["+".join(members)] = _marked(said / was - 1.0, spread) | {"share": was / float(middle.sum())}
    return parts


def end_to_end_errors(executed: Sequence[Run], simulated: Run) -> dict[str, Any]:
    """Each end-to-end figure: the median over the repeats, the simulated one, its error, the spread."""
    figures: dict[str, Any] = {}
    for name in END_TO_END:
        values = [run.figures[name] for run in executed if name in run.figures]
        if not values or name not in simulated.figures:
            figures[name] = None
            continue
        middle = float(np.median(values))
        spread = (max(values) - min(values)) / middle if len(values) > 1 else None
        both = {"measured": middle, "simulated": simulated.figures[name]}
        figures[name] = both | _marked(simulated.figures[name] / middle - 1.0, spread)
    return figures


def _marked(error: float, spread: float | None) -> dict[str, Any]:
    return {"error": error, "repeat_spread": spread, "noise": None if spread is None else abs(error) <= spread}


def together(found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures over all policies: errors of steps over every step, and whether everything held."""
    every = list(found.values())
    errors = [policy.pop("abs_errors") for policy in every]
    unseen = [own for own, policy in zip(errors, every, strict=True) if not policy["fitted"]]
    names = dict.fromkeys(name for policy in every for name in policy["parts"])
    spreads = [policy["step_time_repeat_spread"] for policy in every]
    return {
        "decisions_identical": all(policy["decisions_identical"] for policy in every),
        "token_mismatches": sum(policy["token_mismatches"] for policy in every),
        "steps": sum(policy["steps"] for policy in every),
        "step_time_median_abs_error": float(np.median(np.concatenate(errors))),
        "step_time_median_abs_error_unfitted": float(np.median(np.concatenate(unseen))) if unseen else None,
        "step_time_repeat_spread": None if None in spreads else float(np.median(spreads)),
        "parts": {name: _over([policy["parts"].get(name) for policy in every]) for name in names},
        "closed_loop": {
            share: {name: _over([policy["closed_loop"][share][name] for policy in every]) for name in END_TO_END}
            for share in every[0]["closed_loop"]
        },
    }


def _over(figures: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Median and greatest absolute error over the policies, and the greatest spread of repeats."""
    known = [figure for figure in figures if figure is not None]
    if not known:
        return None
    errors = [abs(figure["error"]) for figure in known]
    spreads = [figure["repeat_spread"] for figure in known]
    alone = None in spreads
    return {
        "median_abs_error": float(np.median(errors)),
        "max_abs_error": max(errors),
        "max_repeat_spread": None if alone else max(spreads),
        "noise": None if alone else all(figure["noise"] for figure in known),
    }


def verdict(report: Mapping[str, Any]) -> list[str]:
    """What failed in a report of :func:`kvrm_gpu.validate.validate`: decisions that differ, tokens that are wrong."""
    failed = []
    for policy, found in report["policies"].items():
        if not found["decisions_identical"]:
            failed.append(f"{policy}: the core decided otherwise on the recorded times, or in lockstep")
        if found["token_mismatches"]:
            failed.append(f"{policy}: {found['token_mismatches']} delivered tokens are not those of a plain forward")
    return failed


def missed_goals(report: Mapping[str, Any]) -> list[str]:
    """Errors above their goals: figures to look at, no failure. One within the spread of repeats is called noise."""
    missed = []
    for policy, found in report["policies"].items():
        error, spread = found["step_time_median_abs_error"], found["step_time_repeat_spread"]
        if error > STEP_GOAL:
            missed.append(_missed(f"{policy}: step time, median absolute", error, spread, STEP_GOAL))
        for share, figures in found["closed_loop"].items():
            for name in ("ttft_p50", "itl_p50"):
                figure = figures[name]
                if float(share) < 1.0 and figure is not None and abs(figure["error"]) > END_TO_END_GOAL:
                    what = f"{policy}: {name} at {share} x saturation"
                    missed.append(_missed(what, abs(figure["error"]), figure["repeat_spread"], END_TO_END_GOAL))
    return missed


def _missed(what: str, error: float, spread: float | None, goal: float) -> str:
    missed = f"{what}: error {error:.1%} is above {goal:.0%}"
    if spread is None:
        return f"{missed} (one repeat: its spread is unknown)"
    noise = ", which is within the spread of repeats" if error <= spread else ""
    return f"{missed} (repeats differ by {spread:.1%}){noise}"

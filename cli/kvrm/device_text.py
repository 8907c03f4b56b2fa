"""What ``kvrm calibrate`` and ``kvrm validate`` print for people: each error beside the spread of repeats."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

#: Wide enough that no cell is wrapped; a narrower terminal wraps lines itself.
WIDTH_COLUMNS = 118
ABSENT = "-"
ONE_REPEAT = "note: one repeat: its spread is unknown, and so is which errors are noise"

#: Key of the report -> heading.
FIGURES = {
    "ttft_p50": "TTFT p50",
    "ttft_p99": "TTFT p99",
    "itl_p50": "ITL p50",
    "itl_p99": "ITL p99",
    "throughput": "tokens/s",
}


def calibration_text(report: Mapping[str, Any]) -> str:
    """The device, and for each policy the error on the cells that the fit saw and on those that it did not."""
    rows = [
        [
            policy,
            "fitted" if found["fitted"] else "not fitted",
            f"{found['steps']:,}",
            _percent(found["median_abs_error"]),
            _percent(found["held_out_median_abs_error"]),
            _percent(found["held_out_p90_abs_error"]),
            _percent(found["repeat_median_abs_spread"]),
        ]
        for policy, found in report["steps"].items()
    ]
    heads = ["policy", "", "steps", "fitted cells", "held out", "held out, p90", "repeats"]
    alone = any(found["repeat_median_abs_spread"] is None for found in report["steps"].values())
    return "\n".join(
        [
            f"{report['device']} ({report['versions']}), {report['model']}, scale {report['scale']}",
            "",
            "Error of a whole step, median absolute; repeats: how far single ones are from their own median",
            _table(heads, rows),
            *([ONE_REPEAT] if alone else []),
        ]
    )


def steps_text(report: Mapping[str, Any]) -> str:
    """What a log's fit found, and its error."""
    fitted = ", ".join(f"{value:.4g} ns a {name}" for name, value in report["fitted_ns"].items())
    return "\n".join(
        [
            f"{report['file']}: {report['steps']:,} steps, {report['held_out_steps']:,} of them held out",
            f"fitted: {fitted}",
            f"error of a step: fitted {_percent(report['fit_median_abs_error'])}, held out "
            f"{_percent(report['held_out_median_abs_error'])} (p90 {_percent(report['held_out_p90_abs_error'])})",
            f"replaced: {', '.join(report['replaced'])}",
        ]
    )


def validation_text(report: Mapping[str, Any]) -> str:
    """Whether decisions and tokens hold, step errors by policy and part, and end-to-end errors by load."""
    policies = report["policies"]
    trace = report["trace"]
    held = "identical" if report["decisions_identical"] else "DIFFERENT"
    state = "calibrated" if report["calibrated"] else "uncalibrated"
    alone = report["repeats"] == 1
    lines = [
        f"{trace['name']} ({trace['rows']} requests), {report['model']} on {report['hardware']} ({state}); "
        f"executed on {report['device']}",
        f"decisions {held} in {report['steps']:,} steps; {report['token_mismatches']} token mismatches",
        "",
        "Steps at saturation, simulated against executed: median absolute error (p90); repeats: their spread",
        _steps(policies, alone=alone),
        "",
        "Parts of a step: error of the sum over the run (share of the measured time)",
        _parts(policies),
    ]
    for share in dict.fromkeys(share for found in policies.values() for share in found["closed_loop"]):
        lines += [
            "",
            f"End to end at {float(share):g} x saturation: error (± range of the repeats; ~ noise: within it)",
            _load(policies, share, alone=alone),
        ]
    if alone:
        lines.append(ONE_REPEAT)
    return "\n".join([*lines, *(f"note: {note}" for note in report["notes"])])


def _steps(policies: Mapping[str, Any], *, alone: bool) -> str:
    rows = [
        [
            policy + ("" if found["fitted"] else " (not fitted)"),
            f"{found['steps']:,}",
            f"{_percent(found['step_time_median_abs_error'])} ({_percent(found['step_time_p90_abs_error'])})",
            _percent(None if alone else found["step_time_repeat_spread"]),
            _percent(found["decode_steps_median_abs_error"]),
            _percent(found["prefill_steps_median_abs_error"]),
            _percent(found["total_time_error"], signed=True),
            "yes" if found["decisions_identical"] else "NO",
            str(found["token_mismatches"]),
        ]
        for policy, found in policies.items()
    ]
    heads = ["policy", "steps", "error (p90)", "repeats", "decode", "prefill", "total time", "decisions", "mismatches"]
    return _table(heads, rows)


def _parts(policies: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for found in policies.values() for name in found["parts"]))
    rows = []
    for policy, found in policies.items():
        cells = []
        for name in names:
            part = found["parts"].get(name)
            known = part is not None and part["error"] is not None
            cells.append(f"{_percent(part['error'], signed=True)} ({part['share']:.0%})" if known else ABSENT)
        rows.append([policy, *cells])
    return _table(["policy", *names], rows)


def _load(policies: Mapping[str, Any], share: str, *, alone: bool) -> str:
    rows = [
        [policy, *(_figure(found["closed_loop"][share][name], alone=alone) for name in FIGURES)]
        for policy, found in policies.items()
        if share in found["closed_loop"]
    ]
    return _table(["policy", *FIGURES.values()], rows)


def _figure(figure: Mapping[str, Any] | None, *, alone: bool) -> str:
    if figure is None:
        return ABSENT
    error = _percent(figure["error"], signed=True)
    return error if alone else f"{'~' if figure['noise'] else ' '}{error} ± {figure['repeat_spread']:.1%}"


def _percent(share: float | None, *, signed: bool = False) -> str:
    if share is None:
        return ABSENT
    return f"{share:+.1%}" if signed else f"{share:.1%}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left; plain text, the same on a terminal and in a pipe."""
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table

    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    table = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, 1))
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=WIDTH_COLUMNS, color_system=None, markup=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").splitlines())

"""Predicted against measured, of a validation's folder, at the width of a column or a page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvrm_analysis.drawing.accuracy import clock_of, draw_accuracy, draw_times, repeats_of
from kvrm_analysis.drawing.sheet import PAGE, Panel, empty, sheet
from kvrm_analysis.drawing.validation_page import accuracies_of, heading, times_of
from kvrm_sim.errors import InputError


def load_validation(folder: Path) -> tuple[dict[str, Any], pa.Table | None]:
    """report.json, and steps.parquet where there is one. Raises InputError when it is no validation's folder."""
    path = folder / "report.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        steps = pq.read_table(folder / "steps.parquet") if (folder / "steps.parquet").is_file() else None
    except OSError as error:
        raise InputError(f"{folder}: not the folder of a validation: {error}") from error
    except (ValueError, pa.ArrowInvalid) as error:
        raise InputError(f"{folder}: cannot be read as a validation: {error}") from error
    if not isinstance(report, dict) or "policies" not in report:
        raise InputError(f"{path}: not the report of a validation (it has no policies)")
    return report, steps


def draw_validation_figure(report: dict[str, Any], steps: pa.Table | None, width: float = PAGE) -> Figure:
    """Every step as a dot, and the error of each policy beside the spread of its repeats."""
    policies = report["policies"]

    def dots(axes: Axes) -> None:
        if steps is None:
            empty(axes, "Whole steps", "steps were not recorded")
        else:
            draw_times(axes, times_of(steps, list(policies)))

    def errors(axes: Axes) -> None:
        bars = [dataclasses.replace(bar, note="") for bar in accuracies_of(policies)]
        draw_accuracy(axes, "Whole steps, by policy", bars, 1.2)
        axes.set_xlabel("median absolute error, %")
        axes.set_ylim(len(bars) - 0.6, -0.85)
        axes.set_yticklabels([])
        for at, name in enumerate(policies):
            axes.annotate(name, (0, at), xytext=(3, 13), textcoords="offset points", fontsize=7, va="center")

    spreads = any(found["step_time_repeat_spread"] is not None for found in policies.values())
    marks = "Marks on the bars: spread of the repeats; an error below it is noise. " if spreads else ""
    caption = (
        f"{report['steps']:,} steps of the simulator's plans, executed at saturation; each time is the median of "
        f"{repeats_of(report['repeats'])}. Device: {report['device']}; scale {report['scale']}; time: "
        f"{clock_of(report)}. {marks}{'Calibrated.' if report['calibrated'] else 'The profile is uncalibrated.'}"
    )
    panels = [Panel(dots, height=2.7), Panel(errors, height=max(1.2, min(2.7, 0.45 * len(policies))))]
    return sheet(title=heading(report), caption=caption, panels=panels, width=width)

"""The figures of a run by name: what can be bounded by an SLO, minimised, maximised, or asked for the indices of.

They are the numbers of a cell's row (``cell_rows.METRICS``, the only list of them). Each answers to its path in
``kvrm replay --json`` (``itl_s.p99``), to its column in a table of cells (``itl_p99_s``), and to a short name without
its unit (``itl_p99``, ``reserved_kv_mean``). docs/metrics.md says what each one means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from kvrm_analysis.studies.cell_rows import METRICS, Metric
from kvrm_sim.errors import InputError
from kvrm_sim.tables import guess

#: What a figure counts: seconds, bytes, something a second, a share of 1, or a plain number.
Unit: TypeAlias = Literal["s", "bytes", "per_s", "share", "count"]

_SHARES = ("block_fill", "padding_waste", "recompute_tax")


@dataclass(frozen=True)
class Figure:
    """One number of a run. ``path``: dotted, in the RUN object; ``column``: in the row of a cell."""

    path: str
    column: str
    unit: Unit

    @property
    def short(self) -> str:
        """The column without its unit: ``itl_p99``; a rate keeps it."""
        return self.column.removesuffix({"s": "_s", "bytes": "_bytes"}.get(self.unit, "\0"))

    def in_row(self, row: Mapping[str, Any]) -> float | None:
        """The number in the row of a cell, or None."""
        found = row[self.column]
        return None if found is None else float(found)

    def value(self, run: Mapping[str, Any]) -> float | None:
        """The number in a RUN object; None where it does not exist (null). Raises KeyError for what is no RUN."""
        found: Any = run
        for key in self.path.split("."):
            found = found[key]
            if found is None:
                return None
        return float(found)

    def text(self, value: float | None) -> str:
        """The number with its unit, as a person reads it."""
        if value is None:
            return "no value"
        if self.unit == "s":
            return f"{value * 1e3:.4g} ms" if abs(value) < 1 else f"{value:.4g} s"
        if self.unit == "bytes":
            return f"{value / 2**30:.4g} GiB" if abs(value) >= 2**30 else f"{value / 2**20:.4g} MiB"
        return f"{value:.4g}" + {"per_s": "/s", "share": "", "count": ""}[self.unit]


def _unit(name: str) -> Unit:
    if name.endswith("_per_s"):
        return "per_s"
    if name.endswith("_share") or name in _SHARES:
        return "share"
    return "s" if name.endswith("_s") else "bytes" if name.endswith("_bytes") else "count"


def _figure(metric: Metric) -> Figure:
    return Figure(".".join(metric.path), metric.name, _unit(metric.name))


#: Every figure by its path.
FIGURES: Mapping[str, Figure] = {
    figure.path: figure for figure in map(_figure, (each for each in METRICS if each.type in ("int", "float")))
}
_BY_NAME: Mapping[str, Figure] = {
    name: figure for figure in FIGURES.values() for name in (figure.short, figure.column, figure.path)
}


def figure_named(name: str, where: str = "figure") -> Figure:
    """The figure of this path or short name. Raises InputError with the nearest known one."""
    found = _BY_NAME.get(name)
    if found is None:
        raise InputError(
            f"{where}: {name!r} is no figure of a run{guess(name, _BY_NAME)}; as in `kvrm replay --json`, e.g. itl_p99 "
            "(itl_s.p99), reserved_kv_mean, requests_per_s.steady (docs/metrics.md)"
        )
    return found


_SCALES: dict[Unit, dict[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    "bytes": {
        "bytes": 1.0,
        **{f"{prefix}B": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
        **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
    },
    "per_s": {"/s": 1.0, "": 1.0},
    "share": {"": 1.0, "%": 0.01},
    "count": {"": 1.0},
}


def parse_amount(text: str, figure: Figure, name: str, where: str) -> float:
    """'50ms', '40 GiB', '99%' in the figure's own unit. A bare number is in it where `name` ends in it (``itl_s.p99``).

    Raises InputError with the units that would be right.
    """
    scales = _SCALES[figure.unit]
    digits = text.strip()
    unit = ""
    while digits and not (digits[-1].isdigit() or digits[-1] == "."):
        digits, unit = digits[:-1], digits[-1] + unit
    unit = unit.strip()
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if not math.isfinite(number * scales.get(unit, 1)):
        raise InputError(f"{where}: {text.strip()!r} is no number with a unit, e.g. {_example(figure)}")
    if unit in scales:
        return number * scales[unit]
    units = ", ".join(each for each in scales if each)
    if unit == "" and name in (figure.path, figure.column):
        return number
    if unit == "":
        raise InputError(f"{where}: {text.strip()} of what? Write {_example(figure)} (units: {units})")
    raise InputError(f"{where}: {unit!r} is no unit of {name} (units: {units or 'none, a plain number'})")


def _example(figure: Figure) -> str:
    return {"s": "50ms", "bytes": "40GiB", "per_s": "1000/s", "share": "99%", "count": "10"}[figure.unit]

"""The figures of a run by name: what can be bounded by an SLO, minimised, maximised, or asked for the indices of.

A figure is named as in ``kvrm replay --json``: the dotted path in a RUN (``itl_s.p99``, ``reserved_kv_bytes.mean``,
``preemptions``). Where the path ends a family with its unit, a short name leaves the unit out: ``itl_p99``,
``reserved_kv_mean``. This is the only list of them; docs/metrics.md says what each one means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from kvrm_sim.errors import InputError
from kvrm_sim.tables import guess

#: What a figure counts: seconds, bytes, something a second, a share of 1, or a plain number.
Unit: TypeAlias = Literal["s", "bytes", "per_s", "share", "count"]

_LATENCIES = ("ttft_s", "itl_s", "tpot_exclusive_s", "tpot_inclusive_s", "e2e_s", "queue_s", "normalized_latency_s")
_MEMORIES = ("reserved_kv_bytes", "allocated_kv_bytes", "used_kv_bytes", "cached_kv_bytes")
_RATES = ("output_tokens_per_s", "requests_per_s")
#: Paths that stand alone, by their unit.
_SINGLE: dict[str, Unit] = {
    "kv_footprint_bytes": "bytes",
    "staging_bytes": "bytes",
    "graphs_bytes": "bytes",
    "pool_bytes": "bytes",
    "pool_blocks": "count",
    "block_fill": "share",
    "completed_share": "share",
    "padding_waste": "share",
    "recompute_tax": "share",
    "preemptions": "count",
    "recomputed_tokens": "count",
    "prefix_hit_tokens": "count",
    "evicted_blocks": "count",
    "captures": "count",
    "capture_stall_s": "s",
    "spikes": "count",
    "counts.completed": "count",
    "counts.rejected": "count",
    "counts.truncated": "count",
    "counts.unfinished": "count",
    "running.mean": "count",
    "running.peak": "count",
    "waiting.mean": "count",
    "waiting.peak": "count",
    "transfer.bytes_moved": "bytes",
    "transfer.bytes_needed": "bytes",
    "transfer.groups": "count",
    "transfer.groups_per_step_mean": "count",
    "transfer.blocks_per_group_mean": "count",
    "transfer.submit_s": "s",
    "transfer.move_s": "s",
    "sim.steps": "count",
    "sim.span_s": "s",
}


@dataclass(frozen=True)
class Figure:
    """One number of a run. ``path``: dotted, in the RUN object."""

    path: str
    unit: Unit

    @property
    def short(self) -> str:
        """The name without its unit: ``itl_p99`` of ``itl_s.p99``; a name that stands alone is its path."""
        family, dot, statistic = self.path.partition(".")
        if not dot or self.path in _SINGLE:
            return self.path
        return f"{family.removesuffix('_s').removesuffix('_bytes')}_{statistic}" if family not in _RATES else self.path

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


def _all() -> dict[str, Figure]:
    found = [Figure(f"{name}.{of}", "s") for name in _LATENCIES for of in ("mean", "p50", "p90", "p99", "max")]
    found += [Figure(f"{name}.{of}", "bytes") for name in _MEMORIES for of in ("mean", "peak")]
    found += [Figure(f"{name}.{of}", "per_s") for name in _RATES for of in ("whole", "steady")]
    found += [Figure(path, unit) for path, unit in _SINGLE.items()]
    return {figure.path: figure for figure in found}


#: Every figure by its path.
FIGURES: Mapping[str, Figure] = _all()
_BY_SHORT_NAME: Mapping[str, Figure] = {figure.short: figure for figure in FIGURES.values()}


def figure_named(name: str, where: str = "figure") -> Figure:
    """The figure of this path or short name. Raises InputError with the nearest known one."""
    found = FIGURES.get(name) or _BY_SHORT_NAME.get(name)
    if found is None:
        known = [*_BY_SHORT_NAME, *FIGURES]
        raise InputError(
            f"{where}: {name!r} is no figure of a run{guess(name, known)}; as in `kvrm replay --json`, e.g. itl_p99 "
            "(itl_s.p99), reserved_kv_mean, output_tokens_per_s.steady (docs/metrics.md)"
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
    """'50ms', '40 GiB', '99%' in the figure's own unit. A bare number is in it where `name` says it (``itl_s.p99``).

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
    if not math.isfinite(number):
        raise InputError(f"{where}: {text.strip()!r} is no number with a unit, e.g. {_example(figure)}")
    if unit in scales:
        return number * scales[unit]
    units = ", ".join(each for each in scales if each)
    if unit == "" and name == figure.path:
        return number
    if unit == "":
        raise InputError(f"{where}: {text.strip()} of what? Write {_example(figure)} (units: {units})")
    raise InputError(f"{where}: {unit!r} is no unit of {name} (units: {units or 'none, a plain number'})")


def _example(figure: Figure) -> str:
    return {"s": "50ms", "bytes": "40GiB", "per_s": "1000/s", "share": "99%", "count": "10"}[figure.unit]

"""Every number of a summary under one name, its unit at the end: ``itl_p99_s``, ``reserved_kv_mean_bytes``.

``itl_s.p99`` of the RUN object (DESIGN section 7) is ``itl_p99_s``; the unit may be left out where nothing else has the
name: ``itl_p99``. What depends on the machine that simulates (``sim.wall_s`` and its like) is not among them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from kvrm_sim.errors import InputError

#: Units at the end of a key, the longer first.
_UNITS = ("_per_s", "_bytes", "_s")
#: Of the machine, lists, or no result of the run.
_LEFT_OUT = re.compile(
    r"sim_wall_s|sim_requests_per_wall_s|sim_peak_rss_bytes|.*p99_interval.*|.*flags.*|steady_window.*"
)


def numbers_of(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Names and numbers of a RUN object, in its order; None where it says null."""
    found: dict[str, float | None] = {}
    _collect(summary, (), found)
    return {name: value for name, value in found.items() if _LEFT_OUT.fullmatch(name) is None}


def _collect(part: Mapping[str, Any], path: tuple[str, ...], found: dict[str, float | None]) -> None:
    for key, value in part.items():
        if isinstance(value, Mapping):
            if key not in ("trace", "cluster"):
                _collect(value, (*path, key), found)
        elif isinstance(value, bool) or not (value is None or isinstance(value, (int, float))):
            continue
        else:
            found[_name((*path, key))] = value


def _name(path: tuple[str, ...]) -> str:
    """The unit of the first part goes to the end; ``whole`` goes without saying."""
    first, *rest = path
    rest = [part for part in rest if part != "whole"]
    if rest and rest[-1].startswith("bytes_"):
        return "_".join([first, *rest[:-1], rest[-1].removeprefix("bytes_"), "bytes"])
    if rest == ["n"]:
        return f"{first.removesuffix('_s')}_n"
    unit = next((unit for unit in _UNITS if first.endswith(unit)), "") if len(path) > 1 else ""
    return "_".join([first.removesuffix(unit) if unit else first, *rest]) + unit


def known_as(word: str, names: list[str]) -> str:
    """The one of these names that a word means: itself, with dots, or without its unit. Raises InputError."""
    plain = word.strip().replace(".", "_")
    if plain in names:
        return plain
    fitting = [name for name in names if plain in (name.removesuffix(unit) for unit in _UNITS)]
    if len(fitting) != 1:
        near = fitting or difflib.get_close_matches(plain, names, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"metric {word!r} is unknown{hint}")
    return fitting[0]


def in_words(name: str, value: float | None) -> str:
    """A number for people: times below a second in ms, bytes in GiB, whole numbers whole."""
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return f"{value / (1 << 30):,.4g} GiB"
    if name.endswith("_per_s"):
        return f"{value:,.4g}/s"
    if name.endswith("_s"):
        return f"{1e3 * value:,.4g} ms" if 0 < abs(value) < 1 else f"{value:,.6g} s"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"

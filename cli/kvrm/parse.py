"""Values that several options write in a form of their own: windows, ties, assignments, columns."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from typing import Any

import typer


def window(text: str) -> tuple[float, float | None]:
    """``START:END`` in seconds; an empty side is open (END: None). Raises a usage error that shows the form."""
    start, colon, end = text.partition(":")
    try:
        first = float(start) if start.strip() else 0.0
        last = float(end) if end.strip() else math.inf
    except ValueError:
        colon = ""
        first = last = 0.0
    if not colon or not 0 <= first < last:
        raise typer.BadParameter(
            f"{text!r} is not START:END in seconds with 0 <= START < END, e.g. 600:1800", param_hint="--window"
        )
    return first, None if last == math.inf else last


def whole_range(text: str, option: str) -> tuple[int, int]:
    """``FIRST:LAST``, whole numbers from 0 on, the last one included. Raises a usage error that shows the form."""
    first, colon, last = text.partition(":")
    if not colon or not first.strip().isdecimal() or not last.strip().isdecimal() or int(first) > int(last):
        raise typer.BadParameter(f"{text!r} is not FIRST:LAST with 0 <= FIRST <= LAST, e.g. 0:255", param_hint=option)
    return int(first), int(last)


def tie_spread_s(text: str, option: str) -> float | None:
    """Seconds, or None for ``tick``: one step of the trace's own clock."""
    if text == "tick":
        return None
    try:
        within_s = float(text)
    except ValueError:
        within_s = 0.0
    if not 0 < within_s < math.inf:
        raise typer.BadParameter(f"{text!r} is neither seconds above 0 nor 'tick'", param_hint=option)
    return within_s


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """``part.key=value`` each; the value is TOML, a bare word is a string, and nothing is None: the key is unset."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(
                f"{text!r} is not PART.KEY=VALUE, e.g. pager.block_size_tokens=32", param_hint="--set"
            )
        if not value.strip():
            found[key.strip()] = None
            continue
        try:
            found[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = value.strip()
    return found


def columns(texts: Sequence[str]) -> dict[str, str]:
    """``ours=theirs`` each."""
    found: dict[str, str] = {}
    for text in texts:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours.strip() or not theirs:
            raise typer.BadParameter(
                f"{text!r} is not OURS=THEIRS, e.g. prompt_tokens=input_len", param_hint="--column"
            )
        found[ours.strip()] = theirs
    return found

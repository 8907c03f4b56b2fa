"""What a reader knows of its format: which of its columns are ours, the unit of its clock, its hash blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from kvrm_traces.turns import Turns

Unit = Literal["datetime", "s", "ms", "us", "ns"]
Container = Literal["csv", "jsonl"]

#: Nanoseconds in one unit of a numeric clock.
NS: dict[Unit, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

#: Columns that an error names.
_LISTED = 20

#: The first record of a file, by the names of its columns: text of a CSV, JSON values of a JSONL.
Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How to read one file.

    ``fields`` maps our names (``arrival`` for the time, the others as in SCHEMA) to the file's columns. ``unit`` None
    with an ``arrival`` is an ambiguous clock, which is refused. ``chained`` false: a hash is of its own block alone,
    not of everything before it. ``turns``: what the prompts of the format's conversations are; None: it has none, or
    does not say, and they are read as cumulative unless it is stated.
    """

    fields: Mapping[str, str]
    unit: Unit | None = None
    hash_block_tokens: int | None = None
    chained: bool = True
    turns: Turns | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A known file format. A file whose columns include all of ``needs`` is one."""

    name: str
    container: Container
    needs: tuple[str, ...]
    layout: Callable[[Record], Layout]


def listed(record: Record) -> str:
    """The names of a file's columns, for an error: a file that is no trace may have a million, of any length."""
    names = [name if len(name) <= 40 else f"{name[:37]}..." for name in list(record)[:_LISTED]]
    return ", ".join(names) + (f" and {len(record) - _LISTED} more" if len(record) > _LISTED else "")


def present(record: Record, **wanted: str) -> dict[str, str]:
    """Of the optional columns (ours=theirs), those that the file has."""
    return {ours: theirs for ours, theirs in wanted.items() if theirs in record}

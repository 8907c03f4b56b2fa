"""The formats, in the order in which a header is compared with them, and the detection."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Mapping, Sequence

from kvrm_traces.errors import TraceError
from kvrm_traces.readers import agents, azure, bailian, burstgpt, mooncake, vidur
from kvrm_traces.readers.generic import generic_layout
from kvrm_traces.readers.layout import Container, Format, Layout, Record, listed
from kvrm_traces.source import SourceFile

_KNOWN: tuple[Format, ...] = (azure.FORMAT, burstgpt.FORMAT, vidur.FORMAT, bailian.FORMAT, mooncake.FORMAT)

#: Names that a caller may state, and what identifies each.
FORMATS: dict[str, str] = {
    **{known.name: f"{known.container}: {', '.join(known.needs)}" for known in _KNOWN},
    "generic": "csv or jsonl: columns with our names, or mapped to them",
    "parquet": "what convert writes",
    agents.FORMAT: "tar of JSON, a coding agent's session each",
}


def detect(
    source: SourceFile, *, format: str | None, columns: Mapping[str, str] | None
) -> tuple[str, Container, Layout, str]:
    """(format, container, layout, delimiter) of a text file, by its first lines. A mapping of columns makes it generic.

    Raises TraceError when the format is unknown or is not the stated one.
    """
    container, first, delimiter = _first_record(source)
    if format is not None and format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(FORMATS)}"
        raise TraceError(f"format {format!r}: {hint}")
    if format == agents.FORMAT:
        raise TraceError(f"{source.path}: is no tar archive of sessions; leave out format or state {container}'s")
    if format == "parquet":
        raise TraceError(f"{source.path}: is not Parquet; leave out format or state {container}'s")
    for known in _KNOWN:
        fits = known.container == container and all(name in first for name in known.needs)
        if format == known.name and not fits:
            raise TraceError(
                f"{source.path}: is not {format} ({known.container} with {', '.join(known.needs)}); "
                f"it is {container} with {listed(first)}"
            )
        if fits and (format == known.name or (format is None and not columns)):
            if columns:
                raise TraceError(f"{source.path}: format {format} names its columns itself; leave out the mapping")
            return known.name, container, known.layout(first), delimiter
    if format is None and not columns and not ({"prompt_tokens", "output_tokens"} <= set(first)):
        raise TraceError(
            f"{source.path}: unknown {container} columns {listed(first)}; known are "
            + "; ".join(f"{known.name} ({', '.join(known.needs)})" for known in _KNOWN if known.container == container)
            + "; or map yours, e.g. arrival=..., prompt_tokens=..., output_tokens=..., and state the unit"
        )
    return "generic", container, generic_layout(source.path, first, columns), delimiter


def _first_record(source: SourceFile) -> tuple[Container, Record, str]:
    lines = source.first_lines()
    if lines[0].lstrip().startswith("{"):
        return "jsonl", _json_object(source, lines[0]), ""
    if lines[0].lstrip().startswith("["):
        raise TraceError(f"{source.path}: is a JSON array; expected JSONL, one object a line")
    delimiter = max(",;\t", key=lines[0].count)
    names = _csv_record(source, lines[:1], "the header", delimiter)
    values = _csv_record(source, lines[1:2], "row 1", delimiter)
    stripped = [name.strip() for name in names]
    if len(set(stripped)) < len(stripped):
        twice = next(name for name in stripped if stripped.count(name) > 1)
        raise TraceError(f"{source.path}: the header names column {twice!r} twice")
    return "csv", dict(zip(stripped, values + [""] * len(names), strict=False)), delimiter


def _csv_record(source: SourceFile, lines: Sequence[str], where: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader(lines, delimiter=delimiter), [])
    except csv.Error as error:
        raise TraceError(f"{source.path}: {where} is not CSV: {error}") from error


def _json_object(source: SourceFile, line: str) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{source.path}: row 1 is not JSON ({error}); expected one object a line") from error
    if not isinstance(record, dict):
        raise TraceError(f"{source.path}: row 1 is not a JSON object; expected one object a line")
    return record

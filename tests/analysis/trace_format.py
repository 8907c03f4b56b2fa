"""A strict reader of the trace event format, as its documentation has it: what viewers forgive is an error here."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

#: By phase: fields that an event has to have, and those that it may have besides.
FIELDS = {
    "X": ({"name", "cat", "ts", "dur", "pid", "tid"}, {"args"}),
    "C": ({"name", "ts", "pid", "args"}, set[str]()),
    "b": ({"name", "cat", "ts", "pid", "tid", "id"}, {"args"}),
    "e": ({"name", "cat", "ts", "pid", "tid", "id"}, {"args"}),
    "M": ({"name", "pid", "args"}, {"tid"}),
}
METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def read_events(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and ``otherData`` of a file. Numbers are exact. Raises AssertionError for what is not allowed."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        document = json.load(file, parse_float=Decimal, parse_constant=_refuse)
    assert set(document) == {"displayTimeUnit", "metadata", "traceEvents", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        _check(event)
    _check_named(events)
    _check_nested(events)
    _check_pairs(events)
    return events, document["otherData"]


def nanoseconds(value: int | Decimal) -> int:
    """A time of the file, as a reader takes it that cuts what is behind the nanosecond."""
    return int(value * 1000)


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def _check(event: dict[str, Any]) -> None:
    needed, optional = FIELDS[event["ph"]]
    assert needed <= set(event) - {"ph"} <= needed | optional, event
    for name in ("pid", "tid"):
        assert isinstance(event.get(name, 0), int), event
    assert isinstance(event["name"], str), event
    assert isinstance(event.get("args", {}), dict), event
    if "ts" in event:
        assert event["ts"] >= 0, event
    if event["ph"] == "X":
        assert event["dur"] >= 0, event
    elif event["ph"] == "C":
        assert all(isinstance(value, (int, Decimal)) for value in event["args"].values()), event
        assert event["args"], event
    elif event["ph"] == "M":
        assert list(event["args"]) == [METADATA[event["name"]]], event


def _check_named(events: list[dict[str, Any]]) -> None:
    named = {event["pid"] for event in events if event["name"] == "process_name" and event["ph"] == "M"}
    threads = {
        (event["pid"], event["tid"]) for event in events if event["name"] == "thread_name" and event["ph"] == "M"
    }
    assert {event["pid"] for event in events} <= named
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} <= threads


def _check_nested(events: list[dict[str, Any]]) -> None:
    """Slices of one thread follow each other or lie within each other, to the nanosecond."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            tracks[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"])))
    for track, slices in tracks.items():
        open_until: list[int] = []
        for start, end in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (track, start, end, open_until)
            open_until.append(end)


def _check_pairs(events: list[dict[str, Any]]) -> None:
    """Begins and ends of an id are in order of time, and each end closes the begin that is open innermost."""
    opened: dict[tuple[int, str, Any], list[str]] = defaultdict(list)
    latest: dict[tuple[int, str, Any], int] = defaultdict(int)
    for event in events:
        if event["ph"] not in "be":
            continue
        key = (event["pid"], event["cat"], event["id"])
        assert nanoseconds(event["ts"]) >= latest[key], event
        latest[key] = nanoseconds(event["ts"])
        if event["ph"] == "b":
            opened[key].append(event["name"])
        else:
            assert opened[key], event
            assert opened[key].pop() == event["name"], event
    assert not [key for key, names in opened.items() if names]

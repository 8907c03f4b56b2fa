"""The canonical trace: the Arrow columns that every reader and generator ends in, and what is known beside the rows.

A trace is a table sorted by arrival (stable: ties keep the order of the source), whose first arrival is 0. Times are
int64 nanoseconds. Three columns are always there; the others only when the source has them (``TraceInfo.columns``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

#: The full canonical schema. A trace's own schema is the subset of it that ``TraceInfo.columns`` names.
SCHEMA = pa.schema(
    [
        pa.field("arrival_ns", pa.int64(), nullable=False),  # from the first request
        pa.field("prompt_tokens", pa.int64(), nullable=False),  # >= 1
        pa.field("output_tokens", pa.int64(), nullable=False),  # >= 1
        pa.field("declared_max_tokens", pa.int64()),  # the client's cap on output tokens; null: none declared
        pa.field("priority", pa.int64()),  # 0 to MOST_PRIORITY, lower is more urgent; null: 0
        pa.field("session_id", pa.string()),
        pa.field("turn", pa.int64()),
        pa.field("parent", pa.string()),  # the session_id that this request continues
        pa.field("think_ms", pa.int64()),  # from the end of the turn before to this arrival, in closed loop
        pa.field("prefix_hashes", pa.list_(pa.int64())),  # dense ids of whole-prefix blocks, first block first
        pa.field("model", pa.string()),
        pa.field("request_class", pa.string()),
    ]
)

REQUIRED = ("arrival_ns", "prompt_tokens", "output_tokens")
OPTIONAL = tuple(name for name in SCHEMA.names if name not in REQUIRED)

#: A level above it is rejected: a level times the longest aging of a policy, an hour, has to fit int64 nanoseconds.
MOST_PRIORITY = 1_000_000

#: Least value of each column of counts, and the greatest where it is not that of every count (numbers.py).
LEAST = {"prompt_tokens": 1, "output_tokens": 1, "declared_max_tokens": 1, "priority": 0, "turn": 0, "think_ms": 0}
MOST = {"priority": MOST_PRIORITY}

#: Key of the Parquet metadata under which the TraceInfo of a converted trace is kept, as JSON.
METADATA_KEY = b"kvrm.trace"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceInfo:
    """What is known of a trace before its rows are read.

    ``sha256`` is of the bytes of the source as opened (compressed ones, if compressed); of a built-in trace, of its
    generator's parameters, length and seed. ``ties`` counts requests that arrive at the same instant as the one before.
    ``resolution_ns`` is the coarsest clock that the arrivals fit (None: they are all at one instant). ``descents``
    counts rows of the source that were earlier than the one before, by up to ``most_back_ns``; ``streams``: how many
    streams the source is, one after another, each with a clock that begins again. ``done``: what was done to all rows
    before any are chosen, in the words of ``Trace.transforms``. ``turns``: 'cumulative' where prompts are known to hold
    the whole conversation so far, None where nothing says it.
    """

    name: str
    source: str
    format: str
    unit: str
    rows: int
    span_ns: int
    sha256: str
    hash_block_tokens: int | None = None
    resolution_ns: int | None = None
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    rejected_examples: tuple[str, ...] = ()
    ties: int = 0
    descents: int = 0
    most_back_ns: int = 0
    streams: int = 1
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = REQUIRED
    done: tuple[str, ...] = ()
    turns: str | None = None

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.span_ns / 1e9

    @property
    def rate_per_s(self) -> float | None:
        """Mean arrival rate: gaps / span; None when all requests arrive at one instant."""
        return (self.rows - 1) / self.span_s if self.span_ns else None

    def to_json(self) -> str:
        """All fields, as one JSON object with sorted keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TraceInfo:
        """The inverse of :meth:`to_json`. Raises ValueError, KeyError or TypeError when it is not one."""
        fields: Mapping[str, Any] = json.loads(text)
        tuples = {key: tuple(fields[key]) for key in ("rejected_examples", "notes", "columns")}
        return cls(**{**fields, **tuples, "done": tuple(fields.get("done", ()))})


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    """The canonical schema of a trace with these columns, in canonical order."""
    return pa.schema([SCHEMA.field(name) for name in SCHEMA.names if name in columns])


def requests(count: int) -> str:
    """'1 request', '2 requests'."""
    return f"{count} request{'' if count == 1 else 's'}"


def pace(rows: int, span_ns: int) -> str:
    """'19366 requests over 3501.7 s, 5.530 requests/s': what a reader is told before a run (case A01)."""
    rate = f"{(rows - 1) / (span_ns / 1e9):.3f} requests/s" if span_ns else "all at one instant"
    return f"{requests(rows)} over {span_ns / 1e9:.6g} s, {rate}"

"""Arrivals as the core takes them: a trace, cut into chunks of fixed memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvrm_sim.state import ARRIVALS, NEVER, NONE, Records
from kvrm_traces import Trace
from kvrm_traces.arrow import int64_values

CHUNK_ROWS = 65_536
#: With prefix hashes: a row of a long-context trace has hundreds.
CHUNK_ROWS_WITH_IDS = 8_192
#: Rows of a chunk at least, however many replicas keep its hashes.
_LEAST_ROWS = 256
NO_IDS: NDArray[np.int64] = np.zeros(0, np.int64)


class Chunk(NamedTuple):
    """ARRIVALS records; the time before which no arrival is missing (NEVER with the last chunk); the prefix hashes that
    the records' ``ids_at`` count in, int64; the session of each record as an integer from 0 (NONE: no session), int64,
    empty where sessions were not asked for.
    """

    arrivals: Records
    known_until_ns: int
    ids: NDArray[np.int64] = NO_IDS
    sessions: NDArray[np.int64] = NO_IDS


def rows_for(replicas: int) -> int:
    """Rows of a chunk with prefix hashes: every replica of a cluster keeps those of a whole one."""
    return max(_LEAST_ROWS, CHUNK_ROWS_WITH_IDS // replicas)


def arrival_chunks(
    trace: Trace, rows: int | None = None, *, with_ids: bool = False, with_sessions: bool = False
) -> Iterator[Chunk]:
    """Cut a trace into chunks of ``rows``. ``with_ids``: with its prefix hashes, where it has some. ``with_sessions``:
    with its session_id, which it must have; memory grows with the number of sessions.

    ``row`` counts from 0 in the trace as transformed.
    """
    with_ids = with_ids and "prefix_hashes" in trace.info.columns
    rows = rows or (CHUNK_ROWS_WITH_IDS if with_ids else CHUNK_ROWS)
    columns = ["arrival_ns", "prompt_tokens", "output_tokens"]
    defaults = {name: value for name, value in _DEFAULTS.items() if name in trace.info.columns}
    total, first = trace.info.rows, 0
    known_sessions: dict[str, int] = {}
    more = [*(["prefix_hashes"] if with_ids else []), *(["session_id"] if with_sessions else [])]
    for batch in trace.batches(rows, columns=[*columns, *defaults, *more]):
        chunk = np.zeros(batch.num_rows, ARRIVALS)
        chunk["row"] = np.arange(first, first + batch.num_rows)
        for name in columns:
            chunk[name] = int64_values(batch.column(name))
        for name, value in _DEFAULTS.items():
            chunk[name] = int64_values(batch.column(name).fill_null(value)) if name in defaults else value
        ids = _ids(batch.column("prefix_hashes"), chunk) if with_ids else NO_IDS
        sessions = _sessions(batch.column("session_id"), known_sessions) if with_sessions else NO_IDS
        first += batch.num_rows
        yield Chunk(chunk, NEVER if first == total else int(chunk["arrival_ns"][-1]), ids, sessions)


#: Optional columns, and what stands for null.
_DEFAULTS = {"declared_max_tokens": NONE, "priority": 0}


def _ids(lists: pa.ListArray, chunk: Records) -> NDArray[np.int64]:
    """Fill in where each arrival's hashes lie in the returned ones."""
    counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    chunk["num_ids"] = counts
    chunk["ids_at"] = np.cumsum(counts) - counts
    return np.asarray(lists.flatten().to_numpy(zero_copy_only=False), np.int64)


def _sessions(names: pa.StringArray, known: dict[str, int]) -> NDArray[np.int64]:
    """Sessions numbered in the order in which they first appear."""
    return np.array(
        [NONE if name is None else known.setdefault(name, len(known)) for name in names.to_pylist()], np.int64
    )

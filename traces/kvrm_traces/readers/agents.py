"""Sessions of coding agents, a JSON file each in one tar archive (kv_cache_tester): read as a stream.

Times in a file are seconds since the session began, so when sessions begin has to be stated. Ids of prefix hashes are a
session's own, and stand for whole prefixes of 64 tokens; the part-filled block at the end has none. A sub-agent's
requests are nested in the entry that started it, with a clock of their own, and may start agents themselves. Bodies
that appear twice are left out, and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.archive import members
from kvrm_traces.errors import TraceError
from kvrm_traces.numbers import LARGEST
from kvrm_traces.rejects import Rejects
from kvrm_traces.schema import schema_of
from kvrm_traces.source import SourceFile
from kvrm_traces.stream import Stream

#: The name of the format.
FORMAT = "kv_cache_tester"

COLUMNS = (
    "arrival_ns", "prompt_tokens", "output_tokens", "session_id", "turn", "parent", "think_ms", "prefix_hashes",
    "model", "request_class",
)  # fmt: skip

#: No session is longer: a year. No thought is: what ``think_ms`` holds in any trace.
_LONGEST_S = 366 * 86_400.0
_LONGEST_THINK_S = LARGEST / 1000


class AgentSessions:
    """The archive's sessions. What was found on the way is known when ``batches`` is exhausted."""

    def __init__(self, source: SourceFile, starts: Stream, rejects: Rejects) -> None:
        self._source = source
        self._starts = starts
        self._rejects = rejects
        self._block_tokens: int | None = None
        self._bodies: set[bytes] = set()
        self._names: set[str] = set()
        self._first_id = 0
        self._requests = 0
        self.sessions = 0
        self.subagents = 0
        self.copies = 0

    @property
    def block_tokens(self) -> int | None:
        """Of every session; None while none was read."""
        return self._block_tokens

    @property
    def unique_ids(self) -> int:
        """Ids given to the prefixes of all sessions, at most."""
        return self._first_id

    def batches(self) -> Iterator[pa.RecordBatch]:
        """One batch a session, under the schema of COLUMNS. Raises TraceError for a file that is no session."""
        for name, data in members(self._source):
            session = self._parsed(name, data)
            begin = data.find(b'"requests"')
            body = hashlib.sha256(data[begin:] if begin >= 0 else data).digest()
            if body in self._bodies:
                self.copies += 1
                continue
            self._bodies.add(body)
            if session["id"] in self._names:
                raise self._wrong(name, f"id {session['id'][:60]!r}: an earlier file has it, with other requests")
            self._names.add(session["id"])
            self.sessions += 1
            start_ns = int(self._starts.take(1)[0])
            rows = _Rows(session["id"], start_ns, self._first_id, session["block_size"])
            for entry in session["requests"]:
                self._take(rows, entry, rows.session, None, 0.0)
            if rows.count:
                yield rows.batch()
            self._first_id += rows.unique_ids

    def _parsed(self, name: str, data: bytes) -> Mapping[str, Any]:
        try:
            session = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._wrong(name, f"is not JSON ({error}); expected one session") from error
        if not isinstance(session, dict) or not isinstance(session.get("requests"), list):
            raise self._wrong(name, "has no list of requests; expected one session")
        if not isinstance(session.get("id"), str):
            raise self._wrong(name, "has no id; expected the session's name")
        block_tokens = session.get("block_size")
        if not _whole(block_tokens, 1):
            raise self._wrong(name, f"block_size {block_tokens!r}: must be a whole number of tokens, 1 or more")
        if self._block_tokens not in (None, block_tokens):
            raise self._wrong(name, f"block_size {block_tokens}: others have {self._block_tokens}")
        self._block_tokens = block_tokens
        return session

    def _wrong(self, name: str, why: str) -> TraceError:
        return TraceError(f"{self._source.path}: {name[:80]}: {why}")

    def _take(self, rows: _Rows, entry: Any, session: str, parent: str | None, began_s: float) -> None:
        """A request of `session`, or the requests of a sub-agent that it started. `parent`: what the first request of
        `session` continues; `began_s`: when its clock began. No deeper than JSON that Python parses.
        """
        if not isinstance(entry, dict) or "requests" not in entry:
            self._take_one(rows, entry, session, parent, began_s)
            return
        at_s, nested = _time(entry.get("t")), entry["requests"]
        if at_s is None or not isinstance(nested, list):
            self._requests += 1
            self._rejects.add("sub-agent without time or requests", self._requests, _quoted(entry), "t and requests")
            return
        self.subagents += 1
        agent = f"{rows.session}/{str(entry.get('agent_id'))[:40]}/{self.subagents}"
        started_by = session if parent is None or rows.begun(session) else parent
        for request in nested:
            self._take(rows, request, agent, started_by, began_s + at_s)

    def _take_one(self, rows: _Rows, entry: Any, session: str, parent: str | None, began_s: float) -> None:
        self._requests += 1
        ids = _ids_of(entry)
        wrong = _wrong_in(entry, ids, rows.block_tokens)
        if wrong is not None:
            reason, value, right = wrong
            self._rejects.add(reason, self._requests, f"{session}: {value}"[:60], right)
            return
        assert ids is not None  # or something would be wrong
        rows.add(entry, ids, session, None if rows.begun(session) else parent, began_s)


class _Rows:
    """The requests of one session, columns apart; ids follow those of the sessions before."""

    def __init__(self, session: str, start_ns: int, first_id: int, block_tokens: int) -> None:
        self.session = session
        self.block_tokens = block_tokens
        self.unique_ids = 0
        self._start_ns = start_ns
        self._first_id = first_id
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS if name != "prefix_hashes"}
        self._ids: list[npt.NDArray[np.int64]] = []
        self._turns: dict[str, int] = {}

    @property
    def count(self) -> int:
        return len(self._ids)

    def begun(self, session: str) -> bool:
        """Whether it has a request."""
        return session in self._turns

    def add(
        self, entry: Mapping[str, Any], ids: npt.NDArray[np.int64], session: str, parent: str | None, began_s: float
    ) -> None:
        turn = self._turns.get(session, 0)
        self._turns[session] = turn + 1
        think_s = _time(entry.get("think_time"))
        row = (
            self._start_ns + round((began_s + entry["t"]) * 1e9),
            entry["in"],
            entry["out"],
            session,
            turn,
            parent,
            None if think_s is None else round(think_s * 1000),
            str(entry["model"]) if entry.get("model") is not None else None,
            str(entry["type"]) if entry.get("type") is not None else None,
        )
        for values, value in zip(self._columns.values(), row, strict=True):
            values.append(value)
        self._ids.append(ids)

    def batch(self) -> pa.RecordBatch:
        schema = schema_of(COLUMNS)
        offsets = np.cumsum([0, *(ids.size for ids in self._ids)]).astype(np.int32)
        dense, self.unique_ids = _dense(np.concatenate(self._ids))
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(dense + self._first_id))
        columns = {name: pa.array(values, schema.field(name).type) for name, values in self._columns.items()}
        return pa.RecordBatch.from_arrays(
            [lists if name == "prefix_hashes" else columns[name] for name in schema.names], schema=schema
        )


def _dense(ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """(the ids as numbers from 0 that rise with them, how many different ones there are)."""
    least, most = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    if most - least > 8 * ids.size:
        different, dense = np.unique(ids, return_inverse=True)
        return dense.astype(np.int64), different.size
    # Ids that count up from 1, as these do, need no sorting.
    seen = np.zeros(most - least + 1, np.int64)
    seen[ids - least] = 1
    return (np.cumsum(seen) - 1)[ids - least], int(seen.sum())


def _ids_of(entry: Any) -> npt.NDArray[np.int64] | None:
    """The ids of a request's blocks; None when they are no list of whole numbers."""
    ids = entry.get("hash_ids") if isinstance(entry, dict) else None
    if not isinstance(ids, list):
        return None
    try:
        found = np.array(ids or np.empty(0, np.int64))
    except ValueError:  # lists of different lengths in it
        return None
    return found if found.dtype == np.int64 and found.ndim == 1 else None


def _wrong_in(entry: Any, ids: npt.NDArray[np.int64] | None, block_tokens: int) -> tuple[str, str, str] | None:
    """(reason, value, what would be right) of the first thing that is wrong with a request; None: nothing."""
    if not isinstance(entry, dict):
        return "not a JSON object", _quoted(entry), "a request"
    for key, name in (("in", "prompt_tokens"), ("out", "output_tokens")):
        value: Any = entry.get(key)
        right = f"a whole number from 1 to {LARGEST}"
        if not _whole(value, -LARGEST):
            return f"{name} not a whole number", _quoted(value), right
        if value < 1:
            return f"{name} below 1", _quoted(value), right
    if _time(entry.get("t")) is None:
        return "arrival not a time", _quoted(entry.get("t")), "seconds since the session began"
    think_s = entry.get("think_time")
    if think_s is not None and _time(think_s, _LONGEST_THINK_S) is None:
        return "think_time not a time", _quoted(think_s), f"seconds from 0 to {_LONGEST_THINK_S:g}, or null"
    if ids is None:
        return "prefix_hashes not a list of ids", _quoted(entry.get("hash_ids")), "a list of whole numbers"
    if ids.size != entry["in"] // block_tokens:
        return (
            "prefix_hashes of another length than the prompt",
            f"{ids.size} ids",
            f"floor(prompt_tokens / {block_tokens})",
        )
    return None


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= LARGEST


def _time(value: Any, longest_s: float = _LONGEST_S) -> float | None:
    """Seconds; None for anything else."""
    if type(value) not in (int, float) or not 0 <= value <= longest_s:
        return None
    return float(value)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

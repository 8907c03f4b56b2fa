"""What the conversations of a trace are like: how many turns, what each adds, and how long after the one before."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.schema import REQUIRED, schema_of
from kvrm_traces.sessions import turn_before
from kvrm_traces.shared import TableStore
from kvrm_traces.synth.lengths import Ints
from kvrm_traces.trace import Trace

#: Prompts of at least this share of the follow-ups hold the whole conversation, or it is no conversation to us.
_CUMULATIVE = 0.5
#: Fewer conversations are fitted request by request.
_FEWEST = 100

_MS_NS = 10**6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Talk:
    """``begins``: the first requests, as a trace. ``turns``: by conversation. ``messages``: tokens that a follow-up's
    prompt adds to prompt and output of the turn before, at least 1. ``think_ms``: what the trace says, or else the
    time from arrival to arrival. ``answer_ms_per_token``: what is left of that time for the answer.
    """

    begins: Trace
    turns: Ints
    messages: Ints
    think_ms: Ints
    answer_ms_per_token: float


@dataclasses.dataclass(slots=True)
class _Turn:
    talk: int
    arrival_ns: int
    prompt: int
    output: int


def talk_of(trace: Trace) -> Talk | None:
    """None for a trace without conversations, with fewer than 100 of them, with no follow-up, or whose follow-ups
    mostly do not repeat what was said. Memory grows with the trace.
    """
    if "session_id" not in trace.info.columns:
        return None
    columns = [name for name in (*REQUIRED, "session_id", "parent", "think_ms") if name in trace.info.columns]
    latest: dict[str, _Turn] = {}
    begins: list[tuple[int, int, int]] = []
    turns: list[int] = []
    added: list[int] = []
    think_ms: list[int] = []
    answered_ns = answered_tokens = 0
    for batch in trace.batches(columns=columns):
        for row in _rows(batch):
            own = row["session_id"]
            before = None if own is None else turn_before(latest, own, row["parent"])
            arrival_ns, prompt, output = (row[name] for name in REQUIRED)
            if before is None:
                begins.append((arrival_ns, prompt, output))
                turns.append(0)
            else:
                added.append(prompt - before.prompt - before.output)
                gap_ns, thought = arrival_ns - before.arrival_ns, row["think_ms"]
                think_ms.append(gap_ns // _MS_NS if thought is None else thought)
                if thought is not None:
                    answered_ns += gap_ns - thought * _MS_NS
                    answered_tokens += before.output
            talk = len(turns) - 1 if before is None else before.talk
            turns[talk] += 1
            if own is not None:
                latest[own] = _Turn(talk, arrival_ns, prompt, output)
    if len(turns) < _FEWEST or not added or sum(tokens >= 0 for tokens in added) < _CUMULATIVE * len(added):
        return None
    return Talk(
        begins=_as_trace(trace, np.array(begins, np.int64)),
        turns=np.array(turns, np.int64),
        messages=np.maximum(np.array(added, np.int64), 1),
        think_ms=np.maximum(np.array(think_ms, np.int64), 1),
        answer_ms_per_token=max(0.0, answered_ns / _MS_NS / answered_tokens) if answered_tokens else 0.0,
    )


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with ``parent`` and ``think_ms`` in any case."""
    absent = {name: None for name in ("parent", "think_ms") if name not in batch.schema.names}
    return [row | absent for row in batch.to_pylist()]


def _as_trace(trace: Trace, begins: Ints) -> Trace:
    arrays = [int64_column(values) for values in (begins[:, 0] - begins[0, 0], begins[:, 1], begins[:, 2])]
    table = pa.Table.from_arrays(arrays, schema=schema_of(REQUIRED))
    span_ns = int(int64_values(arrays[0])[-1])
    info = dataclasses.replace(trace.info, rows=table.num_rows, span_ns=span_ns, columns=REQUIRED)
    return Trace(TableStore(table), info)

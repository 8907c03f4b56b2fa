"""What the conversations of a trace are like: how many turns, what each adds, and how long after the one before."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.schema import REQUIRED, schema_of
from kvrm_traces.sessions import Latest, name_columns, names_in
from kvrm_traces.shared import TableStore
from kvrm_traces.synth.lengths import Ints
from kvrm_traces.trace import Trace
from kvrm_traces.turns import CUMULATIVE_SHARE

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
    thoughts = ("think_ms",) if "think_ms" in trace.info.columns else ()
    latest = Latest[_Turn]()
    begins: list[tuple[int, int, int]] = []
    turns: list[int] = []
    added: list[int] = []
    think_ms: list[int] = []
    answered_ns = answered_tokens = 0
    for batch in trace.batches(columns=(*REQUIRED, *name_columns(trace.info.columns), *thoughts)):
        thought_ms = batch.column("think_ms").to_pylist() if thoughts else [None] * batch.num_rows
        numbers = (int64_values(batch.column(name)).tolist() for name in REQUIRED)
        rows = zip(names_in(batch), thought_ms, *numbers, strict=True)
        for (own, parent), thought, arrival_ns, prompt, output in rows:
            before = latest.before(own, parent)
            if before is None:
                begins.append((arrival_ns, prompt, output))
                turns.append(0)
            else:
                added.append(prompt - before.prompt - before.output)
                gap_ns = arrival_ns - before.arrival_ns
                think_ms.append(gap_ns // _MS_NS if thought is None else thought)
                if thought is not None:
                    answered_ns += gap_ns - thought * _MS_NS
                    answered_tokens += before.output
            talk = len(turns) - 1 if before is None else before.talk
            turns[talk] += 1
            latest.keep(own, _Turn(talk, arrival_ns, prompt, output))
    if len(turns) < _FEWEST or not added or sum(tokens >= 0 for tokens in added) < CUMULATIVE_SHARE * len(added):
        return None
    return Talk(
        begins=_as_trace(trace, np.array(begins, np.int64)),
        turns=np.array(turns, np.int64),
        messages=np.maximum(np.array(added, np.int64), 1),
        think_ms=np.maximum(np.array(think_ms, np.int64), 1),
        answer_ms_per_token=max(0.0, answered_ns / _MS_NS / answered_tokens) if answered_tokens else 0.0,
    )


def _as_trace(trace: Trace, begins: Ints) -> Trace:
    arrays = [int64_column(values) for values in (begins[:, 0] - begins[0, 0], begins[:, 1], begins[:, 2])]
    table = pa.Table.from_arrays(arrays, schema=schema_of(REQUIRED))
    span_ns = int(int64_values(arrays[0])[-1])
    info = dataclasses.replace(trace.info, rows=table.num_rows, span_ns=span_ns, columns=REQUIRED)
    return Trace(TableStore(table), info)

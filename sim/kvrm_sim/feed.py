"""Arrivals as the core takes them: a trace, cut into chunks of fixed memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvrm_sim.state import ARRIVALS, NEVER, NONE, Records
from kvrm_traces import Trace
from kvrm_traces.arrow import int64_values

CHUNK_ROWS = 65_536


def arrival_chunks(trace: Trace, rows: int = CHUNK_ROWS) -> Iterator[tuple[Records, int]]:
    """Yield (ARRIVALS records, time before which no arrival is missing); NEVER with the last chunk.

    ``row`` counts from 0 in the trace as transformed. Prefix hashes and sessions are not read.
    """
    columns = ["arrival_ns", "prompt_tokens", "output_tokens"]
    declared = "declared_max_tokens" in trace.info.columns
    if declared:
        columns.append("declared_max_tokens")
    total, first = trace.info.rows, 0
    for batch in trace.batches(rows, columns=columns):
        chunk = np.empty(batch.num_rows, ARRIVALS)
        chunk["row"] = np.arange(first, first + batch.num_rows)
        for name in columns[:3]:
            chunk[name] = int64_values(batch.column(name))
        if declared:
            chunk["declared_max_tokens"] = int64_values(batch.column("declared_max_tokens").fill_null(NONE))
        else:
            chunk["declared_max_tokens"] = NONE
        first += batch.num_rows
        yield chunk, NEVER if first == total else int(chunk["arrival_ns"][-1])

"""A21: memory is flat in the length of a trace, whatever it is read from; and reading keeps the promised pace."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvrm_traces import open_trace
from tests.traces.own_peak import run_alone

READ = """
import sys
from kvrm_traces import open_trace
trace = open_trace(sys.argv[1])
assert sum(batch.num_rows for batch in trace.batches()) == trace.info.rows == int(sys.argv[2])
"""


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_memory_is_flat_in_the_length(tmp_path: Path, form: str) -> None:
    peaks = []
    for rows in (2_000_000, 6_000_000):
        path = tmp_path / f"{rows}.{form}"
        if form == "parquet":
            open_trace("azure-conv-like", rows=rows).to_parquet(path)
        else:
            line = '{"arrival_ms": %d, "prompt_tokens": %d, "output_tokens": 7}\n' if form == "jsonl" else "%d,%d,7\n"
            with path.open("w") as file:
                file.write("" if form == "jsonl" else "arrival_ms,prompt_tokens,output_tokens\n")
                file.writelines(line % (at * 3, at % 4000 + 1) for at in range(rows))
        peaks.append(run_alone(READ, path, str(rows))[1])
    assert peaks[1] < 1.25 * peaks[0]


@pytest.mark.long
def test_speed_of_generating_and_of_reading_parquet(tmp_path: Path) -> None:
    """Half of what one idle core does, so that a busy machine does not fail it."""
    began = time.perf_counter()
    trace = open_trace("azure-conv-like", rows=2_000_000)
    generated = sum(batch.num_rows for batch in trace.batches()) / (time.perf_counter() - began)
    trace.to_parquet(tmp_path / "t.parquet")
    began = time.perf_counter()
    read = sum(batch.num_rows for batch in open_trace(tmp_path / "t.parquet").batches()) / (time.perf_counter() - began)
    assert generated > 2e6
    assert read > 5e6

"""Speed and memory of reading traces: ``python -m tests.bench_traces``. One core, each figure from its own process.

A trace of twenty million rows is generated, then inspected from our Parquet and from CSV: opened, read, measured. Peak
memory stands beside that of a tenth of the rows, and should not grow. Rates are by the clock, with their spread; those
by the processor's own time, which a busy machine changes less, stand behind them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from tests.bench import say, spread

#: What a figure has to be, rows/s.
WANTED = {"parquet": 5e6, "csv": 1e6, "generate": 1e6, "prefixes": 1e6}


def measure(what: str, path: str, rows: int) -> dict[str, Any]:
    """One figure, in this process."""
    from kvrm_traces import inspect_trace, open_trace
    from kvrm_traces.schema import REQUIRED

    made = open_trace(path, rows=rows) if what in ("generate", "prefixes") else None
    began, began_cpu = time.perf_counter(), time.process_time()
    if made is not None:
        columns = REQUIRED if what == "generate" else None
        seen = sum(batch.num_rows for batch in made.batches(columns=columns))
    else:
        seen = inspect_trace(open_trace(path)).info.rows
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    assert seen == rows
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rate": rows / wall_s, "cpu_rate": rows / cpu_s, "peak_bytes": peak_bytes}


def measured(what: str, path: str | Path, rows: int, repeats: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.bench_traces", "--measure", what, str(path), "--rows", str(rows)]
    return [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(repeats)
    ]


def written(folder: Path, rows: int) -> dict[str, Path]:
    """The same trace as our Parquet and as CSV with dates, in the form of Azure's."""
    from kvrm_traces import open_trace

    trace = open_trace("azure-conv-like", rows=rows)
    parquet, text = folder / f"{rows}.parquet", folder / f"{rows}.csv"
    trace.to_parquet(parquet)
    start = np.datetime64("2024-05-10T00:00:00", "us")
    with text.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for batch in trace.batches():
            stamps = start + (batch.column("arrival_ns").to_numpy() // 1000).astype("timedelta64[us]")
            table = {"t": stamps, "p": batch.column("prompt_tokens"), "o": batch.column("output_tokens")}
            options = pa_csv.WriteOptions(include_header=False)
            pa_csv.write_csv(pa.table(table), file, options)
    return {"parquet": parquet, "csv": text}


def suite(rows: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        few, many = written(Path(folder), rows // 10), written(Path(folder), rows)
        for what in ("parquet", "csv"):
            runs = measured(what, many[what], rows, repeats)
            small = measured(what, few[what], rows // 10, 1)[0]["peak_bytes"]
            report(f"trace inspect, {rows:,} rows from {what} ({many[what].stat().st_size / 1e6:,.0f} MB)", what, runs)
            peak = max(run["peak_bytes"] for run in runs)
            sizes = f"{peak / 2**20:,.0f} MiB, of a tenth of the rows {small / 2**20:,.0f} MiB"
            say(f"  peak memory {sizes}: {peak / small:.2f} times; wanted: at most 1.2")
        for name in GENERATED:
            report(f"generating {name}, {rows:,} rows", "generate", measured("generate", name, rows, repeats))
        few_rows = rows // 10
        title = f"generating {GENERATED[-1]} with its prefix hashes, {few_rows:,} rows"
        report(title, "prefixes", measured("prefixes", GENERATED[-1], few_rows, repeats))


#: Arrivals and lengths of these; of the last one, conversations, also everything else.
GENERATED = ("azure-conv-like", "chat-sessions")


def report(title: str, what: str, runs: list[dict[str, Any]]) -> None:
    say(title)
    say(f"  {spread([run['rate'] for run in runs], 'rows/s')}; wanted: {WANTED[what]:,.0f} or better")
    say(f"  by processor time: {spread([run['cpu_rate'] for run in runs], 'rows/s')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--measure", nargs=2, help="(inner) measure parquet, csv, generate or prefixes of this trace, print JSON"
    )
    given = parser.parse_args()
    if given.measure is None:
        suite(given.rows, given.repeats)
    else:
        say(json.dumps(measure(*given.measure, given.rows)))


if __name__ == "__main__":
    main()

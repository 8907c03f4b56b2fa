"""Speed of sweeps and of replicas that run apart, from the command line, on the cores of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: A public trace beside the checkout; where it is absent a built-in one is replayed.
TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
#: 1,000 cells: four policies x 25 loads x 2 batches x 5 pools.
STUDY = """
name = "bench"
[base]
trace = {trace}
[axes]
policy = ["graph-paged", "kv-rm", "dynamic", "static"]
"trace.speedup" = {{ range = [0.5, 2.5], points = 25 }}
"policy.schedule.slots" = [64, 128]
pool_blocks = {{ log_range = [4000, 24000], points = 5 }}
"""
WORKERS = 2


def lines() -> Iterator[str]:
    """What was measured, a line each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = json.dumps(str(TRACE)) if TRACE.is_file() else '"azure-conv-like"\n"trace.rows" = 19366'
        (folder / "study.toml").write_text(STUDY.format(trace=trace))
        yield f"sweep of 1,000 cells, {TRACE.name if TRACE.is_file() else 'azure-conv-like'}, 19,366 requests a cell"
        cold_s = swept(folder, "cold", WORKERS, {"XDG_CACHE_HOME": str(folder / "cache")})
        yield f"  {WORKERS} workers, nothing compiled: {cold_s:.1f} s; wanted: under 180 s"
        one_s, two_s = swept(folder, "one", 1, {}), swept(folder, "two", WORKERS, {})
        yield f"  compiled: {one_s:.1f} s with one worker, {two_s:.1f} s with {WORKERS}"
        yield f"  speed-up {one_s / two_s:.2f}; wanted: at least 1.8"
        tables = {(folder / out / "cells.parquet").read_bytes() for out in ("cold", "one", "two")}
        yield f"  tables: {'the same bytes' if len(tables) == 1 else 'DIFFERENT'}"
        yield from apart(folder)


def apart(folder: Path) -> Iterator[str]:
    """A cluster of eight, its replicas together and apart."""
    options = ["--rows", "2000000", "--speedup", "8", "--policy", "graph-paged", "--cluster", "8", "--json"]
    together_s = timed(["replay", "azure-conv-like", *options, "--out", str(folder / "together")], {})
    engine = ["--engine", "local", "--workers", str(WORKERS)]
    apart_s = timed(["replay", "azure-conv-like", *options, *engine, "--out", str(folder / "apart")], {})
    yield f"cluster of 8, 2,000,000 requests: {together_s:.1f} s together, {apart_s:.1f} s apart on {WORKERS} workers"


def swept(folder: Path, out: str, workers: int, environment: dict[str, str]) -> float:
    """Seconds of the whole command."""
    study, target = str(folder / "study.toml"), str(folder / out)
    return timed(["sweep", study, "--workers", str(workers), "--out", target], environment)


def timed(arguments: list[str], environment: dict[str, str]) -> float:
    """Seconds of one command in a process of its own."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "kvrm", *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    return time.perf_counter() - started


def main() -> None:
    """Print the lines."""
    for line in lines():
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Time of a report of a million requests, and of a timeline of 100,000 steps: ``python -m tests.bench_report``.

Each figure is a command's, in a process of its own: start of Python, imports, reading, and the written file.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

POLICIES = ("graph-paged", "kv-rm-delta")
#: Steps of the timeline: what it shows without a named stretch.
STEPS = 100_000


def timed(*arguments: str | Path) -> tuple[str, str]:
    """Seconds on the clock and of the processor, and the last line of ``kvrm ARGUMENTS``."""
    started, used = time.perf_counter(), _processor_s()
    command = [sys.executable, "-m", "kvrm", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    took = f"{time.perf_counter() - started:.1f} s ({_processor_s() - used:.1f} s of the processor)"
    return took, done.stdout.strip().splitlines()[-1]


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lines(trace: str | Path, rows: int) -> Iterator[str]:
    """The figures, a line each. ``trace``: of so many rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        replay = ("replay", trace, "--hardware", "a100-80gb-sxm", "--out")
        for policy in POLICIES:
            timed(*replay, folder / policy, "--policy", policy)
        runs = [folder / policy for policy in POLICIES]
        for count in (1, len(runs)):
            took, _ = timed("report", *runs[:count], "-o", folder / "report.html", "--force")
            size = (folder / "report.html").stat().st_size / 1e6
            yield f"report of {count} run{'s' if count > 1 else ''} of {rows:,} requests: {took}, {size:.2f} MB"
        yield "  wanted: 10 s or less for one, under 5 MB"
        took, said = timed("timeline", runs[0], "-o", folder / "again.json.gz")
        yield f"timeline, steps simulated again: {took}; {said.partition(' (')[2].rstrip(')')}"
        few = folder / "single"
        timed("replay", trace, "--limit", str(STEPS // 12), "--policy", POLICIES[0], "--window-s", "0", "--out", few)
        took, said = timed("timeline", few, "-o", folder / "kept.json.gz")
        yield f"timeline, steps from the folder: {took}; {said.partition(' (')[2].rstrip(')')}"
        yield f"  wanted: 10 s or less for {STEPS:,} steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "trace.parquet"
        timed_rows = ("trace", "synth", "azure-conv-like", "--rows", str(rows), "--out", trace)
        subprocess.run([sys.executable, "-m", "kvrm", *map(str, timed_rows)], check=True, capture_output=True)
        for line in lines(trace, rows):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

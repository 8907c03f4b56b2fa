"""Speed and memory of the simulator: ``make bench``. One core; compilation apart; each figure from its own process.

What is timed is all of a run: reading the trace's Parquet, simulating, and writing every request's record. Figures are
printed with their spread over the repeats; the last line of each part says what the figure has to be. Reports and
timelines (bench_report.py), sweeps (bench_sweep.py, all cores) and the device's host costs (bench_device.py) follow.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests import bench_device, bench_report, bench_sweep

POLICY, MODEL, HARDWARE = "graph-paged", "llama-3-8b", "a100-80gb-sxm"
#: KV blocks of the pools of the last part: same trace and policy, one pool ten times the other.
POOLS = (10_000, 100_000)


#: Parts that no preset has, each switched on in one that could have it: what it is, preset, keys, blocks of the pool.
PARTS: tuple[tuple[str, str, dict[str, Any], int | None], ...] = (
    ("two steps decided ahead", "graph-paged", {"schedule.run_ahead": 2}, None),
    ("swap to the host, a pool that fills", "graph-paged", {"schedule.preempt": "swap", "host.memory_gib": 16}, 3000),
    ("recompute, the same pool", "graph-paged", {}, 3000),
    ("compaction", "kv-rm", {"pager.compaction": "threshold", "pager.placement": "contiguous"}, None),
    ("speculation of 3", "graph-paged", {"speculation.draft_tokens": 3, "speculation.acceptance": 0.6}, None),
    ("captures at first use", "graph-paged", {"launch.capture": "first_use"}, None),
    ("packed staging", "kv-rm", {"transport.packed_tokens": 262_144}, None),
    ("placement extent", "kv-rm", {"pager.placement": "extent"}, None),
)


def measure(
    trace: Path,
    driver: str,
    window_s: float,
    pool_blocks: int | None,
    model: str,
    policy: str,
    changes: dict[str, Any],
) -> dict[str, Any]:
    """Run once in this process and return the figures. The core is compiled before the clock starts."""
    from kvrm_sim import engine, plugin_core
    from kvrm_sim.config import ReplicaConfig
    from kvrm_traces import open_trace

    core_s = 0.0
    inner = plugin_core.PLAIN.span

    def timed(*arguments: Any) -> int:
        nonlocal core_s
        started = time.perf_counter()
        reason = inner(*arguments)
        core_s += time.perf_counter() - started
        return int(reason)

    config = ReplicaConfig.from_names(policy, model, HARDWARE, window_s=window_s, pool_blocks=pool_blocks)
    config = config.override({f"policy.{key}": value for key, value in changes.items()})
    with tempfile.TemporaryDirectory() as folder:
        engine.run(open_trace(trace).limit(100), config, out=Path(folder) / "warm", driver=driver)  # type: ignore[arg-type]  # from argv
        plugin_core.PLAIN = plugin_core.PLAIN._replace(span=timed)
        started = time.perf_counter()
        result = engine.run(open_trace(trace), config, out=Path(folder) / "run", driver=driver)  # type: ignore[arg-type]  # from argv
        wall_s = time.perf_counter() - started
    counts = result.summary["counts"]
    return {
        "rows": counts["injected"],
        "completed": counts["completed"],
        "wall_s": wall_s,
        "core_share": core_s / wall_s,
        "peak_rss_bytes": result.summary["sim"]["peak_rss_bytes"],
    }


def measured(trace: Path, *options: str, repeats: int) -> list[dict[str, Any]]:
    """The figures of some repeats, each in a fresh process: peak memory is a process's own."""
    command = [sys.executable, "-m", "tests.bench", "--measure", str(trace), *options]
    return [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(repeats)
    ]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def spread(values: list[float], unit: str) -> str:
    return (
        f"{statistics.median(values):,.3g} {unit} (least {min(values):,.3g}, most {max(values):,.3g}, n {len(values)})"
    )


def report(title: str, runs: list[dict[str, Any]]) -> float:
    """Print one part; returns the median of its requests/s."""
    rates = [run["rows"] / run["wall_s"] for run in runs]
    say(f"{title}: {runs[0]['rows']:,} requests, {runs[0]['completed']:,} completed")
    say(f"  {spread(rates, 'requests/s')}")
    say(f"  compiled core: {spread([100 * run['core_share'] for run in runs], '% of the time')}")
    say(f"  peak memory: {spread([run['peak_rss_bytes'] / 2**20 for run in runs], 'MiB')}")
    return statistics.median(rates)


def synthesised(folder: Path, rows: int) -> Path:
    path = folder / f"azure-conv-like-{rows}.parquet"
    command = [
        sys.executable,
        "-m",
        "kvrm",
        "trace",
        "synth",
        "azure-conv-like",
        "--rows",
        str(rows),
        "--out",
        str(path),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return path


def suite(rows: int, repeats: int) -> None:
    from kvrm_sim.config import policy_names

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        trace = synthesised(folder, rows)
        one = synthesised(folder, 1)
        compile_cold(one)
        measured(one, "--driver", "span", repeats=1)  # compiles, so that no measured process does
        span = measured(trace, "--driver", "span", repeats=repeats)
        report(f"driver 2 (span), {POLICY}", span)
        say("  wanted: 500,000 requests/s or better")

        few = synthesised(folder, max(rows // 10, 1))
        report("driver 1 (events)", measured(few, "--driver", "events", repeats=repeats))
        say("  wanted: 20,000 requests/s or better")

        many = measured(synthesised(folder, 10 * rows), "--driver", "span", repeats=1)
        report("driver 2, ten times the requests", many)
        grown = many[0]["peak_rss_bytes"] / statistics.median(run["peak_rss_bytes"] for run in span)
        say(f"  peak memory is {grown:.3f} times that of a tenth; wanted: at most 1.2")

        say("each preset, driver 2 (a preset that is overloaded waits, and has the fewer steps)")
        for policy in policy_names():
            runs = measured(few, "--policy", policy, repeats=repeats)
            say(f"  {policy:14s} {spread([run['rows'] / run['wall_s'] for run in runs], 'requests/s')}")

        say("parts that no preset has")
        for what, policy, changes, pool in PARTS:
            options = ["--policy", policy, "--changes", json.dumps(changes)]
            options += [] if pool is None else ["--pool-blocks", str(pool)]
            runs = measured(few, *options, repeats=repeats)
            name = f"{what} ({policy})"
            say(f"  {name:52s} {spread([run['rows'] / run['wall_s'] for run in runs], 'requests/s')}")

        rates = [
            report(
                f"driver 2, {blocks:,} blocks",
                measured(trace, "--pool-blocks", str(blocks), "--model", "llama-3.2-1b", repeats=repeats),
            )
            for blocks in POOLS
        ]
        say(f"  a pool ten times as large runs at {rates[1] / rates[0]:.3f} times the speed; wanted: about 1")
        for line in bench_report.lines(trace, rows):
            say(line)
    for line in bench_sweep.lines():
        say(line)
    for line in bench_device.lines():
        say(line)


def compile_cold(trace: Path) -> None:
    """Time the first run of a process that finds no compiled code."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "kvrm", "replay", str(trace), "--policy", POLICY, "--json"]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "XDG_CACHE_HOME": cache})
        cold_s = time.perf_counter() - started
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "XDG_CACHE_HOME": cache})
        say(
            f"cold compile: {cold_s - (time.perf_counter() - started):.1f} s more than a warm run; wanted: at most 20 s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", type=Path, help="(inner) measure one run of this trace and print JSON")
    parser.add_argument("--driver", default="span", choices=["span", "events"])
    parser.add_argument("--window-s", type=float, default=60.0)
    parser.add_argument("--pool-blocks", type=int)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--policy", default=POLICY)
    parser.add_argument("--changes", type=json.loads, default={}, help="(inner) keys of the policy, as JSON")
    given = parser.parse_args()
    if given.measure is None:
        suite(given.rows, given.repeats)
    else:
        config = given.pool_blocks, given.model, given.policy, given.changes
        figures = measure(given.measure, given.driver, given.window_s, *config)
        say(json.dumps(figures))


if __name__ == "__main__":
    main()

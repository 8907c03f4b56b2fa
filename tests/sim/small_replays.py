"""Small inputs for the cases: short configurations, requests as tuples, hardware whose steps last so long."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.hardware import HardwareProfile
from kvrm_sim.registry import load_hardware
from kvrm_traces import Trace, open_trace
from tests.sim.core_runs import CoreRun, parameters_for, run_core
from tests.sim.reference_records import Arrival, ReferenceConfig

S = 1_000_000_000

#: (arrival in ns, prompt tokens, output tokens), and the declared maximum where there is one.
Row = tuple[int, int, int] | tuple[int, int, int, int | None]

_PAGED: dict[str, Any] = {
    "reserve": "paged",
    "limit_tokens": 1 << 20,
    "pool_blocks": 100,
    "block_size_tokens": 16,
    "placement": "lifo",
    "slots": 16,
    "prefill": "chunked",
    "token_budget": 1 << 20,
    "read_what": "table",
    "read_extent": "live",
}


def paged(**changes: Any) -> ReferenceConfig:
    """A paged policy: chunked prefill without a budget that matters, 100 blocks of 16, table reads."""
    return ReferenceConfig(**(_PAGED | changes))


def contiguous(reserve: str, **changes: Any) -> ReferenceConfig:
    """The same with one contiguous reservation a request."""
    return paged(
        **({"reserve": reserve, "placement": "contiguous", "read_what": "live", "read_extent": "live"} | changes)
    )


def requests(*rows: Row) -> list[Arrival]:
    """Arrivals of the core, rows numbered from 0."""
    return [Arrival(number, *row) for number, row in enumerate(rows)]


def constant(step_ns: int) -> dict[str, float]:
    """Costs under which every step lasts so long."""
    return {"host_step_ns": float(step_ns)}


def core(
    config: ReferenceConfig,
    *rows: Row,
    costs: Mapping[str, float] | None = None,
    until_ns: int | None = None,
    **values: Any,
) -> CoreRun:
    """Run the core, invariants checked and every step kept. Steps last 1 s unless ``costs`` says otherwise."""
    parameters = parameters_for(config, dict(costs or constant(S)), **values)
    return run_core(parameters, requests(*rows), until_ns=until_ns, keep_steps=True)


def free_blocks(run: CoreRun) -> int:
    """Blocks that are free at the end of a run."""
    return int(run.replica.scalars[0].free_blocks)


def total(run: CoreRun, name: str) -> int:
    """A total of a run by its name."""
    return int(run.replica.scalars[0][name])


def times(run: CoreRun, which: int) -> tuple[int, float, int, int]:
    """(n, sum, least, greatest) of one of the core's histograms; all in ns, all exact."""
    tally = run.replica.arrays.tallies[which]
    return int(tally.n), float(tally.total), int(tally.least), int(tally.greatest)


def trace_of(folder: Path, *rows: Row, name: str = "small") -> Trace:
    """A Parquet trace of these rows, opened."""
    columns: dict[str, Any] = {
        "arrival_ns": pa.array([row[0] for row in rows], pa.int64()),
        "prompt_tokens": pa.array([row[1] for row in rows], pa.int64()),
        "output_tokens": pa.array([row[2] for row in rows], pa.int64()),
    }
    if any(len(row) > 3 for row in rows):
        columns["declared_max_tokens"] = pa.array([row[3] if len(row) > 3 else None for row in rows], pa.int64())
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table(columns), path)
    return open_trace(path)


def steady_hardware(step_ns: float) -> HardwareProfile:
    """A device on which every step lasts ``step_ns``: all else is too fast to round to a nanosecond."""
    profile = load_hardware("a100-80gb-sxm")
    values = profile.to_dict()
    for name in profile.coefficient_names():
        if name.endswith("_ns"):
            values[name]["value"] = 1e-9
        elif name.endswith("_per_s"):
            values[name]["value"] = 1e30 if name == "hbm_bytes_per_s" else 1e29
    values["host_step_ns"]["value"] = float(step_ns)
    return HardwareProfile(**values)


def tiny(
    policy: str, *, step_ns: float | None = None, overrides: Mapping[str, Any] | None = None, **settings: Any
) -> ReplicaConfig:
    """tiny-llama (limit 1024 tokens) under a preset, 512 blocks, checked; ``step_ns``: every step lasts so long."""
    config = ReplicaConfig.from_names(
        policy, "tiny-llama", "a100-80gb-sxm", **({"check": True, "pool_blocks": 512} | settings)
    )
    if step_ns is not None:
        config = config.model_copy(update={"hardware": steady_hardware(step_ns)})
    changes = {f"policy.{key}": value for key, value in (overrides or {}).items()}
    return config.override(changes) if changes else config


def outcomes(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many requests ended in which way."""
    return {word: sum(row["outcome"] == word for row in rows) for word in st.OUTCOMES}


def random_rows(rng: random.Random, count: int) -> list[Row]:
    """Arrivals that often coincide with each other and with the ends of steps of 1 ms; two at tiny-llama's limit."""
    at, rows = 0, list[Row]()
    for _ in range(count):
        rows.append((at, rng.choice((1, 15, 16, 17, rng.randint(1, 300))), rng.choice((1, 2, rng.randint(1, 60)))))
        at += rng.choice((0, 0, 1_000_000, 5_000_000, rng.randint(0, 40_000_000)))
    return [*rows, (at, 1020, 30), (at, 1000, 24)]

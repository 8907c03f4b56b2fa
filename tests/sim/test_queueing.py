"""Waiting times against queueing theory: a replica with one slot and constant steps is a single server.

Poisson arrivals; a request of n tokens is served n steps, so service is deterministic (M/D/1), geometric (nearly M/M/1)
or anything else (M/G/1). Pollaczek and Khinchine: mean wait = rate x E[S^2] / (2 (1 - load)). Little's law holds on
every run, with whatever policy, and is checked on the integers of its records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from kvrm_sim.cluster import run_cluster
from kvrm_sim.engine import run
from kvrm_sim.result import RunResult
from kvrm_traces import Trace, open_trace
from tests.sim.small_replays import random_rows, tiny, trace_of

#: A step's length: 1 ms, so that rounding arrivals to nanoseconds is of no matter.
STEP_NS = 1_000_000
#: Waits of 10^6 requests scatter by about 0.3% at load 0.5 and by more near 1; theory must be met within this.
TOLERANCE = 0.01

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Served:
    """A replay's waits, with its trace's own rate and service times (ns)."""

    result: RunResult
    waits_ns: NDArray[np.int64]
    service_ns: NDArray[np.int64]
    rate_per_ns: float

    @property
    def load(self) -> float:
        return float(self.rate_per_ns * self.service_ns.mean())

    @property
    def pollaczek_khinchine_ns(self) -> float:
        """Mean wait of M/G/1 with this load and these moments of service."""
        second = float(np.square(self.service_ns.astype(np.float64)).mean())
        return self.rate_per_ns * second / (2 * (1 - self.load))


def one_token(count: int, rng: np.random.Generator) -> Tokens:
    return np.ones(count, np.int64)


def geometric(mean: float, count: int, rng: np.random.Generator) -> Tokens:
    return rng.geometric(1 / mean, count)


def two_kinds(count: int, rng: np.random.Generator) -> Tokens:
    """Many short and few long: E[S^2] is 3.6 times (E[S])^2."""
    return np.where(rng.random(count) < 0.1, 60, 4).astype(np.int64)


def poisson_trace(folder: Path, output_tokens: Tokens, load: float, rng: np.random.Generator) -> Trace:
    gaps_ns = rng.exponential(STEP_NS * float(output_tokens.mean()) / load, len(output_tokens))
    arrivals = np.rint(np.cumsum(gaps_ns) - gaps_ns[0]).astype(np.int64)
    path = folder / "poisson.parquet"
    prompts = np.ones(len(arrivals), np.int64)
    pq.write_table(pa.table({"arrival_ns": arrivals, "prompt_tokens": prompts, "output_tokens": output_tokens}), path)
    return open_trace(path)


def served(folder: Path, draw: Callable[..., Tokens], *, load: float, count: int, seed: int) -> Served:
    """One slot, steps of 1 ms: a request of n tokens is served n steps."""
    rng = np.random.default_rng(seed)
    tokens = draw(count=count, rng=rng)
    trace = poisson_trace(folder, tokens, load, rng)
    config = tiny("dynamic", step_ns=STEP_NS, overrides={"schedule.slots": 1}, check=False, window_s=60.0)
    result = run(trace, config)
    table = result.requests
    return Served(
        result,
        table["admitted_ns"].to_numpy() - table["arrival_ns"].to_numpy(),
        table["finish_ns"].to_numpy() - table["admitted_ns"].to_numpy(),
        count / trace.info.span_ns,
    )


SERVICES: dict[str, Callable[..., Tokens]] = {
    "M/D/1": one_token,
    "M/Geo/1": partial(geometric, 25.0),
    "M/G/1": two_kinds,
}


@pytest.mark.parametrize("service", SERVICES)
def test_waits_are_those_of_pollaczek_and_khinchine_roughly(service: str, tmp_path: Path) -> None:
    """30,000 requests at load 0.5, within 6%; the long test has the tight bound."""
    seen = served(tmp_path, SERVICES[service], load=0.5, count=30_000, seed=1)
    assert seen.load == pytest.approx(0.5, rel=0.02)
    assert seen.waits_ns.mean() == pytest.approx(seen.pollaczek_khinchine_ns, rel=0.06)


@pytest.mark.long
@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("service", SERVICES)
def test_mean_waits_are_within_a_percent_of_theory(service: str, load: float, tmp_path: Path) -> None:
    """Against the formula with the trace's own rate and moments: what it could not know is the order of arrivals."""
    seen = served(tmp_path, SERVICES[service], load=load, count=4_000_000 if load > 0.5 else 1_000_000, seed=2)
    assert seen.waits_ns.mean() == pytest.approx(seen.pollaczek_khinchine_ns, rel=TOLERANCE)


@pytest.mark.long
def test_the_mean_wait_of_a_geometric_service_nears_that_of_an_exponential_one(tmp_path: Path) -> None:
    """M/M/1: load / (1 - load) mean services. A geometric time of mean m steps has E[S^2] = (2 - 1/m) m^2."""
    seen = served(tmp_path, partial(geometric, 40.0), load=0.5, count=1_000_000, seed=3)
    exponential_ns = seen.load / (1 - seen.load) * seen.service_ns.mean()
    assert seen.waits_ns.mean() == pytest.approx(exponential_ns * (1 - 1 / 80), rel=2 * TOLERANCE)


def test_who_waits_at_all_is_the_load(tmp_path: Path) -> None:
    """Poisson arrivals see time averages: the share that finds the server busy is the load."""
    seen = served(tmp_path, one_token, load=0.5, count=30_000, seed=4)
    assert (seen.waits_ns > 0).mean() == pytest.approx(seen.load, abs=0.01)


def one_line(arrivals_ns: NDArray[np.int64], service_ns: NDArray[np.int64], servers: int) -> NDArray[np.int64]:
    """Waits of one first-come-first-served line before several servers: the bound of every router."""
    free, waits = np.zeros(servers, np.int64), np.zeros(len(arrivals_ns), np.int64)
    for at, (arrival, service) in enumerate(zip(arrivals_ns.tolist(), service_ns.tolist(), strict=True)):
        server = int(free.argmin())
        waits[at] = max(0, int(free[server]) - arrival)
        free[server] = arrival + waits[at] + service
    return waits


def two_replicas(folder: Path, tokens: Tokens, routers: tuple[str, ...]) -> list[NDArray[np.int64]]:
    """Waits of two single servers at load 0.7: of one line, then under each router."""
    trace = poisson_trace(folder, tokens, 1.4, np.random.default_rng(5))
    config = tiny("dynamic", step_ns=STEP_NS, overrides={"schedule.slots": 1}, check=False, window_s=60.0)
    arrivals = np.concatenate([batch.column("arrival_ns").to_numpy() for batch in trace.batches()])
    found = [one_line(arrivals, STEP_NS * tokens, 2)]
    for router in routers:
        table = run_cluster(trace, config, replicas=2, router=router).requests.sort_by("row")
        found.append(table["admitted_ns"].to_numpy() - table["arrival_ns"].to_numpy())
    return found


def test_turns_before_servers_of_constant_time_are_one_line(tmp_path: Path) -> None:
    """M/D/2: with equal services the server whose turn it is is free first, so every single wait is that of one line.
    Least-loaded cannot see what is left of a service, and does worse.
    """
    tokens = one_token(30_000, np.random.default_rng(5))
    line, turns, least = two_replicas(tmp_path, tokens, ("round-robin", "least-loaded"))
    assert (turns == line).all()
    assert least.mean() > turns.mean()


def test_the_least_loaded_server_is_better_than_turns_where_services_vary(tmp_path: Path) -> None:
    tokens = geometric(25.0, 30_000, np.random.default_rng(6))
    line, turns, least = two_replicas(tmp_path, tokens, ("round-robin", "least-loaded"))
    assert line.mean() < least.mean() < 0.8 * turns.mean()


# Little's law: the time average of how many are there is what each spends there, added up, over the time. The summary
# weighs steps as of their decision: its `running` are the rows of the step, all rows of the batch where prompts are
# chunked within the budget; its `waiting` leaves out who arrives during the step. The records are exact.


def open_ns(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> float:
    """The integral over time of how many intervals are open, ns, by counting openings and closings."""
    times = np.concatenate([begin_ns, end_ns])
    change = np.concatenate([np.ones(len(begin_ns)), -np.ones(len(end_ns))])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(change[order])
    return float((level[:-1] * np.diff(times)).sum())


@pytest.mark.parametrize("policy", ["static", "bucketed", "dynamic", "graph-paged", "kv-rm", "kv-rm-delta"])
def test_littles_law_holds_on_every_run(policy: str, tmp_path: Path) -> None:
    rows = random_rows(random.Random(policy), 150)
    trace = trace_of(tmp_path, *rows)
    result = run(trace, tiny(policy, overrides={"schedule.slots": 4}, pool_blocks=400, check=False))
    assert_little(result.summary, result.requests)
    cluster = run_cluster(
        trace, tiny(policy, overrides={"schedule.slots": 4}, pool_blocks=400, check=False),
        replicas=3, router="least-loaded",
    )  # fmt: skip
    assert_little(cluster.summary, cluster.requests)


def assert_little(summary: dict[str, Any], table: pa.Table) -> None:
    table = table.filter(pc.is_valid(table["finish_ns"]))
    arrival, admitted, finish = (table[name].to_numpy() for name in ("arrival_ns", "admitted_ns", "finish_ns"))
    span_ns = summary["sim"]["span_s"] * 1e9
    rate = len(arrival) / span_ns
    queue_ns, e2e_ns = summary["queue_s"]["mean"] * 1e9, summary["e2e_s"]["mean"] * 1e9
    assert open_ns(arrival, admitted) / span_ns == pytest.approx(rate * queue_ns, rel=1e-9)
    assert open_ns(arrival, finish) / span_ns == pytest.approx(rate * e2e_ns, rel=1e-9)
    if summary["preemptions"] == 0 and summary["prefill"] == "chunked":
        assert summary["running"]["mean"] == pytest.approx(rate * float((finish - admitted).mean()), rel=1e-9)

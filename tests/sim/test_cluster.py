"""Replicas behind a router: nothing is lost, nothing depends on how the work is cut, each replica is one by itself."""

from __future__ import annotations

import random
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kvrm_sim import state as st
from kvrm_sim.cluster import run_cluster
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.derivation import parameters_of
from kvrm_sim.engine import run
from kvrm_sim.errors import ConfigError
from kvrm_sim.feed import arrival_chunks
from kvrm_sim.memory import plan_memory
from kvrm_sim.replica import Replica
from kvrm_sim.result import Collector, RunResult
from kvrm_sim.sinks import Sinks
from kvrm_sim.words import ROUTERS
from kvrm_traces import Trace, open_trace
from tests.sim.small_replays import Row, S, random_rows, tiny, trace_of

TABLES = ("requests", "steps", "pool")
FILES = ("requests.parquet", "steps.parquet", "pool.parquet")


def conversations(folder: Path, rng: random.Random, *, count: int = 12) -> Trace:
    """Sessions whose prompts grow by hash blocks of 16 tokens, turn by turn, and a few requests without a session."""
    rows: list[dict[str, Any]] = []
    for session in range(count):
        at, blocks = rng.randint(0, 2 * S), rng.randint(1, 4)
        for turn in range(rng.randint(1, 6)):
            hashes = [100 * session + block for block in range(blocks)]
            rest = rng.choice((0, 1, 7))
            prompt = 16 * blocks + rest
            hashes += [10_000 + len(rows)] if rest else []  # the last block is not full: nobody else's
            rows.append(
                {"arrival_ns": at, "prompt_tokens": prompt, "output_tokens": rng.randint(1, 40), "turn": turn,
                 "session_id": None if session % 5 == 4 else f"s{session}", "prefix_hashes": hashes}
            )  # fmt: skip
            at += rng.choice((50_000_000, rng.randint(0, S)))
            blocks += rng.randint(1, 3)
    rows.sort(key=lambda row: row["arrival_ns"])
    rows[0]["arrival_ns"] = 0
    path = folder / "conversations.parquet"
    pq.write_table(pa.Table.from_pylist([{k: v for k, v in row.items() if k != "turn"} for row in rows]), path)
    trace = open_trace(path, hash_block_tokens=16)
    assert trace.info.rows == len(rows), "none was refused"
    return trace


def sharing(**settings: Any) -> ReplicaConfig:
    """Steps of 1 ms, 5 slots, a pool of 90 blocks that keeps prefixes."""
    slots_and_sharing = {"schedule.slots": 5, "pager.prefix_sharing": True}
    return tiny("dynamic", step_ns=1e6, overrides=slots_and_sharing, pool_blocks=90, window_s=0.05, **settings)


def comparable(summary: dict[str, Any]) -> dict[str, Any]:
    """All but what depends on the machine."""
    return {key: value for key, value in summary.items() if key != "sim"}


def of_replica(result: RunResult, name: str, replica: int) -> pa.Table:
    table = getattr(result, name)
    return table.filter(pc.equal(table["replica"], replica)).drop_columns(["replica"])


def alone(trace: Trace, config: ReplicaConfig, every: int, index: int) -> dict[str, pa.Table]:
    """A replica by itself, given every n-th request."""
    collector = Collector()
    parameters = parameters_of(config, plan_memory(config), span_ns=trace.info.span_ns)
    sinks = Sinks(requests=collector.requests, windows=collector.windows, pool=collector.pool)
    replica = Replica(parameters, sinks)
    (chunk,) = arrival_chunks(trace)
    replica.supply(chunk.arrivals[index::every], known_until_ns=st.NEVER)
    assert replica.advance(st.NEVER, max_steps=1 << 30) == st.DONE
    replica.close()
    return collector.tables()


@pytest.mark.parametrize("policy", ["static", "orca-oracle", "graph-paged", "kv-rm-delta"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_round_robin_is_separate_runs_bit_for_bit(policy: str, replicas: int, tmp_path: Path) -> None:
    rng = random.Random(f"{policy} {replicas}")
    for number in range(3):
        trace = trace_of(tmp_path, *random_rows(rng, 60), name=f"trace-{number}")
        config = tiny(
            policy,
            step_ns=rng.choice((None, 1e6)),
            overrides={"schedule.slots": rng.choice((2, 7))},
            pool_blocks=rng.choice((64, 70)),
            window_s=rng.choice((0.0, 0.05)),
        )
        result = run_cluster(trace, config, replicas=replicas, chunk_rows=rng.choice((1, 7, 1000)))
        for index in range(replicas):
            expected = alone(trace, config, replicas, index)
            for name in TABLES:
                assert of_replica(result, name, index).equals(expected[name]), f"{name} of {index}, trace {number}"


def test_round_robin_is_the_share_that_a_run_of_one_replica_takes(tmp_path: Path) -> None:
    """`kvrm replay --replicas N` simulates one of these."""
    trace = trace_of(tmp_path, *random_rows(random.Random(7), 80))
    config = tiny("graph-paged", step_ns=1e6, overrides={"schedule.slots": 2})
    cluster = run_cluster(trace, config, replicas=3)
    for index in range(3):
        share = run(trace.replicas(3, index), config).requests
        mine = of_replica(cluster, "requests", index)
        assert mine["row"].to_pylist() == [3 * row + index for row in share["row"].to_pylist()]
        for name in ("admitted_ns", "first_token_ns", "finish_ns"):
            waited = pc.subtract(mine[name], mine["arrival_ns"])
            assert waited.equals(pc.subtract(share[name], share["arrival_ns"])), (index, name)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("stop_at_s", [None, 0.8])
def test_nothing_depends_on_how_arrivals_are_cut(router: str, stop_at_s: float | None, tmp_path: Path) -> None:
    trace = conversations(tmp_path, random.Random(3))
    runs = []
    for rows in (1, 4, 10_000):
        out = tmp_path / f"{rows}"
        result = run_cluster(trace, sharing(), replicas=3, router=router, chunk_rows=rows, stop_at_s=stop_at_s, out=out)
        runs.append(([(out / file).read_bytes() for file in FILES], comparable(result.summary)))
    assert runs[0] == runs[1]
    assert runs[1] == runs[2]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("stop_at_s", [None, 1.1])
def test_a_cluster_of_one_is_the_replica(router: str, stop_at_s: float | None, tmp_path: Path) -> None:
    trace = conversations(tmp_path, random.Random(5))
    single = run(trace, sharing(), stop_at_s=stop_at_s)
    cluster = run_cluster(trace, sharing(), replicas=1, router=router, stop_at_s=stop_at_s)
    for name in TABLES:
        assert of_replica(cluster, name, 0).equals(getattr(single, name)), name
    summary = comparable(cluster.summary)
    del summary["cluster"]
    assert summary == comparable(single.summary)


@pytest.mark.parametrize("router", ROUTERS)
def test_every_request_is_served_once(router: str, tmp_path: Path) -> None:
    """Conservation over the cluster, with every invariant of each replica checked after each of its steps."""
    trace = conversations(tmp_path, random.Random(11), count=20)
    result = run_cluster(trace, sharing(), replicas=4, router=router)
    table, cluster = result.requests, result.summary["cluster"]
    assert sorted(table["row"].to_pylist()) == list(range(trace.info.rows))
    assert set(table["replica"].to_pylist()) <= {0, 1, 2, 3}
    assert result.summary["counts"]["injected"] == result.summary["counts"]["completed"] == trace.info.rows
    assert table["finish_ns"].to_pylist() == sorted(table["finish_ns"].to_pylist()), "in the order in which they ended"
    rows = cluster["per_replica"]
    assert [row["requests"] for row in rows] == [of_replica(result, "requests", at).num_rows for at in range(4)]
    for name in ("completed", "rejected", "preemptions", "prefill_tokens", "delivered_tokens", "prefix_hit_tokens"):
        total = result.summary["counts"][name] if name in result.summary["counts"] else result.summary[name]
        assert sum(row[name] for row in rows) == total, name
    assert result.summary["delivered_tokens"] == pc.sum(trace_column(trace, "output_tokens")).as_py()
    assert result.summary["itl_s"]["n"] == result.summary["delivered_tokens"] - trace.info.rows


def trace_column(trace: Trace, name: str) -> pa.Array:
    return pa.concat_arrays([batch.column(name) for batch in trace.batches()])


def test_the_least_loaded_replica_takes_what_turns_would_pile_up(tmp_path: Path) -> None:
    """One slot, steps of 1 s, a prompt's step gives the first token: n tokens take n s. Long ones come second by second
    between short ones, so turns put every long one on the first replica.
    """
    rows: list[Row] = [(at * S, 5, 10 if at % 2 == 0 else 1) for at in range(6)]
    trace = trace_of(tmp_path, *rows)
    config = tiny("dynamic", step_ns=S, overrides={"schedule.slots": 1})

    def finishes(router: str) -> list[tuple[int, int]]:
        found = run_cluster(trace, config, replicas=2, router=router).requests.sort_by("row")
        return [(row["replica"], row["finish_ns"] // S) for row in found.to_pylist()]

    turns = finishes("round-robin")
    least = finishes("least-loaded")
    assert turns == [(0, 10), (1, 2), (0, 20), (1, 4), (0, 30), (1, 6)]
    assert least == [(0, 10), (1, 2), (1, 12), (0, 11), (1, 22), (0, 12)]
    assert sum(end for _, end in least) < sum(end for _, end in turns)


def test_arrivals_of_one_instant_are_seen_by_the_next_choice(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *[(0, 5, 3)] * 5, (3 * S, 5, 3), (3 * S, 5, 3))
    config = tiny("dynamic", step_ns=S)
    found = run_cluster(trace, config, replicas=3, router="least-loaded").requests.sort_by("row")
    assert found["replica"].to_pylist() == [0, 1, 2, 0, 1, 0, 1], "what ends at 3 s is gone at 3 s"


def test_a_session_stays_on_one_replica(tmp_path: Path) -> None:
    trace = conversations(tmp_path, random.Random(2), count=30)
    homes = defaultdict(set)
    placed = run_cluster(trace, sharing(), replicas=4, router="session-sticky").requests.sort_by("row")
    for session, replica in zip(
        trace_column(trace, "session_id").to_pylist(), placed["replica"].to_pylist(), strict=True
    ):
        homes[session].add(replica)
    del homes[None]
    assert {len(replicas) for replicas in homes.values()} == {1}
    assert len({replica for replicas in homes.values() for replica in replicas}) > 1, "not all on one"
    spread = run_cluster(trace, sharing(), replicas=4, router="round-robin")
    together = run_cluster(trace, sharing(), replicas=4, router="session-sticky")
    assert together.summary["prefix_hit_tokens"] > spread.summary["prefix_hit_tokens"]


def test_means_add_up_and_the_peak_of_a_sum_is_absent(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *random_rows(random.Random(1), 60))
    result = run_cluster(trace, tiny("graph-paged", step_ns=1e6), replicas=3)
    cluster = result.summary["cluster"]
    for name in ("running", "waiting", "allocated_kv_bytes"):
        parts = [row[name]["mean"] for row in cluster["per_replica"]]
        assert result.summary[name]["mean"] == pytest.approx(sum(parts), rel=1e-12)
        assert result.summary[name]["peak"] is None
    assert result.summary["pool_blocks"] == 3 * 512
    parts = [
        sum(of_replica(result, "steps", at)[f"{part}_exposed_ns"].to_numpy().sum() for part in st.PARTS)
        for at in range(3)
    ]
    assert [row["busy_s"] for row in cluster["per_replica"]] == [part / 1e9 for part in parts]
    assert cluster["imbalance"]["busy_time"] == pytest.approx(max(parts) * 3 / sum(parts))


def test_percentiles_are_those_of_all_requests(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *random_rows(random.Random(9), 150))
    result = run_cluster(trace, tiny("graph-paged", step_ns=1e6, overrides={"schedule.slots": 2}), replicas=3)
    table = result.requests
    done = table.filter(pc.is_valid(table["finish_ns"]))
    e2e = sorted(pc.subtract(done["finish_ns"], done["arrival_ns"]).to_pylist())
    assert result.summary["e2e_s"]["n"] == len(e2e)
    assert result.summary["e2e_s"]["p99"] == pytest.approx(e2e[-(-99 * len(e2e) // 100) - 1] / 1e9, rel=1e-3)
    assert result.summary["e2e_s"]["mean"] == pytest.approx(sum(e2e) / len(e2e) / 1e9, rel=1e-12)


def test_a_flooded_replica_makes_the_run_an_overloaded_one(tmp_path: Path) -> None:
    """Every other request is long: turns flood the first replica, while the second idles."""
    trace = trace_of(tmp_path, *[(at * S, 5, 20 if at % 2 == 0 else 1) for at in range(200)])
    result = run_cluster(trace, tiny("dynamic", step_ns=S, overrides={"schedule.slots": 1}), replicas=2)
    assert [row["overloaded"] for row in result.summary["cluster"]["per_replica"]] == [True, False]
    assert result.summary["overloaded"]
    assert any(line.startswith("replicas_overloaded: 1 of 2 replicas (0)") for line in result.warnings)


def test_captures_in_the_run_are_counted_once_and_those_before_it_for_each_replica(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *random_rows(random.Random(11), 60))

    def captured(capture: str, replicas: int) -> tuple[int, int]:
        changes = {"schedule.slots": 4, "launch.capture": capture}
        result = run_cluster(trace, tiny("graph-paged", overrides=changes), replicas=replicas)
        return result.summary["captures"], sum(result.steps["captures"].to_pylist())

    summed, in_steps = captured("first_use", 3)
    assert summed == in_steps > 0
    assert captured("warm", 3) == (3 * captured("warm", 1)[0], 0)


def test_a_replica_that_gets_nothing_is_a_row_of_zeros(tmp_path: Path) -> None:
    result = run_cluster(trace_of(tmp_path, (0, 5, 3), (S, 5, 2)), tiny("dynamic"), replicas=4)
    idle = result.summary["cluster"]["per_replica"][3]
    assert (idle["requests"], idle["steps"], idle["busy_s"], idle["ttft_s"]["n"]) == (0, 0, 0.0, 0)
    assert idle["ttft_s"]["p50"] is None
    assert result.summary["counts"]["completed"] == 2
    assert result.summary["cluster"]["imbalance"]["requests"] == 2.0


def test_the_folder_says_what_the_cluster_was_and_reads_like_the_tables_in_memory(tmp_path: Path) -> None:
    trace = conversations(tmp_path, random.Random(4))
    kept = run_cluster(trace, sharing(), replicas=2, router="prefix-aware", prefix_weight=2.0)
    written = run_cluster(trace, sharing(), replicas=2, router="prefix-aware", prefix_weight=2.0, out=tmp_path / "run")
    for name in TABLES:
        assert getattr(kept, name).equals(getattr(written, name)), name
    found = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert found["run"]["cluster"] == {"replicas": 2, "router": "prefix-aware", "prefix_weight": 2.0}
    assert ReplicaConfig.from_file(tmp_path / "run" / "run.toml") == sharing()


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *[(n * S, 5, 2) for n in range(50)])
    before = sorted(tmp_path.iterdir())

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cluster(trace, tiny("dynamic"), replicas=2, out=tmp_path / "runs" / "one", progress=interrupt)
    assert sorted(tmp_path.iterdir()) == before


def test_progress_never_goes_back_and_ends_at_one(tmp_path: Path) -> None:
    for router in ("round-robin", "least-loaded"):
        shares: list[float] = []
        trace = trace_of(tmp_path, *[(n * S, 5, 2) for n in range(20)])
        run_cluster(trace, tiny("dynamic"), replicas=3, router=router, progress=shares.append, chunk_rows=3)
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "from 1 to 1024 replicas"),
        ({"replicas": 2, "router": "random"}, "router 'random' is unknown"),
        ({"replicas": 2, "router": "session-sticky"}, "session_id; this one has no sessions"),
        ({"replicas": 2, "router": "prefix-aware"}, "prefix_hashes; this one has no hashes"),
        ({"replicas": 2, "prefix_weight": 1.0}, "router 'round-robin' has no weight"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run_cluster(trace_of(tmp_path, (0, 5, 2)), tiny("dynamic"), **options)


def test_prefix_aware_needs_a_policy_that_shares(tmp_path: Path) -> None:
    trace = conversations(tmp_path, random.Random(1))
    with pytest.raises(ConfigError, match=r"pager\.prefix_sharing = true"):
        run_cluster(trace, tiny("dynamic"), replicas=2, router="prefix-aware")


@pytest.mark.real
def test_prefix_aware_finds_more_than_turns_on_public_conversations(shared_traces: Path) -> None:
    """Four times slower than recorded, which four replicas keep up with: under overload a prompt that is cached when
    its request is routed is evicted long before its turn.
    """
    trace = open_trace(shared_traces / "mooncake" / "conversation_trace.jsonl").window(0, 600).speedup(0.25)
    config = ReplicaConfig.from_names("dynamic", "llama-3.1-8b", "a100-80gb-sxm")
    config = config.override({"policy.pager.prefix_sharing": True})
    runs = {
        (router, weight): run_cluster(
            trace, config, replicas=4, router=router, prefix_weight=weight, keep=False
        ).summary
        for router, weight in (("round-robin", None), ("prefix-aware", 1.0), ("prefix-aware", 100.0))
    }
    assert not any(run["overloaded"] for run in runs.values())
    turns, weighed, devoted = (run["prefix_hit_tokens"] for run in runs.values())
    assert 0 < turns < weighed < devoted

"""A cluster whose replicas run apart is the cluster: every byte, whatever the shards and the blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import kvrm
from kvrm_analysis.engines import shard_records
from kvrm_analysis.engines.engine_local import LocalEngine
from kvrm_analysis.engines.engines import SerialEngine
from kvrm_analysis.engines.shard_records import Spool, merge
from kvrm_analysis.engines.shards import run_sharded
from kvrm_sim import state as st
from kvrm_sim.cluster import run_cluster
from kvrm_sim.cluster_records import ended_ns
from kvrm_sim.columns import with_fields
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.errors import ConfigError, InputError
from kvrm_traces import Trace, open_trace

FILES = ("requests.parquet", "steps.parquet", "pool.parquet", "run.toml")

ROUTER = """
from kvrm.plugins import Router

class Pairs(Router):
    name = "pairs"
    stateless = True

    def choose(self, request, replicas, now_ns):
        return request.row // 2 % len(replicas)
"""


class Several(SerialEngine):
    """One process that is asked for so many shards."""

    def __init__(self, workers: int) -> None:
        self.workers = workers


def config(**change: Any) -> ReplicaConfig:
    return ReplicaConfig.from_names("graph-paged", "llama-3-8b", "a100-80gb-sxm", pool_blocks=400, **change)


def bytes_of(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def comparable(summary: dict[str, Any]) -> dict[str, Any]:
    """All of a summary but what the machine that simulates decides."""
    own = ("wall_s", "requests_per_wall_s", "peak_rss_bytes")
    return {**summary, "sim": {name: value for name, value in summary["sim"].items() if name not in own}}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return open_trace("azure-conv-like", rows=300).speedup(4)


@pytest.mark.parametrize(
    ("replicas", "shards", "how"),
    [(5, 1, {}), (5, 2, {}), (5, 9, {}), (3, 3, {"stop_at_s": 5.0}), (1, 2, {}), (4, 2, {"window_s": 0.0})],
)
def test_shards_give_the_bytes_of_the_cluster(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch, replicas: int, shards: int, how: dict[str, Any]
) -> None:
    made = config(window_s=how.pop("window_s", 1.0))
    whole = run_cluster(trace, made, replicas=replicas, out=tmp_path / "whole", **how)
    monkeypatch.setattr("kvrm_analysis.engines.shards.CHUNK_ROWS", 37)
    apart = run_sharded(trace, made, replicas=replicas, engine=Several(shards), out=tmp_path / "apart", **how)
    assert bytes_of(tmp_path / "apart") == bytes_of(tmp_path / "whole")
    assert comparable(apart.summary) == comparable(whole.summary)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apart", "whole"]


def test_shards_of_a_trace_with_prefixes(tmp_path: Path) -> None:
    rows = [
        json.dumps({"timestamp": at * 100, "input_length": 1030, "output_length": 9, "hash_ids": [at % 7, at, 99 + at]})
        for at in range(60)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows) + "\n")
    opened = open_trace(path)
    policy = config().policy.override({"pager.prefix_sharing": True})
    made = ReplicaConfig(policy=policy, model=config().model, hardware=config().hardware, pool_blocks=600)
    whole = run_cluster(opened, made, replicas=3)
    assert whole.summary["prefix_hit_tokens"] > 0
    apart = run_sharded(opened, made, replicas=3, engine=Several(2))
    assert comparable(apart.summary) == comparable(whole.summary)
    assert apart.requests.equals(whole.requests)


def test_in_processes_and_with_a_router_of_a_users_own(tmp_path: Path, trace: Trace) -> None:
    part = tmp_path / "pairs.py"
    part.write_text(ROUTER)
    with LocalEngine(2) as engine:
        for router, plugins in (("round-robin", []), ("pairs", [part])):
            how: dict[str, Any] = {"cluster": 3, "router": router, "plugins": plugins, "pool_blocks": 400}
            whole = kvrm.replay(trace, "graph-paged", out=tmp_path / f"{router}-whole", **how)
            apart = kvrm.replay(trace, "graph-paged", out=tmp_path / router, engine=engine, **how)
            assert bytes_of(tmp_path / router) == bytes_of(tmp_path / f"{router}-whole")
            assert comparable(apart.summary) == comparable(whole.summary)


def test_what_cannot_run_apart_is_refused(trace: Trace) -> None:
    with pytest.raises(ConfigError, match="router 'least-loaded' looks at the replicas at each arrival"):
        kvrm.replay(trace, cluster=2, router="least-loaded", engine="local")
    with pytest.raises(InputError, match="engine = 'local': one replica is one process; pass cluster = N as well"):
        kvrm.replay(trace, engine="local")
    with pytest.raises(InputError, match="workers = 2: is of an engine; pass engine"):
        kvrm.replay(trace, cluster=2, workers=2)
    with pytest.raises(InputError, match="they run in one process"):
        kvrm.replay(trace, prefill_replicas=1, decode_replicas=1, engine="local")


class Collected:
    """A target that keeps what it is handed, in order."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []

    def requests(self, records: st.Records) -> None:
        times = ended_ns(records).tolist()
        self.rows += zip(times, records["replica"].tolist(), records["row"].tolist(), strict=True)

    def windows(self, records: st.Records) -> None:
        pass

    def pool(self, samples: st.Records, classes: Any) -> None:
        pass


@given(some.lists(some.lists(some.integers(0, 6), max_size=12), min_size=1, max_size=4), some.integers(1, 5))
@settings(max_examples=60)
def test_merged_records_are_in_one_order(
    tmp_path_factory: pytest.TempPathFactory, times: list[list[int]], block: int
) -> None:
    folder = tmp_path_factory.mktemp("spools")
    expected = []
    for shard, of_shard in enumerate(times):
        records = np.zeros(len(of_shard), with_fields(st.OUT))
        records["finish_ns"], records["row"] = sorted(of_shard), np.arange(len(of_shard))
        with Spool(folder, shard, [shard]) as spool:
            spool.requests(records)
        expected += [(time, shard, row) for row, time in enumerate(sorted(of_shard))]
    found = Collected()
    merge(folder, len(times), found, block=block)
    assert found.rows == sorted(expected)


def test_a_spool_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(shard_records.RunError, match=r"shard-0\.requests: the records of a shard cannot be read here"):
        merge(tmp_path, 1, Collected())

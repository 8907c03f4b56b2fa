"""`--cluster` end to end: several replicas, told apart from one replica's share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kvrm
from kvrm.clusters import cluster_text
from kvrm_sim.words import ROUTERS
from kvrm_traces.errors import InputError
from tests.cli.cli_process import kvrm as command
from tests.cli.cli_process import refusal

SHORT = ("azure-conv-like", "--rows", "60")


def only_run(text: str) -> dict[str, Any]:
    (run,) = json.loads(text)["runs"]
    assert isinstance(run, dict)
    return run


def test_a_clusters_json_is_a_run_with_its_replicas() -> None:
    done = command("replay", *SHORT, "--cluster", "3", "--router", "least-loaded", "--json")
    assert done.returncode == 0, done.stderr
    run = only_run(done.stdout)
    cluster = run["cluster"]
    assert (cluster["replicas"], cluster["router"]) == (3, "least-loaded")
    assert set(cluster["imbalance"]) == {"requests", "busy_time", "tokens"}
    assert [row["replica"] for row in cluster["per_replica"]] == [0, 1, 2]
    assert sum(row["requests"] for row in cluster["per_replica"]) == run["counts"]["injected"] == 60
    assert run["audit"].startswith("injected 60 = 60 completed")


def test_one_replica_has_no_cluster() -> None:
    assert "cluster" not in only_run(command("replay", *SHORT, "--json").stdout)


def test_the_text_shows_a_line_a_replica() -> None:
    done = command("replay", *SHORT, "--cluster", "2")
    assert done.returncode == 0, done.stderr
    assert "2 replicas, router round-robin" in done.stdout
    assert "imbalance, max / mean: requests 1.000" in done.stdout


def test_a_clusters_folder_has_the_same_files_and_a_column_replica(tmp_path: Path) -> None:
    done = command("replay", *SHORT, "--cluster", "2", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "run.toml", "requests.parquet", "steps.parquet", "pool.parquet", "summary.json",
    }  # fmt: skip
    assert sorted(pq.read_table(tmp_path / "run" / "requests.parquet")["replica"].to_pylist()) == [0] * 30 + [1] * 30


def test_policies_are_compared_on_the_same_cluster(tmp_path: Path) -> None:
    policies = ("--policy", "graph-paged", "--policy", "kv-rm")
    done = command("compare", *SHORT, *policies, "--cluster", "2", "--router", "least-kv", "--out", tmp_path / "c")
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "c" / "summary.json").read_text())["runs"]
    assert [(run["policy"], run["cluster"]["router"]) for run in runs] == [
        ("graph-paged", "least-kv"),
        ("kv-rm", "least-kv"),
    ]
    assert (tmp_path / "c" / "comparison.png").is_file()


def test_a_share_and_a_cluster_are_told_apart() -> None:
    """The cluster's first replica serves what `--replicas` replays."""
    share = only_run(command("replay", *SHORT, "--replicas", "3", "--json").stdout)
    cluster = only_run(command("replay", *SHORT, "--cluster", "3", "--json").stdout)
    assert share["counts"]["injected"] == 20
    assert cluster["counts"]["injected"] == 60
    first = cluster["cluster"]["per_replica"][0]
    assert first["requests"] == 20
    assert first["e2e_s"]["mean"] == pytest.approx(share["e2e_s"]["mean"], rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "2", "--cluster", "2"], "one replica's share of the trace, --cluster 2 all replicas"),
        (["--router", "least-kv"], "pass --cluster N as well"),
        (["--prefix-weight", "2"], "pass --cluster N as well"),
        (["--cluster", "0"], "from 1 to 1024 replicas"),
        (["--cluster", "2", "--driver", "events"], "runs with driver 'span'"),
        (["--cluster", "2", "--router", "leastkv"], "did you mean 'least-kv'?"),
        (["--cluster", "2", "--router", "session-sticky"], "this one has no sessions"),
        (["--cluster", "2", "--router", "prefix-aware"], "this one has no hashes"),
        (["--cluster", "2", "--prefix-weight", "2"], "router 'round-robin' has no weight"),
    ],
)
def test_a_wrong_cluster_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    assert message in refusal("replay", *SHORT, *arguments)


def test_help_says_which_is_one_share_and_which_is_all() -> None:
    text = " ".join(command("replay", "--help").stdout.split())
    assert "ONE replica's share" in text
    assert "Simulate N replicas" in text


def test_routers_are_listed() -> None:
    done = command("list", "routers", "--json")
    assert json.loads(done.stdout) == ROUTERS == kvrm.catalogue("routers")


def test_sessions_stay_together_through_the_public_function(tmp_path: Path) -> None:
    rows = [
        {"arrival_ns": at * 100_000_000, "prompt_tokens": 200, "output_tokens": 20, "session_id": f"s{at % 5}"}
        for at in range(40)
    ]
    path = tmp_path / "sessions.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    done = kvrm.replay(path, "graph-paged", cluster=3, router="session-sticky", model="tiny-llama")
    placed = done.requests().sort_values("row")
    assert (placed.groupby(placed["row"] % 5)["replica"].nunique() == 1).all()
    assert done.summary["cluster"]["replicas"] == 3


def test_the_public_function_refuses_a_router_without_a_cluster() -> None:
    with pytest.raises(InputError, match="pass cluster = N as well"):
        kvrm.replay("azure-conv-like", router="least-kv")


def test_prefill_and_decode_are_split_through_the_command() -> None:
    done = command("replay", *SHORT, "--prefill-replicas", "1", "--decode-replicas", "2", "--json")
    assert done.returncode == 0, done.stderr
    run = only_run(done.stdout)
    assert run["counts"]["completed"] == 60
    assert [row["kind"] for row in run["cluster"]["per_replica"]] == ["prefill", "decode", "decode"]
    assert run["cluster"]["kv_transfer"]["n"] <= 60


def test_the_text_of_a_split_names_each_side() -> None:
    done = command("replay", *SHORT, "--prefill-replicas", "1", "--decode-replicas", "1")
    assert done.returncode == 0, done.stderr
    assert "imbalance of prefill" in done.stdout
    assert "moved from prefill to decode: 60 prompts" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prefill-replicas", "2"], "one needs the other"),
        (["--prefill-replicas", "2", "--decode-replicas", "2", "--cluster", "2"], "not both"),
        (["--prefill-replicas", "2", "--decode-replicas", "2", "--replicas", "2"], "one replica's share"),
        (["--prefill-replicas", "0", "--decode-replicas", "2"], "prefill_replicas = 0"),
        (["--prefill-replicas", "1", "--decode-replicas", "1", "--policy", "static"], "paged policies only"),
        (["--prefill-replicas", "1", "--decode-replicas", "1", "--prefill", "none"], "nothing to do"),
    ],
)
def test_a_wrong_split_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    assert message in refusal("replay", *SHORT, *arguments)


def test_the_table_of_replicas_fits_a_terminal() -> None:
    row = {"replica": 12, "requests": 250_000, "busy_s": 12_345.6, "prefill_tokens": 10_000_000,
           "delivered_tokens": 3_456_789, "ttft_s": {"p50": 23.456, "p99": 234.567}, "waiting": {"mean": 123.456},
           "prefix_hit_tokens": 99_999_999, "kind": "decode"}  # fmt: skip
    cluster = {"replicas": 1, "router": "least-kv", "imbalance": {"requests": 1.0}, "per_replica": [row]}
    *_, head, line = cluster_text({"policy": "kv-rm", "cluster": cluster}).splitlines()
    assert max(len(head), len(line)) <= 80
    assert line.split() == ["D12", "250,000", "12,345.6", "13,456,789", "23.456", "/", "234.567", "123.456",
                            "99,999,999"]  # fmt: skip

"""A run's requests are a trace, and replaying them is the same run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kvrm
from kvrm_traces import TraceError, open_trace


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with ties, requests beyond the model's context, and a trace that was cut and scaled."""
    folder = tmp_path_factory.mktemp("runs")
    rows = "".join(f"{at // 3},{50 + 997 * at % 9000},{1 + at % 40}\n" for at in range(240))
    (folder / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    trace = kvrm.open_trace(folder / "t.csv").window(5, 70).speedup(8)
    kvrm.replay(trace, "graph-paged", out=folder / "first")
    return folder / "first"


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("requests.parquet", "steps.parquet", "pool.parquet")]


@pytest.mark.parametrize("through", ["folder", "file"])
def test_replaying_a_runs_requests_gives_the_same_run(run: Path, tmp_path: Path, through: str) -> None:
    source = run
    if through == "file":
        source = kvrm.convert_trace(run, tmp_path / "requests-of-a-run.parquet")
    outcomes = pq.read_table(run / "requests.parquet").column("outcome").to_pylist()
    assert set(outcomes) == {"completed", "rejected"}
    kvrm.replay(source, "graph-paged", out=tmp_path / "again")
    assert tables(tmp_path / "again") == tables(run)


@pytest.mark.parametrize("stop_at_s", [None, 10.0])
def test_the_requests_of_a_closed_loop_arrive_as_they_did(tmp_path: Path, stop_at_s: float | None) -> None:
    """Which is not the order of its trace: the second turn of the first conversation comes behind those of others."""
    lines = [f"{at / 100},{20 + at % 50},{3 + at % 40},s{at % 7}" for at in range(60)]
    (tmp_path / "chats.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,session_id", *lines, ""]))
    trace = kvrm.open_trace(tmp_path / "chats.csv").with_think("exponential:2")
    looped, small = tmp_path / "looped", {"model": "tiny-llama", "pool_blocks": 512, "stop_at_s": stop_at_s}
    kvrm.replay(trace, "graph-paged", driver="closed-loop", out=looped, **small)
    rows = pq.read_table(looped / "requests.parquet").select(["arrival_ns", "row", "prompt_tokens"]).to_pylist()
    assert [row["row"] for row in sorted(rows, key=lambda row: row["arrival_ns"])] != sorted(row["row"] for row in rows)
    again = open_trace(looped)
    assert [tuple(row.values())[:2] for batch in again.batches() for row in batch.to_pylist()] == sorted(
        (row["arrival_ns"], row["prompt_tokens"]) for row in rows
    )
    assert any("of a closed loop" in note for note in again.info.notes)
    kvrm.replay(looped, "graph-paged", out=tmp_path / "again", **small)
    keys = ["arrival_ns", "first_token_ns", "finish_ns", "outcome"]
    first, second = (
        pq.read_table(folder / "requests.parquet").select(keys).sort_by([(key, "ascending") for key in keys[:-1]])
        for folder in (looped, tmp_path / "again")
    )
    assert second.equals(first)


def test_a_run_that_shared_prefixes_says_that_the_next_will_not(run: Path, tmp_path: Path) -> None:
    table = pq.read_table(run / "requests.parquet")
    hits = pa.array([8] * table.num_rows, table.schema.field("hit_tokens").type)
    at = table.schema.get_field_index("hit_tokens")
    (tmp_path / "r").mkdir()
    pq.write_table(table.set_column(at, "hit_tokens", hits), tmp_path / "r" / "requests.parquet")
    notes = open_trace(tmp_path / "r").info.notes
    assert any(f"{8 * table.num_rows} prompt tokens were found cached" in note for note in notes)
    assert not any("cached" in note for note in open_trace(run).info.notes)


def test_a_folder_that_holds_part_of_a_run_is_refused(run: Path, tmp_path: Path) -> None:
    table = pq.read_table(run / "requests.parquet")
    for number, (part, message) in enumerate(
        (
            (table.slice(5), "does not count the requests from 0"),
            (table.slice(0, 0), "holds no request"),
            (table.drop_columns(["row"]), "has no column 'row'"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        pq.write_table(part, folder / "requests.parquet")
        with pytest.raises(TraceError, match=message):
            open_trace(folder)
    with pytest.raises(TraceError, match="is the folder of a run, so unit 's' says nothing"):
        open_trace(run, unit="s")

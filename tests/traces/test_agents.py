"""Sessions in an archive: what becomes of their clocks, ids, copies and sub-agents, and which archives are refused."""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvrm_traces import TraceError, inspect_trace, merge_traces, open_trace
from kvrm_traces.reuse import MOST_TOUCHES, prefix_reuse
from tests.traces.mutations import damaged
from tests.traces.rows import column, rows_of


def request(t: float, tokens: int, ids: list[int], **fields: object) -> dict[str, Any]:
    known = {"t": t, "type": "n", "model": "m", "in": tokens, "out": 7, "hash_ids": ids, "think_time": 1.25}
    return known | fields


def session(name: str, *requests: dict[str, Any]) -> bytes:
    return json.dumps(
        {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), "totals": {}}
    ).encode()


def archive(folder: Path, *files: bytes, change: Callable[[tarfile.TarInfo], None] | None = None) -> Path:
    """A tar.xz of these files; ``change`` is made to the last member's header."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for at, data in enumerate(files):
            info = tarfile.TarInfo(f"traces/{at}.json")
            info.size = len(data)
            if change is not None and at == len(files) - 1:
                change(info)
            tar.addfile(info, io.BytesIO(data))
    path = folder / "sessions.tar.xz"
    path.write_bytes(lzma.compress(out.getvalue(), preset=1))
    return path


ONE = session("one", request(0.0, 130, [5, 9]), request(12.5, 200, [5, 9, 4], think_time=None), request(20, 63, []))
TWO = session("two", request(0.0, 64, [5]))
NESTED = session(
    "three",
    request(0.0, 64, [1]),
    {
        "t": 100.0, "type": "subagent", "agent_id": "agent_001",
        "requests": [request(0.0, 64, [2]), request(3.0, 128, [2, 3])],
    },
    request(110.0, 128, [1, 7]),
)  # fmt: skip


def test_requests_follow_their_sessions_start_and_ids_stay_apart(tmp_path: Path) -> None:
    trace = open_trace(archive(tmp_path, ONE, TWO), arrivals="poisson:0.01", seed=3)
    rows = {(row["session_id"], row["turn"]): row for row in rows_of(trace)}
    one, later, last = (rows["one", turn] for turn in range(3))
    assert later["arrival_ns"] - one["arrival_ns"] == 12_500_000_000
    assert (one["think_ms"], later["think_ms"], one["parent"], one["request_class"]) == (1250, None, None, "n")
    # Ids rise with the session's own; the session behind it begins above them.
    assert [one["prefix_hashes"], later["prefix_hashes"], last["prefix_hashes"]] == [[1, 2], [1, 2, 0], []]
    assert rows["two", 0]["prefix_hashes"] == [3]
    assert (trace.info.format, trace.info.hash_block_tokens, trace.info.rows) == ("kv_cache_tester", 64, 4)
    assert trace.info.descents == 0
    assert rows_of(open_trace(tmp_path / "sessions.tar.xz", arrivals="poisson:0.01", seed=3)) == rows_of(trace)
    other = open_trace(tmp_path / "sessions.tar.xz", arrivals="poisson:0.01", seed=4)
    assert column(other, "arrival_ns").tolist() != column(trace, "arrival_ns").tolist()


def test_sub_agents_are_nested_with_their_own_clock(tmp_path: Path) -> None:
    trace = open_trace(archive(tmp_path, NESTED), arrivals="poisson:1")
    found = [(row["arrival_ns"] // 10**9, row["session_id"], row["turn"], row["parent"]) for row in rows_of(trace)]
    agent = "three/agent_001/1"
    assert found == [(0, "three", 0, None), (100, agent, 0, "three"), (103, agent, 1, None), (110, "three", 1, None)]
    sessions = inspect_trace(trace).sessions
    assert sessions is not None
    assert (sessions.sessions, sessions.turns.max, sessions.unknown_parents) == (1, 4, 0)
    assert any("1 sessions, 1 sub-agents nested in them; 0 files" in note for note in trace.info.notes)


def test_a_sub_agent_may_start_another_and_follows_what_was_read_of_those_above(tmp_path: Path) -> None:
    """The first request of the outer agent is rejected: its second one continues the session instead."""
    inner = {"t": 5.0, "type": "subagent", "agent_id": "b", "requests": [request(0.0, 64, [4]), request(1.0, 64, [4])]}
    outer = {
        "t": 100.0, "type": "subagent", "agent_id": "a",
        "requests": [request(0.0, 64, [2], out=0), inner, request(9.0, 64, [2])],
    }  # fmt: skip
    trace = open_trace(archive(tmp_path, session("s", request(0.0, 64, [1]), outer)), arrivals="poisson:1")
    found = [(row["arrival_ns"] // 10**9, row["session_id"], row["parent"]) for row in rows_of(trace)]
    assert found == [(0, "s", None), (105, "s/b/2", "s"), (106, "s/b/2", None), (109, "s/a/1", "s")]
    sessions = inspect_trace(trace).sessions
    assert sessions is not None
    assert (sessions.sessions, sessions.unknown_parents) == (1, 0)
    deep: dict[str, Any] = request(0.0, 64, [3])
    for _ in range(200):
        deep = {"t": 1.0, "type": "subagent", "agent_id": "d", "requests": [deep]}
    trace = open_trace(archive(tmp_path, session("s", request(0.0, 64, [1]), deep)), arrivals="poisson:1")
    assert column(trace, "arrival_ns").tolist() == [0, 200 * 10**9]


def test_two_sessions_of_one_name_are_refused(tmp_path: Path) -> None:
    """They would be one conversation, whose turns wait for one another."""
    path = archive(tmp_path, ONE, session("one", request(0.0, 64, [3])))
    with pytest.raises(TraceError, match=r"1\.json: id 'one': an earlier file has it, with other requests"):
        open_trace(path, arrivals="poisson:1")


def test_a_body_that_appears_again_under_another_name_is_left_out_and_counted(tmp_path: Path) -> None:
    again = ONE.replace(b'"one"', b'"other"')
    trace = open_trace(archive(tmp_path, ONE, again, TWO), arrivals="poisson:1")
    assert set(column_text(trace, "session_id")) == {"one", "two"}
    assert any("2 sessions" in note and "1 files repeat the requests of another" in note for note in trace.info.notes)


def column_text(trace: Any, name: str) -> list[str]:
    return [row[name] for row in rows_of(trace)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (request(1, 64, [1], out=0), "output_tokens below 1"),
        (request(1, 0, []), "prompt_tokens below 1"),
        (request(1, 64, [1], **{"in": "64"}), "prompt_tokens not a whole number"),
        (request(1, 64, []), "prefix_hashes of another length than the prompt"),
        (request(1, 64, [[1]]), "prefix_hashes not a list of ids"),  # type: ignore[list-item]  # what is wrong with it
        (request(1, 64, [2**70]), "prefix_hashes not a list of ids"),
        (request(-1, 64, [1]), "arrival not a time"),
        (request(float("nan"), 64, [1]), "arrival not a time"),
        (request(1, 64, [1], think_time=-4), "think_time not a time"),
        (request(1, 64, [1], think_time="2"), "think_time not a time"),
        (request(1, 64, [1], think_time=3e6), "think_time not a time"),
        ({"t": None, "requests": []}, "sub-agent without time or requests"),
        ({"t": 2, "requests": [{"t": None, "requests": []}]}, "sub-agent without time or requests"),
    ],
)
def test_a_wrong_request_is_rejected_by_its_reason(tmp_path: Path, bad: dict[str, Any], reason: str) -> None:
    path = archive(tmp_path, TWO, session("bad", request(0, 64, [1]), bad))
    trace = open_trace(path, arrivals="poisson:1")
    assert (trace.info.rows, trace.info.rejected) == (2, {reason: 1})
    assert trace.info.rejected_examples[0].startswith(f"row 3: {reason}: ")
    with pytest.raises(TraceError, match=r"row 3: .*\(strict"):
        open_trace(path, arrivals="poisson:1", strict=True)


def test_session_starts_have_to_be_stated_and_nothing_else_may_be(tmp_path: Path) -> None:
    path = archive(tmp_path, ONE)
    with pytest.raises(TraceError, match=r"state a process of their arrivals, e\.g\. arrivals poisson:0\.05"):
        open_trace(path)
    with pytest.raises(TraceError, match="is an archive of sessions, so unit 's' says nothing"):
        open_trace(path, arrivals="poisson:1", unit="s")
    with pytest.raises(TraceError, match="so rows 5 says nothing"):
        open_trace(path, arrivals="poisson:1", rows=5)
    assert open_trace(path, arrivals="poisson:1", format="kv_cache_tester").info.rows == 3


def linked(info: tarfile.TarInfo) -> None:
    info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/hostname", 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda info: setattr(info, "name", "../../etc/cron.d/x"), "leads out of the archive"),
        (lambda info: setattr(info, "name", "/etc/x"), "leads out of the archive"),
        (lambda info: setattr(info, "name", "a\\..\\b"), "leads out of the archive"),
        (linked, "is a link or a device"),
        (lambda info: setattr(info, "type", tarfile.FIFOTYPE), "is a link or a device"),
    ],
)
def test_a_member_that_could_do_harm_is_refused(
    tmp_path: Path, change: Callable[[tarfile.TarInfo], None], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        open_trace(archive(tmp_path, ONE, TWO, change=change), arrivals="poisson:1")
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "has no list of requests"),
        (b'{"id": 5, "requests": []}', "has no id"),
        (b'{"id": "a", "block_size": 0, "requests": []}', "block_size 0: must be"),
        (b'{"id": "a", "block_size": 32, "requests": []}', "block_size 32: others have 64"),
    ],
)
def test_a_member_that_is_no_session_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=rf"traces/1\.json: {message}"):
        open_trace(archive(tmp_path, ONE, data), arrivals="poisson:1")


def test_an_archive_that_expands_a_thousandfold_is_refused(tmp_path: Path) -> None:
    """A million-fold one of zeros; and a member that claims to be larger than any session."""
    with pytest.raises(TraceError, match="expands to more than 1000 times its size"):
        open_trace(archive(tmp_path, ONE, bytes(68 << 20)), arrivals="poisson:1")
    huge = tarfile.TarInfo("traces/huge.json")
    huge.size = 1 << 40
    (tmp_path / "huge.tar").write_bytes(huge.tobuf())
    with pytest.raises(TraceError, match=r"has 1099511627776 bytes; at most"):
        open_trace(tmp_path / "huge.tar", arrivals="poisson:1")


@pytest.mark.parametrize("keep", [100, 0.5, -20])
def test_an_archive_that_was_cut_is_refused(tmp_path: Path, keep: float) -> None:
    path = archive(tmp_path, ONE, TWO)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(TraceError, match="damaged"):
        open_trace(path, arrivals="poisson:1")


def test_a_damaged_archive_is_read_or_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path, ONE, TWO, NESTED).read_bytes()
    plain = lzma.decompress(whole)
    refused = 0
    for seed in range(160):
        rng = random.Random(seed)
        path = tmp_path / "damaged"
        # The members, mostly: xz sees any damage to itself.
        path.write_bytes(damaged(whole, rng) if seed % 8 == 0 else damaged(plain, rng))
        try:
            trace = open_trace(path, arrivals="poisson:1")
            assert sum(batch.num_rows for batch in trace.batches()) == trace.info.rows
        except TraceError:
            refused += 1
    assert 20 < refused < 160


def test_curves_from_a_sample_of_the_blocks_are_near_those_from_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lines = []
    for at in range(4000):
        # Popular documents by a Zipf-like law, each a chain of 8 blocks.
        first = int(rng.zipf(1.3)) % 3000 * 8
        ids = list(range(first, first + 8))
        lines.append({"timestamp": at, "input_length": 4096, "output_length": 1, "hash_ids": ids})
    (tmp_path / "z.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    trace = open_trace(tmp_path / "z.jsonl")
    exact = prefix_reuse(trace)
    sampled = prefix_reuse(trace, most_touches=8000)
    assert exact is not None
    assert sampled is not None
    assert MOST_TOUCHES > 32_000
    assert exact.curve_share == 1
    assert 0.2 < sampled.curve_share < 0.3
    for percent, rate in exact.lru_blocks.items():
        assert sampled.lru_blocks[percent] == pytest.approx(rate, abs=0.08)
    unsampled = {"curve_share": 0.0, "lru_blocks": {}, "belady_blocks": {}}
    assert dataclasses.replace(sampled, **unsampled) == dataclasses.replace(exact, **unsampled)


def test_agents_merge_with_themselves_and_convert(tmp_path: Path) -> None:
    trace = open_trace(archive(tmp_path, ONE, NESTED), arrivals="poisson:1")
    merged = merge_traces([trace, trace])
    merged.to_parquet(tmp_path / "m.parquet")
    assert rows_of(open_trace(tmp_path / "m.parquet")) == rows_of(merged)
    assert {row["parent"] for row in rows_of(merged)} == {None, "1/three", "2/three"}


@pytest.mark.real
@pytest.mark.long
def test_the_public_sessions_are_read_whole(shared_traces: Path) -> None:
    """710 files, 692 of them distinct; 27 requests without output; contexts to 894,371 tokens."""
    path = shared_traces / "kv_cache_tester/claude_code_traces_710of739.tar.xz"
    trace = open_trace(path, arrivals="poisson:0.02", seed=1)
    assert trace.info.rejected == {"output_tokens below 1": 27}
    assert any("692 sessions" in note and "18 files repeat" in note for note in trace.info.notes)
    most = max(int(batch.column(0).to_numpy().max()) for batch in trace.batches(columns=("prompt_tokens",)))
    assert most == 894_371

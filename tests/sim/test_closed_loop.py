"""A closed loop: turns wait for answers; everything else is a replay as any other."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import run
from kvrm_traces import Trace, open_trace
from kvrm_traces.errors import TraceError
from tests.sim.small_replays import S, steady_hardware, tiny

#: arrival (s), prompt, output, session, parent, think (ms)
Turn = tuple[float, int, int, str, str | None, int | None]


def conversations(folder: Path, *turns: Turn, without: str | None = None) -> Trace:
    """``without``: a column under a name that nobody knows."""
    names = ["arrival", "prompt_tokens", "output_tokens", "session_id", "parent", "think_ms"]
    lines = [",".join("x" if name == without else name for name in names)]
    lines += [",".join("" if value is None else str(value) for value in turn) for turn in turns]
    path = folder / "turns.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return open_trace(path, unit="s", columns={name: name for name in names if name != without})


def steady(**settings: Any) -> ReplicaConfig:
    """Steps of 1 s."""
    return tiny("dynamic", **settings).model_copy(update={"hardware": steady_hardware(S)})


def rows_of(trace: Trace, config: ReplicaConfig, **how: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run(trace, config, driver="closed-loop", **how).requests.sort_by("row").to_pylist()
    return found


def test_a_turn_arrives_when_the_one_before_has_ended_and_its_user_has_thought(tmp_path: Path) -> None:
    """Steps of 1 s, two tokens each: the first turn ends at 2 s, its follower arrives at 2.5 s, ends at 4.5 s, and the
    agent that the follower started, recorded at 0.2 s, arrives then.
    """
    trace = conversations(
        tmp_path,
        (0, 10, 2, "a", None, None),
        (0.1, 20, 2, "a", None, 500),
        (0.2, 5, 1, "a/agent", "a", None),
    )
    found = rows_of(trace, steady())
    assert [row["arrival_ns"] for row in found] == [0, 5 * S // 2, 9 * S // 2]
    assert [row["finish_ns"] for row in found] == [2 * S, 9 * S // 2, 11 * S // 2]
    assert [row["prompt_tokens"] for row in found] == [10, 20, 5]


def test_a_conversation_goes_on_after_a_refusal(tmp_path: Path) -> None:
    trace = conversations(tmp_path, (1, 10_000, 2, "a", None, None), (2, 10, 1, "a", None, 250))
    found = rows_of(trace, steady(over_limit="reject"))
    assert [(row["outcome"], row["arrival_ns"]) for row in found] == [("rejected", 0), ("completed", S // 4)]


def test_without_conversations_that_go_on_it_is_the_open_loop(tmp_path: Path) -> None:
    turns: list[Turn] = [(at / 7, 5 + at % 40, 1 + at % 9, f"s{at}", None, 0) for at in range(60)]
    trace, config = conversations(tmp_path, *turns), steady()
    open_loop = run(trace, config, driver="events")
    closed = run(trace, config, driver="closed-loop")
    assert closed.requests.equals(open_loop.requests)
    assert closed.summary["ttft_s"] == open_loop.summary["ttft_s"]


def test_a_slower_server_is_asked_more_slowly(tmp_path: Path) -> None:
    turns: list[Turn] = [(at, 20, 4, f"s{at % 3}", None, 100) for at in range(30)]
    trace = conversations(tmp_path, *turns)
    spans = []
    for seconds in (1, 3):
        slow = tiny("dynamic").model_copy(update={"hardware": steady_hardware(seconds * S)})
        found = rows_of(trace, slow)
        assert all(row["outcome"] == "completed" for row in found)
        spans.append(max(row["arrival_ns"] for row in found))
        own = sorted((row["row"] % 3, row["arrival_ns"], row["finish_ns"]) for row in found)
        for (session, _, finish), (following, arrival, _) in pairwise(own):
            assert session != following or arrival == finish + S // 10
    assert spans[1] > 2 * spans[0]


def test_turns_that_were_not_sent_are_in_no_count(tmp_path: Path) -> None:
    trace = conversations(tmp_path, (0, 10, 2, "a", None, None), (0.1, 20, 2, "a", None, 500))
    stopped = run(trace, steady(), driver="closed-loop", stop_at_s=1.5)
    assert stopped.summary["counts"]["injected"] == 1
    assert stopped.summary["counts"]["unfinished"] == 1


#: (chat, parent, seconds, prompt, output, ids of 16-token blocks): two chats, of three turns and of two.
BAILIAN = [
    (1, -1, 100.0, 40, 2, [1, 2, 3]),
    (2, -1, 101.25, 32, 3, [7, 8]),
    (3, 1, 103.0, 64, 3, [1, 2, 4, 5]),
    (4, 2, 111.0, 48, 2, [7, 8, 9]),
    (5, 3, 112.0, 80, 1, [1, 2, 4, 5, 6]),
]


def bailian(folder: Path) -> Trace:
    names = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")
    path = folder / "qwen.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in BAILIAN))
    return open_trace(path)


def shared_blocks() -> ReplicaConfig:
    """Graph-paged with prefix sharing, steps of 1 s."""
    return tiny("graph-paged", step_ns=S, overrides={"pager.prefix_sharing": True})


def test_chats_of_bailian_are_replayed_in_a_closed_loop_once_it_is_said_how_long_users_think(tmp_path: Path) -> None:
    """A step gives a token to every row. The first chat's first turn ends at 2 s; its second arrives at 4.25 s, waits
    for the step that the other chat has begun at 4 s, and has its 3 tokens at 8 s. That chat's first turn came during
    the step from 1 s to 2 s and had its 3 tokens at 5 s: its second arrives at 7.25 s, is served from 8 s to 10 s. The
    first chat's third arrives at 10.25 s, into an idle server.
    """
    with pytest.raises(TraceError, match=r"needs the column think_ms .*--think"):
        run(bailian(tmp_path), shared_blocks(), driver="closed-loop")
    found = rows_of(bailian(tmp_path).with_think("constant:2.25"), shared_blocks())
    assert [row["arrival_ns"] / S for row in found] == [0, 1.25, 4.25, 7.25, 10.25]
    assert [row["finish_ns"] / S for row in found] == [2, 5, 8, 10, 11.25]
    # Of each chat's turn before: its whole blocks that both begin with.
    assert [row["hit_tokens"] for row in found] == [0, 0, 32, 32, 64]
    assert [row["prompt_tokens"] for row in found] == [40, 32, 64, 48, 80]


def test_recorded_times_make_the_recorded_arrivals_on_a_server_as_fast_as_they_say(tmp_path: Path) -> None:
    """Alone on the server, a turn of n tokens takes n steps of 1 s, which is what recorded:1000 takes off."""
    turns: list[Turn] = [(at * 10, 8, 1 + at % 3, "a", None, None) for at in range(6)]
    trace = conversations(tmp_path, *turns, without="think_ms").with_think("recorded:1000")
    assert [row["arrival_ns"] for row in rows_of(trace, steady())] == [at * 10 * S for at in range(6)]


def test_a_chat_whose_first_turns_are_cut_off_begins_with_the_first_that_is_left(tmp_path: Path) -> None:
    """A window from 3 s on: the second turns of both chats come at the trace's times, 8 s apart; the third follows."""
    found = rows_of(bailian(tmp_path).with_think("constant:2.25").window(3), shared_blocks())
    assert [row["arrival_ns"] / S for row in found] == [0, 8, 3 + 2.25]


def test_a_closed_loop_replays_whole_prompts_of_deltas(tmp_path: Path) -> None:
    turns: list[Turn] = [(0, 10, 2, "a", None, None), (1, 6, 2, "a", None, 500), (2, 1, 1, "a", None, 500)]
    found = rows_of(conversations(tmp_path, *turns).whole_prompts(), steady())
    assert [row["prompt_tokens"] for row in found] == [10, 18, 21]
    assert [row["arrival_ns"] / S for row in found] == [0, 2.5, 5]


@pytest.mark.parametrize("missing", ["think_ms", "session_id"])
def test_a_trace_without_turns_is_refused(tmp_path: Path, missing: str) -> None:
    trace = conversations(tmp_path, (0, 10, 2, "a", None, 1), (1, 10, 2, "a", None, 1), without=missing)
    with pytest.raises(TraceError, match=f"needs the column {missing}"):
        run(trace, steady(), driver="closed-loop")

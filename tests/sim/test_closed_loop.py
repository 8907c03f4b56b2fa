"""A closed loop: turns wait for answers; everything else is a replay as any other."""

from __future__ import annotations

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


@pytest.mark.parametrize("missing", ["think_ms", "session_id"])
def test_a_trace_without_turns_is_refused(tmp_path: Path, missing: str) -> None:
    trace = conversations(tmp_path, (0, 10, 2, "a", None, 1), (1, 10, 2, "a", None, 1), without=missing)
    with pytest.raises(TraceError, match=f"needs the column {missing}"):
        run(trace, steady(), driver="closed-loop")

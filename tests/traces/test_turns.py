"""Turns that hold only what they add: prompts put together, once, where it makes sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kvrm_traces import Trace, TraceError, inspect_trace, merge_traces, open_trace
from kvrm_traces.numbers import LARGEST
from tests.traces.conversations import TURNS, Turn, by_arrival, continued, written_turns
from tests.traces.rows import column, csv_of, rows_of, written

#: Three turns of one conversation, one of another between them.
CHAT: list[Turn] = [
    (0, 10, 3, "a", None),
    (1_000_000, 100, 1, "b", None),
    (2_000_000, 5, 4, "a", None),
    (9_000_000, 7, 2, "a", None),
]


def chat(folder: Path, turns: str | None = "delta") -> Trace:
    return open_trace(written_turns(folder, CHAT), turns=turns)  # type: ignore[arg-type]


def test_a_prompt_is_what_was_said_before_and_what_its_turn_adds(tmp_path: Path) -> None:
    trace = chat(tmp_path)
    assert column(trace, "prompt_tokens").tolist() == [10, 100, 10 + 3 + 5, 18 + 4 + 7]
    assert column(trace, "output_tokens").tolist() == [3, 1, 4, 2]
    assert trace.info.notes[-1] == (
        "turns delta: 2 of 4 prompts were put behind the turns before them; the longest has 100 tokens"
    )
    assert trace.limit(3).transforms == "turns delta, limit 3"
    assert inspect_trace(trace).sessions.cumulative_share == 1.0  # type: ignore[union-attr]


@given(turns=TURNS, rows=some.integers(1, 30))
def test_prompts_are_those_of_an_accumulation_by_hand(
    tmp_path_factory: pytest.TempPathFactory, turns: list[Turn], rows: int
) -> None:
    trace = open_trace(written_turns(tmp_path_factory.mktemp("d"), turns), turns="delta")
    ordered, expected = by_arrival(turns), list[int]()
    for (_, prompt, _, _, _), before in zip(ordered, continued(ordered), strict=True):
        expected.append(prompt if before is None else expected[before] + ordered[before][2] + prompt)
    assert column(trace, "prompt_tokens", rows).tolist() == expected
    # What is chosen afterwards is chosen of whole prompts, and columns come in the order that is asked for.
    half = trace.replicas(2)
    assert column(half, "prompt_tokens", rows).tolist() == expected[::2]
    batches = trace.batches(rows, ("output_tokens", "prompt_tokens", "arrival_ns"))
    found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert found == [(turn[2], prompt, turn[0] * 1000) for turn, prompt in zip(ordered, expected, strict=True)]


def test_whole_prompts_are_another_trace_that_can_be_kept(tmp_path: Path) -> None:
    whole, plain = chat(tmp_path), chat(tmp_path, None)
    assert plain.transforms is None
    assert whole.info.sha256 != plain.info.sha256
    assert plain.whole_prompts().info.sha256 == whole.info.sha256
    whole.to_parquet(tmp_path / "whole.parquet")
    kept = open_trace(tmp_path / "whole.parquet")
    assert rows_of(kept) == rows_of(whole)
    assert kept.transforms is None
    # A file that was converted before anybody knew is made whole as well; one that is whole is not made so again.
    plain.to_parquet(tmp_path / "plain.parquet")
    assert rows_of(open_trace(tmp_path / "plain.parquet", turns="delta")) == rows_of(whole)
    for again in (lambda: open_trace(tmp_path / "whole.parquet", turns="delta"), whole.whole_prompts):
        with pytest.raises(TraceError, match="holds its whole conversation already"):
            again()


def test_conversations_of_merged_traces_stay_apart(tmp_path: Path) -> None:
    plain = merge_traces([chat(tmp_path, None), chat(tmp_path, None)])
    prompts = column(plain.whole_prompts(), "prompt_tokens").tolist()
    assert prompts == [10, 10, 100, 100, 18, 18, 29, 29]
    with pytest.raises(TraceError, match="already"):
        merge_traces([chat(tmp_path), chat(tmp_path)]).whole_prompts()


def test_cumulative_is_what_is_read_unless_it_is_stated(tmp_path: Path) -> None:
    assert rows_of(chat(tmp_path, "cumulative")) == rows_of(chat(tmp_path, None))
    said = "turns: each prompt is read as the whole conversation so far; where they are not, state turns delta"
    assert said in chat(tmp_path, None).info.notes
    assert said not in chat(tmp_path, "cumulative").info.notes


def test_inspect_says_where_turns_look_like_deltas(tmp_path: Path) -> None:
    advice = "look like what each adds"
    assert advice in inspect_trace(chat(tmp_path, None)).to_text()
    assert "--turns delta" in inspect_trace(chat(tmp_path, None)).to_text()
    # Whoever states what they are is believed.
    assert advice not in inspect_trace(chat(tmp_path, "cumulative")).to_text()
    assert advice not in inspect_trace(chat(tmp_path)).to_text()


@pytest.mark.parametrize("turns", ["delta", "cumulative"])
def test_a_file_without_sessions_has_no_turns(tmp_path: Path, turns: str) -> None:
    path = written(tmp_path, csv_of((0, 5, 5), (1, 5, 5)))
    with pytest.raises(TraceError, match="has no column session_id"):
        open_trace(path, turns=turns)  # type: ignore[arg-type]


def test_what_cannot_be_put_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="turns 'deltas': must be cumulative or delta"):
        chat(tmp_path, "deltas")
    hashed = written_turns(tmp_path, CHAT, "hashed.jsonl", prefix_hashes=[1])
    with pytest.raises(TraceError, match="has prefix hashes, which are those of each turn alone"):
        open_trace(hashed, hash_block_tokens=512, turns="delta")
    line = '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 4, "output_length": 1}\n'
    with pytest.raises(TraceError, match="holds its whole conversation already; leave out the turns"):
        open_trace(written(tmp_path, line, "b.jsonl"), turns="delta")
    with pytest.raises(TraceError, match="is a built-in trace, so turns 'delta' says nothing"):
        open_trace("chat-burst", turns="delta")
    with pytest.raises(TraceError, match="turns delta: comes before window"):
        chat(tmp_path, None).limit(2).whole_prompts()


def test_a_prompt_beyond_what_a_prompt_may_be_names_its_row(tmp_path: Path) -> None:
    turns: list[Turn] = [(0, 3, 3, "b", None), (1, LARGEST - 1, 1, "a", None), (2, 1, 1, "a", None)]
    fits = open_trace(written_turns(tmp_path, turns[:2]), turns="delta")
    assert column(fits, "prompt_tokens").tolist() == [3, LARGEST - 1]
    with pytest.raises(TraceError, match=rf"row 3 in order of arrival, session 'a': .* would be {LARGEST + 1}, above"):
        open_trace(written_turns(tmp_path, turns), turns="delta")

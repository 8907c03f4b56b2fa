"""Generated conversations: what a turn adds, when it comes, which blocks it shares, and with whom."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvrm
from kvrm_traces import Trace, TraceError, fit_trace, inspect_trace, open_trace
from tests.traces.rows import column, rows_of

TOML = """
rows = 4000
[arrivals]
process = "poisson"
rate_per_s = 2
[prompt_tokens]
distribution = "geometric"
mean = 60
least_tokens = 5
most_tokens = 500
[output_tokens]
distribution = "lognormal"
mu = 4
sigma = 1
least_tokens = 3
most_tokens = 300
[sessions]
answer_ms_per_token = 12.5
most_context_tokens = 2000
hash_block_tokens = 16
[sessions.turns]
distribution = "geometric"
mean = 5
least_turns = 1
most_turns = 40
[sessions.think_ms]
distribution = "lognormal"
mu = 8
sigma = 1
least_ms = 200
most_ms = 100000
[[sessions.prefixes]]
count = 3
zipf = 1.0
tokens = { distribution = "constant", tokens = 100 }
[[sessions.prefixes]]
count = 2
zipf = 0
tokens = { distribution = "constant", tokens = 61 }
"""


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generator") / "talk.toml"
    path.write_text(TOML)
    return path


def conversations(trace: Trace) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in rows_of(trace):
        found[row["session_id"]].append(row)
    return dict(found)


@settings(max_examples=40)
@given(seed=st.integers(0, 99), piece=st.integers(1, 700), start=st.integers(0, 200), limit=st.integers(1, 300))
def test_rows_do_not_depend_on_how_they_are_read(
    generator: Path, seed: int, piece: int, start: int, limit: int
) -> None:
    whole = rows_of(open_trace(generator, rows=300, seed=seed))
    assert rows_of(open_trace(generator, rows=limit, seed=seed), piece) == whole[:limit]
    begin_ns = whole[start]["arrival_ns"]
    window = rows_of(open_trace(generator, rows=300, seed=seed).window(begin_ns / 1e9), piece)
    later = [row for row in whole if row["arrival_ns"] >= round(begin_ns / 1e9 * 1e9)]
    assert [row["prefix_hashes"] for row in window] == [row["prefix_hashes"] for row in later]
    assert [row["session_id"] for row in window] == [row["session_id"] for row in later]


def test_batches_hold_no_more_hashes_than_memory_does(generator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows_of(open_trace(generator, rows=300, seed=1))
    monkeypatch.setattr("kvrm_traces.synth.conversations._MOST_IDS", 100)
    trace = open_trace(generator, rows=300, seed=1)
    batches = list(trace.batches(columns=("arrival_ns", "prefix_hashes")))
    counts = [(batch.num_rows, len(batch.column(1).flatten())) for batch in batches]
    assert all(rows == 1 or ids <= 100 for rows, ids in counts)
    assert max(rows for rows, _ in counts) > 1
    assert [hashes for batch in batches for hashes in batch.column(1).to_pylist()] == [
        row["prefix_hashes"] for row in whole
    ]


def test_a_turn_repeats_all_before_it_and_comes_when_its_user_has_thought(generator: Path) -> None:
    trace = open_trace(generator, seed=5)
    assert trace.info.hash_block_tokens == 16
    arrivals = column(trace, "arrival_ns")
    assert arrivals[0] == 0
    assert np.all(np.diff(arrivals) >= 0)
    talks = conversations(trace)
    assert sum(len(talk) for talk in talks.values()) == 4000
    for talk in talks.values():
        assert [row["turn"] for row in talk] == list(range(1, len(talk) + 1))
        assert talk[0]["think_ms"] is None
        assert 161 + 5 <= talk[0]["prompt_tokens"] <= 161 + 500
        for before, after in pairwise(talk):
            message = after["prompt_tokens"] - before["prompt_tokens"] - before["output_tokens"]
            assert 5 <= message <= 500
            assert 200 <= after["think_ms"] <= 100_000
            answered_ns = before["output_tokens"] * 12_500_000
            assert after["arrival_ns"] - before["arrival_ns"] == answered_ns + after["think_ms"] * 10**6
        assert all(row["prompt_tokens"] + row["output_tokens"] <= 2000 for row in talk)


def test_whole_blocks_are_shared_by_what_was_said_before_and_by_the_texts_of_the_path(generator: Path) -> None:
    trace = open_trace(generator, seed=6)
    report = inspect_trace(trace)
    assert report.hash_consistency is not None
    assert (
        report.hash_consistency.rows_without,
        report.hash_consistency.other_prefix,
        report.hash_consistency.other_fill,
    ) == (0, 0, 0)
    first_rows = []
    for talk in conversations(trace).values():
        first_rows.append(talk[0])
        for row in talk:
            assert len(row["prefix_hashes"]) == -(-row["prompt_tokens"] // 16)
        for before, after in pairwise(talk):
            whole = before["prompt_tokens"] // 16
            assert after["prefix_hashes"][:whole] == before["prefix_hashes"][:whole]
            rest = before["prefix_hashes"][whole:]  # of a block that was not full: nobody has it again
            assert not set(rest) & set(after["prefix_hashes"])
    # 100 tokens are 6 blocks of one of three texts; with 61 more, 10 blocks: 4 of one of six.
    heads = {tuple(row["prefix_hashes"][:6]) for row in first_rows}
    paths = {tuple(row["prefix_hashes"][:10]) for row in first_rows}
    assert (len(heads), len(paths)) == (3, 6)
    assert len({block for head in heads for block in head}) == 18
    assert len({block for path in paths for block in path}) == 18 + 24
    behind = [block for row in first_rows for block in row["prefix_hashes"][10:]]
    assert len(behind) == len(set(behind)), "what a conversation says is its own"


def test_popular_texts_follow_zipfs_law(generator: Path) -> None:
    firsts = [talk[0]["prefix_hashes"] for talk in conversations(open_trace(generator, rows=20_000, seed=7)).values()]
    shares = np.bincount([hashes[0] // 6 for hashes in firsts]) / len(firsts)
    assert shares == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.03)


def test_ids_are_dense(generator: Path) -> None:
    rows = rows_of(open_trace(generator, rows=20_000, seed=8))
    ids = {block for row in rows for block in row["prefix_hashes"]}
    # Conversations that the last row cuts off have ids that nobody sees.
    assert 0.9 < len(ids) / (max(ids) + 1) <= 1.0


def test_a_conversation_ends_before_the_context_and_its_first_request_is_cut_to_it(
    generator: Path, tmp_path: Path
) -> None:
    text = generator.read_text()
    for old, new in (
        ('"geometric"\nmean = 60\nleast_tokens = 5\nmost_tokens = 500', '"constant"\ntokens = 50'),
        ('"lognormal"\nmu = 4\nsigma = 1\nleast_tokens = 3\nmost_tokens = 300', '"constant"\ntokens = 30'),
        ("most_context_tokens = 2000", "most_context_tokens = 410"),
        ('"geometric"\nmean = 5\nleast_turns = 1\nmost_turns = 40', '"constant"\nturns = 9'),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "short.toml").write_text(text)
    # 161 + 50 and 30 are 241; then 291 + 30 = 321, 371 + 30 = 401; the next would be 451 + 30.
    talks = list(conversations(open_trace(tmp_path / "short.toml", rows=500)).values())
    assert max(len(talk) for talk in talks) == 3
    assert [row["prompt_tokens"] for talk in talks if len(talk) == 3 for row in talk][:3] == [211, 291, 371]
    (tmp_path / "tight.toml").write_text(text.replace("= 410", "= 200"))
    for talk in conversations(open_trace(tmp_path / "tight.toml", rows=50)).values():
        assert [(row["prompt_tokens"], row["output_tokens"]) for row in talk] == [(170, 30)]
    (tmp_path / "tightest.toml").write_text(text.replace("= 410", "= 163"))
    for talk in conversations(open_trace(tmp_path / "tightest.toml", rows=50)).values():
        assert [(row["prompt_tokens"], row["output_tokens"]) for row in talk] == [(162, 1)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("most_context_tokens = 2000", "most_context_tokens = 162", "sessions.most_context_tokens = 162: must be 163"),
        ("most_turns = 40", "most_turns = 1", "sessions.turns.most_turns = 1: must be above least_turns = 1"),
        ("mean = 5", "mean = 0.5", "sessions.turns.mean = 0.5: must be a finite number from 1"),
        ("most_ms = 100000", "most_tokens = 5", "sessions.think_ms.most_ms: is missing"),
        ("count = 3", "count = 2000000", "sessions.prefixes: have 6,000,000 texts, a product of counts; at most"),
        ("zipf = 1.0", "zipf = -1", r"sessions.prefixes\[0\].zipf = -1: must be a finite number from 0"),
        ("zipf = 1.0", "zipfs = 1", r"sessions.prefixes\[0\].zipf: is missing"),
        ("hash_block_tokens = 16", "hash_block_tokens = 0", "sessions.hash_block_tokens = 0: must be a whole number"),
        ("answer_ms_per_token = 12.5", "answer_ms_per_token = 1e12", "of them may take .* s, more than 1.15e\\+09 s"),
        ("[sessions]", "[sessions]\nturn = 3", "sessions.turn = 3: no such key; did you mean turns"),
    ],
)
def test_a_wrong_generator_names_the_key(generator: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TOML
    (tmp_path / "mine.toml").write_text(TOML.replace(old, new, 1))
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(tmp_path / "mine.toml")
    assert "mine.toml" in str(caught.value)


def test_texts_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "alone.toml").write_text(TOML[: TOML.index("[[sessions.prefixes]]")])
    talks = conversations(open_trace(tmp_path / "alone.toml", rows=500))
    ids = [{block for row in talk for block in row["prefix_hashes"]} for talk in talks.values()]
    assert sum(map(len, ids)) == len(set().union(*ids)), "nothing is shared between conversations"


def test_a_closed_loop_finds_what_the_turn_before_was_asked(generator: Path) -> None:
    """With a pool that holds everything: the whole blocks of its prompt; the answer's have no hashes until now."""
    trace = open_trace(generator, rows=150, seed=9)
    run = kvrm.replay(trace, "graph-paged", driver="closed-loop", overrides={"pager.prefix_sharing": True})
    found = run.requests().set_index("row")["hit_tokens"]
    prompts: dict[str, int] = {}
    for number, row in enumerate(rows_of(trace)):
        if row["session_id"] in prompts:
            assert found[number] == prompts[row["session_id"]] // 16 * 16
        prompts[row["session_id"]] = row["prompt_tokens"]
    assert len(prompts) < 150


def test_fitting_conversations_finds_what_they_were_made_of(tmp_path: Path) -> None:
    trace = open_trace("chat-sessions", rows=12_000, seed=3)
    fit = fit_trace(trace, seed=1)
    assert fit.conversations is not None
    assert 3 < 12_000 / fit.conversations < 4
    made = tomllib.loads(fit.toml)
    assert made["sessions"]["answer_ms_per_token"] == 20
    assert made["sessions"]["hash_block_tokens"] == 16
    assert made["arrivals"]["rate_per_s"] == pytest.approx(0.7, rel=0.05)
    assert made["prompt_tokens"]["tokens"][-1] <= 4096, "what a turn adds"
    for name in ("output_tokens", "message_tokens", "think_ms"):
        assert fit.distances[name].distance < 2 * fit.distances[name].chance, name
    for name in ("prompt_tokens", "turns", "gaps"):
        assert fit.distances[name].distance < 0.06, name
    assert f"12000 in {fit.conversations} conversations" in fit.to_text()
    (tmp_path / "like.toml").write_text(fit.toml)
    again = open_trace(tmp_path / "like.toml", seed=2)
    means = [column(one, "prompt_tokens").mean() for one in (again, trace)]
    assert means[0] == pytest.approx(means[1], rel=0.05)


def test_the_first_message_may_be_of_other_lengths(generator: Path, tmp_path: Path) -> None:
    text = TOML.replace(
        "[sessions.turns]", '[sessions.first_prompt_tokens]\ndistribution = "constant"\ntokens = 700\n[sessions.turns]'
    )
    (tmp_path / "first.toml").write_text(text)
    talks, others = (conversations(open_trace(path, seed=4)) for path in (tmp_path / "first.toml", generator))
    assert {talk[0]["prompt_tokens"] for talk in talks.values()} == {161 + 700}
    for name, talk in talks.items():
        if len(talk) > 1 and len(others.get(name, ())) > 1:
            assert talk[1]["think_ms"] == others[name][1]["think_ms"], "all else is drawn as it was"


def test_turns_that_hold_less_than_was_said_are_fitted_request_by_request(tmp_path: Path) -> None:
    lines = [f"{at},{10 + at % 7},20,{at // 3}" for at in range(600)]
    (tmp_path / "t.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,session_id", *lines, ""]))
    fit = fit_trace(open_trace(tmp_path / "t.csv"))
    assert fit.conversations is None
    assert "sessions" not in tomllib.loads(fit.toml)

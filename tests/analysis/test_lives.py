"""One request's life adds up, and who stood in its way is named."""

from __future__ import annotations

import itertools
import json

import pyarrow.compute as pc
import pytest

import kvrm
from kvrm_analysis.life_text import render, to_dict
from kvrm_analysis.lives import DECODE, HELD_UP, PREFILL, WAITING, Life, shares
from kvrm_analysis.runs import NamedRun
from kvrm_sim.errors import InputError
from tests.analysis.small_runs import replayed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> NamedRun:
    return replayed(tmp_path_factory.mktemp("runs") / "run", "kv-rm", speedup=2.0, pool_blocks=1200)


def rows_with(run: NamedRun, most: str) -> int:
    """The completed request that has most of a column."""
    assert run.requests is not None
    done = run.requests.filter(pc.equal(run.requests["outcome"].cast("string"), "completed"))
    return int(done["row"][int(pc.index(done[most], pc.max(done[most])).as_py())].as_py())


def check_sums(life: Life) -> None:
    request = life.request
    phases = life.phases
    assert phases[0].start_ns == request["arrival_ns"]
    assert phases[-1].end_ns == request["finish_ns"]
    assert all(before.end_ns == after.start_ns for before, after in itertools.pairwise(phases))
    for phase in phases:
        if phase.kind in (PREFILL, DECODE):
            assert sum(phase.parts_ns.values()) == phase.duration_ns
    waited = next(phase.end_ns for phase in phases if phase.kind == WAITING)
    assert waited == request["admitted_ns"]
    prefilled = next(phase.end_ns for phase in phases if phase.kind == PREFILL)
    assert prefilled == request["first_token_ns"]


def test_a_life_adds_up_to_the_nanosecond(run: NamedRun) -> None:
    assert run.folder is not None
    life = kvrm.explain(run.folder)
    check_sums(life)
    assert life.ranks["e2e"] == max(share for share in life.ranks.values() if share is not None)
    tokens = sum(phase.tokens for phase in life.phases if phase.kind == DECODE)
    prompt = sum(phase.tokens for phase in life.phases if phase.kind == PREFILL)
    assert tokens + int(life.request["preemptions"] or 0) + 1 == life.request["delivered_tokens"]
    assert prompt >= int(life.request["prompt_tokens"] or 0)


def test_a_preempted_request_waits_again_and_computes_again(run: NamedRun) -> None:
    assert run.folder is not None
    life = kvrm.explain(run.folder, rows_with(run, "preemptions"))
    check_sums(life)
    preemptions = int(life.request["preemptions"] or 0)
    assert preemptions > 0
    assert len(life.waits) == 1 + preemptions
    assert [wait.after_preemption for wait in life.waits] == [False] + [True] * preemptions
    assert sum(phase.kind == PREFILL for phase in life.phases) == 1 + preemptions
    assert life.longest_gap_ns is not None
    again = life.waits[1].phase
    assert life.longest_gap_ns > again.duration_ns
    assert "after it was preempted" in render(life)


def test_who_waits_is_told_for_whom(run: NamedRun) -> None:
    assert run.folder is not None
    life = kvrm.explain(run.folder, slowest="queue")
    (wait, *_) = life.waits
    assert wait.phase.duration_ns > 1e9
    assert wait.held_share is not None
    assert wait.held_share > 0.8
    assert wait.holders[0].blocks >= wait.holders[-1].blocks > 0
    assert wait.num_holders >= len(wait.holders)
    assert all(other.row != life.request["row"] for other in wait.holders)
    assert life.request["row"] not in wait.ahead
    text = render(life)
    assert f"request {wait.holders[0].row} (" in text
    assert "blocks held, on average" in text


def test_prompts_of_others_are_named_where_tokens_waited_for_them(run: NamedRun) -> None:
    assert run.folder is not None
    life = kvrm.explain(run.folder, slowest="tpot")
    assert life.disturbed_steps > 0
    assert life.disturbers
    assert life.disturbed_ns <= shares(life.phases)[DECODE]
    assert "its tokens waited for prompts of others" in render(life)


def test_steps_that_leave_a_request_out_hold_it_up(run: NamedRun, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs") / "separate"
    assert replayed(folder, "graph-paged", speedup=2.0, prefill="separate").folder == folder
    life = kvrm.explain(folder, slowest="tpot")
    check_sums(life)
    assert shares(life.phases)[HELD_UP] > 0


def test_accepted_drafts_count_as_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs") / "drafts"
    run = replayed(folder, "graph-paged", overrides={"speculation.draft_tokens": 3, "speculation.acceptance": 0.7})
    life = kvrm.explain(folder)
    check_sums(life)
    decode = [phase for phase in life.phases if phase.kind == DECODE]
    assert sum(phase.tokens for phase in decode) > 1.5 * sum(phase.steps for phase in decode)
    assert life.request["preemptions"] == 0
    assert sum(phase.tokens for phase in decode) + 1 == life.request["delivered_tokens"]
    assert run.summary["speculation"]["accepted_tokens"] > 0


def test_json_holds_the_same(run: NamedRun) -> None:
    assert run.folder is not None
    life = kvrm.explain(run.folder)
    found = json.loads(json.dumps(to_dict(life)))
    assert found["request"]["row"] == life.request["row"]
    assert sum(found["time_ns"].values()) == found["request"]["finish_ns"] - found["request"]["arrival_ns"]


def test_a_request_of_a_cluster_is_explained_on_its_replica(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs") / "cluster"
    run = replayed(folder, "graph-paged", cluster=2, speedup=4.0)
    life = kvrm.explain(folder, replica=1)
    check_sums(life)
    assert run.requests is not None
    assert life.request["replica"] == 1


def test_what_has_no_life_is_refused(run: NamedRun) -> None:
    assert run.folder is not None
    assert run.requests is not None
    with pytest.raises(InputError, match="request 5000: run 'kv-rm' has 0 to 299"):
        kvrm.explain(run.folder, 5000)
    rejected = run.requests.filter(pc.equal(run.requests["outcome"].cast("string"), "rejected"))
    with pytest.raises(InputError, match=r"it was rejected \("):
        kvrm.explain(run.folder, rejected["row"][0].as_py())
    with pytest.raises(InputError, match="slowest by 'itl'"):
        kvrm.explain(run.folder, slowest="itl")

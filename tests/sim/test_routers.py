"""Each router's choice, on replicas whose state is set by hand or reached by hand-worked steps."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvrm_sim import state as st
from kvrm_sim.errors import ConfigError
from kvrm_sim.feed import NO_IDS
from kvrm_sim.replica import Replica
from kvrm_sim.router_views import ReplicaView, RoutedRequest
from kvrm_sim.routers import LeastLoaded, PrefixAware, make_router
from kvrm_sim.words import ROUTERS
from tests.sim.core_runs import arrival_ids, arrival_records, new_run, parameters_for
from tests.sim.reference_records import Arrival, ReferenceConfig
from tests.sim.small_replays import S, constant, contiguous, paged, requests


def view(requests: int = 0, tokens: int = 0, held: int = 0, wanted: int = 0, cached: int = 0) -> Any:
    """A replica in that state: what routers read of it."""
    return SimpleNamespace(
        requests=requests,
        held_blocks=held,
        block_size_tokens=16,
        work_ahead=lambda: (tokens, wanted),
        cached_prompt_tokens=lambda request: cached,
    )


def chosen(name: str, views: Sequence[Any], *, row: int = 0, prompt: int = 160, weight: float | None = None) -> int:
    return make_router(name, weight).choose(RoutedRequest(row, prompt), views, 0)


def test_round_robin_takes_turns_whatever_the_state() -> None:
    views = [view(requests=9), view(), view(tokens=5)]
    assert [chosen("round-robin", views, row=row) for row in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("name", [name for name in ROUTERS if name != "round-robin"])
def test_of_equals_the_first_is_taken(name: str) -> None:
    assert chosen(name, [view(requests=2, tokens=7, held=3)] * 3) == 0


def test_least_loaded_counts_requests_alone() -> None:
    assert chosen("least-loaded", [view(requests=3), view(requests=2, tokens=9999, held=99), view(requests=2)]) == 1


def test_least_tokens_counts_prompts_to_be_computed_then_requests() -> None:
    assert chosen("least-tokens", [view(tokens=10), view(requests=50, tokens=9), view(tokens=11)]) == 1
    assert chosen("least-tokens", [view(requests=2), view(requests=1), view(requests=3)]) == 1


def test_least_kv_counts_what_waits_too() -> None:
    assert chosen("least-kv", [view(held=10, wanted=5), view(held=14), view(held=1, wanted=14)]) == 1


def test_prefix_aware_weighs_what_is_cached_against_what_is_held() -> None:
    """160 tokens are 10 blocks of 16: 8 of them cached are worth 8 held blocks at weight 1, 16 at weight 2."""
    for held, weight, expected in ((7, None, 1), (8, None, 0), (9, None, 0), (15, 2.0, 1), (16, 2.0, 0), (1, 0.0, 0)):
        assert chosen("prefix-aware", [view(), view(held=held, cached=128)], weight=weight) == expected, held
    assert chosen("prefix-aware", [view(tokens=160), view(wanted=9)]) == 1, "prompts ahead and blocks wanted count"


def test_a_session_stays_where_its_first_request_went() -> None:
    router = make_router("session-sticky")
    free_first, free_second = [view(), view(requests=5)], [view(requests=5), view()]
    assert router.choose(RoutedRequest(0, 1, session=0), free_second, 0) == 1
    assert router.choose(RoutedRequest(1, 1, session=1), free_first, 0) == 0
    assert router.choose(RoutedRequest(2, 1, session=0), free_first, 0) == 1
    assert router.choose(RoutedRequest(3, 1, session=1), free_second, 0) == 0
    assert router.choose(RoutedRequest(4, 1, session=None), free_second, 0) == 1
    assert router.choose(RoutedRequest(5, 1, session=None), free_first, 0) == 0, "without a session nothing is kept"


def test_one_runs_sessions_are_not_the_next_runs() -> None:
    first, second = make_router("session-sticky"), make_router("session-sticky")
    assert first.choose(RoutedRequest(0, 1, session=0), [view(requests=1), view()], 0) == 1
    assert second.choose(RoutedRequest(0, 1, session=0), [view(), view(requests=1)], 0) == 0


def test_every_router_is_described_and_made() -> None:
    for name in ROUTERS:
        assert isinstance(make_router(name).stateless, bool)
    assert isinstance(make_router("least-loaded"), LeastLoaded)
    weighted = make_router("prefix-aware", 0.5)
    assert isinstance(weighted, PrefixAware)
    assert weighted.weight == 0.5


@pytest.mark.parametrize(
    ("name", "weight", "message"),
    [
        ("least-laoded", None, "did you mean 'least-loaded'"),
        ("least-kv", 1.0, "'prefix-aware' has one"),
        ("prefix-aware", -1.0, "at least 0"),
        ("prefix-aware", float("nan"), "at least 0"),
    ],
)
def test_a_wrong_router_is_refused(name: str, weight: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_router(name, weight)


# What a view reads of a real replica. Steps last 1 s, blocks hold 16 tokens.


def advanced(config: ReferenceConfig, arrivals: Sequence[Arrival], until_ns: int) -> Replica:
    replica = new_run(parameters_for(config, constant(S))).replica
    replica.supply(arrival_records(arrivals), known_until_ns=st.NEVER, ids=arrival_ids(arrivals))
    replica.advance(until_ns, max_steps=1000)
    return replica


@pytest.mark.core
def test_a_view_reads_the_state_at_the_time() -> None:
    """Two slots, a budget of 32. At 0: rows 0 (20 tokens) and 1 (12 of its 40); row 2 waits for a slot."""
    config = paged(slots=2, token_budget=32)
    rows = requests((0, 20, 5), (0, 40, 5), (0, 33, 5))
    half = ReplicaView(advanced(config, rows, S // 2))
    assert (half.running, half.waiting, half.requests, half.decoding_rows) == (2, 1, 3, 0)
    assert (half.held_blocks, half.available_blocks) == (2 + 3, 95), "the whole prompt's blocks at admission"
    assert half.work_ahead() == (20 + 40 + 33, 3), "as of the start of the step in flight"
    after = ReplicaView(advanced(config, rows, S))
    assert (after.running, after.waiting, after.decoding_rows) == (2, 1, 1)
    assert after.work_ahead() == (28 + 33, 3)


@pytest.mark.core
def test_a_view_counts_what_has_just_arrived_and_not_what_has_just_finished() -> None:
    rows = requests((0, 5, 1), (S, 5, 1), (S, 5, 1))
    seen = ReplicaView(advanced(paged(slots=1), rows, S))
    assert (seen.running, seen.waiting, seen.held_blocks) == (0, 2, 0)


@pytest.mark.core
@pytest.mark.parametrize("order", ["fcfs", "shortest_prompt"])
def test_the_waiting_are_summed_in_any_order(order: str) -> None:
    rows = requests((0, 5, 90), *[(0, tokens, 2) for tokens in (160, 17, 1, 96)])
    seen = ReplicaView(advanced(paged(slots=1, order=order), rows, S // 2))
    tokens, blocks = seen.work_ahead()
    first = 5 if order == "fcfs" else 1
    assert tokens == 5 + 160 + 17 + 1 + 96
    assert blocks == {5: 10 + 2 + 1 + 6, 1: 1 + 10 + 2 + 6}[first]


@pytest.mark.core
def test_a_contiguous_reservation_is_wanted_whole() -> None:
    rows = requests((0, 16, 17), (0, 16, 17), (0, 1, 80))
    seen = ReplicaView(advanced(contiguous("oracle", slots=1), rows, S // 2))
    assert seen.held_blocks == 2
    assert seen.work_ahead()[1] == 2 + 5
    buddy = ReplicaView(advanced(contiguous("oracle", slots=1, placement="buddy"), rows, S // 2))
    assert buddy.work_ahead()[1] == 2 + 8


@pytest.mark.core
@pytest.mark.parametrize(
    ("ids", "prompt", "expected"),
    [
        ((7, 8, 9), 48, 32),  # all cached, but the last token has to be computed: two of three blocks
        ((7, 8, 9), 49, 48),
        ((7, 8), 40, 32),
        ((7, 5, 9), 49, 16),
        ((5, 8, 9), 49, 0),
        ((), 49, 0),
    ],
)
def test_a_cached_prompt_is_found_as_an_admission_would(ids: tuple[int, ...], prompt: int, expected: int) -> None:
    config = paged(prefix_sharing=True, hash_block_tokens=16)
    first = Arrival(0, 0, 48, 1, hashes=(7, 8, 9))
    replica = advanced(config, [first], st.NEVER)
    request = RoutedRequest(1, prompt, ids=np.array([1, *ids], np.int64), ids_at=1, num_ids=len(ids))
    assert ReplicaView(replica).cached_prompt_tokens(request) == expected
    # The same through the core: what the admission of that request found.
    run = new_run(parameters_for(config, constant(S)))
    later = Arrival(1, 5 * S, prompt, 1, hashes=ids)
    run.replica.supply(arrival_records([first, later]), known_until_ns=st.NEVER, ids=arrival_ids([first, later]))
    run.replica.advance(st.NEVER, max_steps=1000)
    run.replica.close()
    assert run.rows[1].hit_tokens == expected


@pytest.mark.core
def test_nothing_is_cached_where_nothing_is_shared() -> None:
    replica = advanced(paged(), requests((0, 48, 1)), st.NEVER)
    request = RoutedRequest(1, 48, ids=np.array([7], np.int64), num_ids=1)
    assert ReplicaView(replica).cached_prompt_tokens(request) == 0
    assert ReplicaView(replica).cached_prompt_tokens(RoutedRequest(1, 48, ids=NO_IDS)) == 0

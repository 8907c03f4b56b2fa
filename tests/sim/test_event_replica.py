"""A replica among a user's own processes: requests submitted as they go, events waited for, loops closed."""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import simpy

from kvrm_sim.engine import EventReplica, RequestEvents
from kvrm_sim.feed import arrival_chunks
from tests.sim.core_runs import CoreRun, new_run, parameters_for, random_costs, run_core
from tests.sim.reference_records import Arrival, ReferenceConfig
from tests.sim.small_replays import S, constant, paged, random_rows, trace_of
from tests.sim.strategies import random_case

Process = Generator[simpy.Event, Any, None]


def event_replica(
    config: ReferenceConfig, step_ns: int = S, env: simpy.Environment | None = None, **kwargs: Any
) -> tuple[EventReplica, CoreRun]:
    """A replica in an environment whose steps last so long, and what it hands out."""
    made = new_run(parameters_for(config, constant(step_ns), log_events=1))
    return EventReplica(env or simpy.Environment(initial_time=0), made.replica, **kwargs), made


def test_random_policies_give_the_same_in_both_drivers() -> None:
    for seed in range(60_000, 60_060):
        case = random_case(seed)
        if case.config.over_limit == "error":
            continue
        costs = random_costs(seed)
        made = new_run(parameters_for(case.config, costs, log_events=1))
        env = simpy.Environment(initial_time=0)
        driven = EventReplica(env, made.replica)
        env.process(submit_all(env, driven, case.arrivals))
        env.run()
        made.replica.close()
        expected = run_core(parameters_for(case.config, costs), case.arrivals)
        assert made.bytes() == expected.bytes(), f"case {seed}"


def submit_all(env: simpy.Environment, driven: EventReplica, arrivals: list[Arrival]) -> Process:
    for a in arrivals:
        if a.arrival_ns > env.now:
            yield env.timeout(a.arrival_ns - env.now)
        driven.submit(
            a.prompt_tokens,
            a.output_tokens,
            a.declared_max_tokens,
            row=a.row,
            priority=a.priority,
            prefix_ids=a.hashes,
        )
    if not arrivals:
        yield env.timeout(0)


def test_integers_and_floats_of_the_same_time_are_the_same_instant() -> None:
    """F03: a process that waits by a float wakes at the step's end all the same, and sees it done."""
    driven, _ = event_replica(paged())
    seen: list[tuple[float, bool]] = []

    def watch(request: RequestEvents) -> Process:
        first = request.first_token
        yield driven.env.timeout(1.0 * S)
        seen.append((driven.env.now, first.triggered))

    driven.env.process(watch(driven.submit(5, 2)))
    driven.env.run()
    assert seen == [(S, True)]


def test_processes_wait_for_what_happens_to_a_request() -> None:
    driven, made = event_replica(paged(pool_blocks=20, slots=2))
    seen: list[tuple[str, float]] = []

    def wait(name: str, event: simpy.Event) -> Process:
        time_ns = yield event
        assert time_ns == driven.env.now
        seen.append((name, driven.env.now / S))

    def user() -> Process:
        driven.submit(160, 160)
        victim = driven.submit(160, 160)
        for name in ("admitted", "first_token", "preempted", "finished"):
            driven.env.process(wait(name, getattr(victim, name)))
        too_large = driven.submit(16 * 21, 1)
        driven.env.process(wait("rejected", too_large.rejected))
        yield driven.env.timeout(0)

    driven.env.process(user())
    driven.env.run()
    assert seen == [("rejected", 0), ("admitted", 0), ("first_token", 1), ("preempted", 1), ("finished", 319)]
    made.replica.close()
    assert [row.outcome for row in made.rows] == ["completed", "completed", "rejected"]


def test_a_refusal_is_told_while_a_step_is_in_flight() -> None:
    driven, _ = event_replica(paged(pool_blocks=20), step_ns=100 * S)
    told: list[float] = []

    def user() -> Process:
        driven.submit(16, 2)
        for _ in range(2):
            yield driven.env.timeout(30 * S)
            yield driven.submit(16 * 21, 1).rejected
            told.append(driven.env.now / S)

    driven.env.process(user())
    driven.env.run()
    assert told == [30, 60]


def test_a_refused_request_is_replaced_before_those_that_arrive_later() -> None:
    """What a user does on a refusal happens at that time: his next request is ahead of any later one."""
    driven, made = event_replica(paged(pool_blocks=20, slots=1), step_ns=100 * S)

    def user(at: int, row: int) -> Process:
        yield driven.env.timeout(at)
        yield driven.submit(16 * 21, 1, row=row).rejected
        driven.submit(16, 1, row=row + 1)

    driven.submit(16, 1, row=0)
    driven.env.process(user(30 * S, 1))
    driven.env.process(user(40 * S, 3))
    driven.env.run()
    made.replica.close()
    assert [(row.row, row.arrival_ns // S, row.finish_ns and row.finish_ns // S) for row in made.rows] == [
        (0, 0, 100), (1, 30, None), (2, 30, 200), (3, 40, None), (4, 40, 300)
    ]  # fmt: skip


def closed_loop(users: int, turns: int, think_ns: int) -> tuple[CoreRun, list[Arrival]]:
    """Users who each ask, read the answer for ``think_ns``, and ask again with what was said; and their requests."""
    driven, made = event_replica(paged(slots=4, pool_blocks=60), step_ns=S)
    asked: list[Arrival] = []

    def user(number: int) -> Process:
        prompt = 10 + number
        for _ in range(turns):
            asked.append(Arrival(len(asked), int(driven.env.now), prompt, 3 + number))
            yield driven.submit(prompt, 3 + number).finished
            prompt += 3 + number
            yield driven.env.timeout(think_ns)

    for number in range(users):
        driven.env.process(user(number))
    driven.env.run()
    made.replica.close()
    return made, asked


def test_a_turn_starts_when_the_last_one_was_read() -> None:
    made, asked = closed_loop(users=1, turns=3, think_ns=7 * S)
    # Three tokens a turn: a step each; then 7 s of reading.
    assert [a.arrival_ns for a in asked] == [0, 10 * S, 20 * S]
    assert [row.finish_ns for row in made.rows] == [3 * S, 13 * S, 23 * S]


@pytest.mark.parametrize("think_ns", [0, S // 2, 2 * S])
def test_closed_loops_equal_a_replay_of_the_requests_that_they_made(think_ns: int) -> None:
    """The replica's future never depended on what a user had not yet done."""
    made, asked = closed_loop(users=9, turns=6, think_ns=think_ns)
    finishes = {row.row: row.finish_ns for row in made.rows}
    assert len(asked) == len(finishes) == 54
    replay = run_core(parameters_for(paged(slots=4, pool_blocks=60), constant(S)), asked)
    assert replay.rows == made.rows
    assert replay.bytes() == made.bytes()


def test_a_wait_that_was_given_up_swallows_nothing() -> None:
    """F01: wait 10 s or the finish at 500 s: the timeout wins, and the finish still reaches whoever waits for it."""
    driven, made = event_replica(paged(), step_ns=100 * S)
    given_up: list[float] = []
    told: list[float] = []

    def impatient(request: RequestEvents) -> Process:
        result = yield request.finished | driven.env.timeout(10 * S)
        assert request.finished not in result
        given_up.append(driven.env.now / S)

    def patient(request: RequestEvents) -> Process:
        yield driven.env.timeout(50 * S)
        yield request.finished
        told.append(driven.env.now / S)

    requests = [driven.submit(10, 5) for _ in range(3)]
    for request in requests:
        driven.env.process(impatient(request))
        driven.env.process(patient(request))
    driven.env.run()
    made.replica.close()
    assert given_up == [10.0] * 3
    assert told == [500.0] * 3
    assert [row.outcome for row in made.rows] == ["completed"] * 3, "submitted = finished + left, and 0 are left"


class CountingEnvironment(simpy.Environment):
    """Counts the events it processes and the most that were pending."""

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.processed = 0
        self.most_pending = 0

    def step(self) -> None:
        self.processed += 1
        self.most_pending = max(self.most_pending, len(self._queue))
        super().step()


def test_tokens_are_no_simpy_events() -> None:
    """F04: SimPy sees what can be observed, not each token or step: 30 times the tokens, the same number of events."""
    found = {}
    for output_tokens in (30, 900):
        env = CountingEnvironment()
        driven, _ = event_replica(paged(pool_blocks=1000), env=env)
        for _ in range(10):
            driven.submit(10, output_tokens)
        env.run()
        found[output_tokens] = env.processed
    assert found[30] == found[900] < 10


def test_arrivals_are_fed_one_at_a_time(tmp_path: Path) -> None:
    """F05: 2000 arrivals are never pending together."""
    trace = trace_of(tmp_path, *[(n * 1000, 5, 1) for n in range(2000)])
    env = CountingEnvironment()
    _, made = event_replica(paged(), step_ns=700, env=env, feed=arrival_chunks(trace, rows=64))
    env.run()
    made.replica.close()
    assert len(made.rows) == 2000
    assert env.most_pending <= 4


def test_chunks_of_arrivals_change_nothing(tmp_path: Path) -> None:
    rng = random.Random(3)
    trace = trace_of(tmp_path, *random_rows(rng, 60))
    found = set()
    for rows in (1, 7, 1000):
        env = simpy.Environment(initial_time=0)
        _, made = event_replica(paged(), 1_000_000, env, feed=arrival_chunks(trace, rows=rows))
        env.run()
        made.replica.close()
        found.add(made.bytes())
    assert len(found) == 1


def test_a_watched_request_of_the_trace(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, (0, 5, 2), (S, 5, 2), (9 * S, 5, 3))
    driven, _ = event_replica(paged(), feed=arrival_chunks(trace))
    told: list[int] = []

    def watch() -> Process:
        told.append((yield driven.watch(2).finished))

    driven.env.process(watch())
    driven.env.run()
    assert told == [12 * S]


@pytest.mark.parametrize(("prompt", "output"), [(0, 5), (5, 0), (-1, 5)])
def test_a_request_without_tokens_is_refused(prompt: int, output: int) -> None:
    """A10: nothing of zero or negative length reaches the allocation."""
    driven, _ = event_replica(paged())
    with pytest.raises(ValueError, match="both should be at least 1"):
        driven.submit(prompt, output)

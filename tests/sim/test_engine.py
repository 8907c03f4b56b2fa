"""The drivers: events and spans give the same bits, each event comes at its time and in its order, users close loops."""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import simpy

from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import EventReplica, RequestEvents, run
from kvrm_sim.feed import arrival_chunks
from kvrm_sim.memory import plan_memory
from kvrm_sim.parameters import CoreParameters
from tests.sim.core_runs import CoreRun, new_run, parameters_for, run_core
from tests.sim.reference_records import Arrival, ReferenceConfig
from tests.sim.small_replays import S, Row, constant, paged, tiny, trace_of

Seen = list[tuple[str, int, int]]
Process = Generator[simpy.Event, Any, None]


def event_replica(
    config: ReferenceConfig, step_ns: int = S, env: simpy.Environment | None = None, **kwargs: Any
) -> tuple[EventReplica, CoreRun]:
    """A replica in an environment whose steps last so long, and what it hands out."""
    made = new_run(parameters_for(config, constant(step_ns), log_events=1))
    return EventReplica(env or simpy.Environment(initial_time=0), made.replica, **kwargs), made


def replayed(folder: Path, config: ReplicaConfig, *rows: Row, **kwargs: Any) -> Seen:
    """All that a hook sees of a replay."""
    seen: Seen = []
    hooks = (lambda kind, time_ns, row: seen.append((kind, time_ns, row)),)
    run(trace_of(folder, *rows), config, driver="events", hooks=hooks, **kwargs)
    return seen


FILES = ("requests.parquet", "steps.parquet", "pool.parquet")


def random_rows(rng: random.Random, count: int) -> list[Row]:
    """Arrivals that often coincide with each other and with the ends of steps of 1 ms."""
    at, rows = 0, list[Row]()
    for _ in range(count):
        rows.append((at, rng.choice((1, 15, 16, 17, rng.randint(1, 300))), rng.choice((1, 2, rng.randint(1, 60)))))
        at += rng.choice((0, 0, 1_000_000, 5_000_000, rng.randint(0, 40_000_000)))
    return [*rows, (at, 1020, 30), (at, 1000, 24)]


POLICIES = (
    "static", "static-batch", "bucketed", "orca-max", "orca-pow2", "orca-oracle", "dynamic", "graph-paged", "kv-rm",
    "kv-rm-delta",
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("window_s", [0.0, 0.05])
def test_both_drivers_write_the_same_bytes(policy: str, window_s: float, tmp_path: Path) -> None:
    rng = random.Random(f"{policy} {window_s}")
    paged_ = policy in ("dynamic", "graph-paged", "kv-rm", "kv-rm-delta")
    for number in range(3):
        trace = trace_of(tmp_path, *random_rows(rng, 40), name=f"trace-{number}")
        config = tiny(
            policy,
            step_ns=rng.choice((None, 1e6)),
            overrides={"schedule.slots": rng.choice((2, 7))},
            pool_blocks=rng.choice((64, 70)) if paged_ else rng.choice((64, 200)),
            over_limit=rng.choice(("reject", "truncate")),
            window_s=window_s,
        )
        stop_at_s = rng.choice((None, None, 0.2))
        for driver in ("span", "events"):
            run(trace, config, driver=driver, out=tmp_path / f"{driver}-{number}", stop_at_s=stop_at_s)
        for file in FILES:
            one, two = ((tmp_path / f"{driver}-{number}" / file).read_bytes() for driver in ("span", "events"))
            assert one == two, f"{file} of trace {number} with stop {stop_at_s}"


def test_random_policies_give_the_same_in_both_drivers() -> None:
    from tests.sim.core_runs import random_costs
    from tests.sim.strategies import random_case

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
        driven.submit(a.prompt_tokens, a.output_tokens, a.declared_max_tokens, row=a.row)
    if not arrivals:
        yield env.timeout(0)


def test_at_one_instant_finishes_come_before_arrivals_and_these_before_the_decision(tmp_path: Path) -> None:
    """F03: step end, free and arrival all at 1 s: finish, then arrival, then admission, into the slot just freed."""
    config = tiny("dynamic", step_ns=S, overrides={"schedule.slots": 1})
    seen = replayed(tmp_path, config, (0, 5, 1), (S, 5, 1), (S, 5, 1))
    assert seen == [
        ("arrive", 0, 0),
        ("admit", 0, 0),
        ("first_token", S, 0),
        ("finish", S, 0),
        ("arrive", S, 1),
        ("arrive", S, 2),
        ("admit", S, 1),
        ("first_token", 2 * S, 1),
        ("finish", 2 * S, 1),
        ("admit", 2 * S, 2),
        ("first_token", 3 * S, 2),
        ("finish", 3 * S, 2),
    ]


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


def test_every_event_of_a_preempted_request_comes_at_its_time(tmp_path: Path) -> None:
    config = tiny("dynamic", step_ns=S, pool_blocks=20, overrides={"schedule.slots": 2})
    seen = replayed(tmp_path, config, (0, 160, 160), (0, 160, 160), (0, 1000, 100))
    of_the_victim = [(kind, time_ns // S) for kind, time_ns, row in seen if row == 1]
    assert of_the_victim == [
        ("arrive", 0),
        ("admit", 0),
        ("first_token", 1),
        ("preempt", 1),
        ("admit", 160),
        ("finish", 160 + 159),
    ]
    assert [(kind, time_ns) for kind, time_ns, row in seen if row == 2] == [("arrive", 0), ("reject", 0)]
    assert [time_ns for _, time_ns, _ in seen] == sorted(time_ns for _, time_ns, _ in seen)


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


@pytest.mark.parametrize("at", [0, S // 2, S, 5 * S], ids=["at the start", "in flight", "at a step's end", "idle"])
def test_a_refusal_comes_after_its_arrival(at: int, tmp_path: Path) -> None:
    """F03: whatever the replica does when a request arrives that it cannot serve, the order of events is the same."""
    config = tiny("dynamic", step_ns=S, pool_blocks=20)
    seen = replayed(tmp_path, config, (0, 16, 1), (at, 1000, 10), (at, 16, 1))
    assert [(kind, time_ns) for kind, time_ns, row in seen if row == 1] == [("arrive", at), ("reject", at)]
    kinds = [kind for kind, time_ns, row in seen if time_ns == at and row > 0]
    assert kinds[:3] == ["arrive", "arrive", "reject"], "arrivals first"
    assert [time_ns for _, time_ns, _ in seen] == sorted(time_ns for _, time_ns, _ in seen)


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


def test_hooks_need_the_events_driver(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="driver='events'"):
        run(trace_of(tmp_path, (0, 5, 2)), tiny("dynamic"), hooks=(lambda kind, time_ns, row: None,))


@pytest.mark.parametrize("driver", ["span", "events"])
def test_an_interrupt_leaves_nothing(driver: Any, tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *[(n * S, 5, 2) for n in range(50)])
    before = sorted(tmp_path.iterdir())

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(trace, tiny("dynamic", step_ns=S), out=tmp_path / "runs" / "one", driver=driver, progress=interrupt)
    assert sorted(tmp_path.iterdir()) == before


def test_a_hook_that_fails_leaves_nothing(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, (0, 5, 2))

    def hook(kind: str, time_ns: int, row: int) -> None:
        if kind == "finish":
            raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        run(trace, tiny("dynamic"), out=tmp_path / "one", driver="events", hooks=(hook,))
    assert [path.name for path in tmp_path.iterdir()] == ["small.parquet"]


@pytest.mark.parametrize("driver", ["span", "events"])
def test_progress_ends_at_one(driver: Any, tmp_path: Path) -> None:
    shares: list[float] = []
    run(trace_of(tmp_path, (0, 5, 2), (S, 5, 2)), tiny("dynamic"), driver=driver, progress=shares.append)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert min(shares) >= 0


@pytest.mark.parametrize("driver", ["span", "events"])
def test_a_stop_before_the_first_arrival_ends_leaves_it_unfinished(driver: Any, tmp_path: Path) -> None:
    """A22: what had not arrived is not reported as a request; a caveat says that it was left out."""
    rows = [(0, 5, 5), (S, 5, 5), (100 * S, 5, 5)]
    result = run(trace_of(tmp_path, *rows), tiny("dynamic", step_ns=S), driver=driver, stop_at_s=3)
    found = [(row["row"], row["outcome"], row["delivered_tokens"]) for row in result.requests.to_pylist()]
    assert sorted(found) == [(0, "unfinished", 3), (1, "unfinished", 2)]
    assert "stopped: 1 of 3 requests of the trace had not arrived" in result.warnings


def test_results_read_alike_from_memory_and_from_the_folder(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *[(n * 1_000_000, 20, 9) for n in range(30)])
    kept = run(trace, tiny("kv-rm"))
    written = run(trace, tiny("kv-rm"), out=tmp_path / "run")
    assert kept.requests.equals(written.requests)
    assert kept.steps.equals(written.steps)
    assert kept.pool.equals(written.pool)
    assert ReplicaConfig.from_file(tmp_path / "run" / "run.toml") == tiny("kv-rm")


def test_parameters_of_the_engine_are_those_of_the_plan() -> None:
    from kvrm_sim.derivation import parameters_of

    config = tiny("kv-rm", pool_blocks=77)
    made: CoreParameters = parameters_of(config, plan_memory(config), span_ns=10 * S)
    p = made.record[0]
    assert (p.pool_blocks, p.block_size, p.limit_tokens, p.table_width) == (77, 16, 1024, 64)
    assert (p.steady_from_ns, p.steady_until_ns) == (S, 10 * S)
    assert p.log_events == 0
    assert parameters_of(config, plan_memory(config), span_ns=None).record[0].steady_until_ns == st.NEVER

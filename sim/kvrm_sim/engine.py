"""The drivers: a replica as a SimPy process, in spans or event by event, over a trace or a user's own processes.

Both call the same compiled core and give the same bits. *Span* (the default) lets the core run until it needs
something. *Events* stops at whatever can be observed (admission, preemption, first token, finish, rejection), so that
a user's processes and hooks can wait for it and submit requests of their own. *Closed loop* is that, with a trace whose
turns wait for the answer to the one before (closed_loop.py). The core's horizon is the time of the
next SimPy event (``env.peek()``): nothing else can happen before it, so nothing can reach the replica's past.

SimPy's clock counts int64 nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import simpy
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.closed_loop import ClosedLoop
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.derivation import parameters_of
from kvrm_sim.feed import Chunk, arrival_chunks
from kvrm_sim.memory import MemoryPlan, plan_memory
from kvrm_sim.parameters import CoreParameters
from kvrm_sim.plugin_core import say_if_slow
from kvrm_sim.replica import Replica
from kvrm_sim.result import RunResult
from kvrm_sim.run_output import RunOutput, Setup
from kvrm_sim.sinks import Sinks
from kvrm_sim.summary import summarize
from kvrm_sim.totals import Totals
from kvrm_traces import Trace

__all__ = ["Driver", "EventReplica", "RequestEvents", "RunResult", "run", "span_process"]

Driver = Literal["span", "events", "closed-loop"]

#: Steps in one call of the compiled loop: a few milliseconds, so that an interrupt and the progress bar get in.
STEPS_A_CALL = 50_000

#: SimPy orders the events of one instant by priority: a replica's step ends come first, its decisions last.
FIRST, LAST = 0, 2

Hook = Callable[[str, int, int], None]


class _At(simpy.Event):
    """A timeout with a priority of its own."""

    def __init__(self, env: simpy.Environment, delay_ns: int, priority: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=priority, delay=delay_ns)  # type: ignore[arg-type]  # any int orders; SimPy names two


class RequestEvents:
    """SimPy events of one request; each is made when first asked for. Their value is the time in nanoseconds."""

    __slots__ = ("_env", "_events", "row")

    def __init__(self, env: simpy.Environment, row: int) -> None:
        self._env = env
        self.row = row
        self._events: dict[str, simpy.Event] = {}

    def _event(self, kind: str) -> simpy.Event:
        return self._events.setdefault(kind, self._env.event())

    @property
    def admitted(self) -> simpy.Event:
        """Its first admission."""
        return self._event("admit")

    @property
    def first_token(self) -> simpy.Event:
        """Its first token was delivered."""
        return self._event("first_token")

    @property
    def preempted(self) -> simpy.Event:
        """Its first preemption from now on."""
        return self._event("preempt")

    @property
    def finished(self) -> simpy.Event:
        """Its last token was delivered."""
        return self._event("finish")

    @property
    def rejected(self) -> simpy.Event:
        """It was refused, which happens as it arrives."""
        return self._event("reject")

    def fire(self, kind: str, time_ns: int) -> None:
        """Succeed the event of this kind, if anyone asked for it."""
        event = self._events.pop(kind, None)
        if event is not None:
            event.succeed(time_ns)


class EventReplica:
    """A replica in a SimPy environment, event by event.

    ``feed`` gives a trace's chunks (feed.py); :meth:`submit` adds requests from other processes. ``hooks`` are called
    with (kind, time_ns, row) for everything in ``state.EVENT_KINDS`` and for ``arrive`` of the trace's requests.
    """

    def __init__(
        self,
        env: simpy.Environment,
        replica: Replica,
        feed: Iterator[Chunk] | None = None,
        stop_ns: int = st.NEVER,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.env = env
        self.replica = replica
        self.hooks: list[Hook] = []
        self._watched: dict[int, RequestEvents] = {}
        self._stop_ns = stop_ns
        self._progress = progress
        self._woken = env.event()
        self._submitted = 0
        replica.sinks.events = self._observe
        if feed is not None:
            env.process(self._arrive(feed))
        self.process = env.process(self._run())

    def watch(self, row: int) -> RequestEvents:
        """The events of a request of the trace, by its row."""
        return self._watched.setdefault(row, RequestEvents(self.env, row))

    def submit(
        self,
        prompt_tokens: int,
        output_tokens: int,
        declared_max_tokens: int | None = None,
        row: int | None = None,
        *,
        priority: int = 0,
        prefix_ids: Sequence[int] | NDArray[np.int64] = (),
    ) -> RequestEvents:
        """A request that arrives now. ``row`` names it in the records (default: counts from 0). Returns its events.

        ``prefix_ids``: dense ids of its prompt's hash blocks. Raises ValueError on counts below 1.
        """
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(
                f"prompt_tokens = {prompt_tokens}, output_tokens = {output_tokens}: both should be at least 1"
            )
        row = self._submitted if row is None else row
        self._submitted += 1
        request = np.zeros(1, st.ARRIVALS)
        request["row"], request["arrival_ns"] = row, self.env.now
        request["prompt_tokens"], request["output_tokens"] = prompt_tokens, output_tokens
        request["declared_max_tokens"] = st.NONE if declared_max_tokens is None else declared_max_tokens
        request["priority"], request["num_ids"] = priority, len(prefix_ids)
        self.replica.insert(request, np.array(prefix_ids, np.int64))
        self._wake()
        return self.watch(row)

    def _wake(self) -> None:
        """The replica sleeps only when nothing at all is pending; then a new request has to wake it."""
        if not self._woken.triggered:
            self._woken.succeed()

    def _arrive(self, feed: Iterator[Chunk]) -> Generator[simpy.Event, Any, None]:
        """The trace's arrivals: supplied a chunk at a time, each of them an event at its own time."""
        for chunk in feed:
            if self._progress is not None:
                self._progress(int(self.env.now))
            self.replica.supply(chunk.arrivals, known_until_ns=int(self.env.now), ids=chunk.ids)
            times = chunk.arrivals["arrival_ns"].tolist()
            rows = chunk.arrivals["row"].tolist()
            for row, time_ns in zip(rows, times, strict=True):
                if time_ns > self.env.now:
                    yield self.env.timeout(time_ns - self.env.now)
                self._wake()
                for hook in self.hooks:
                    hook("arrive", time_ns, row)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, replica = self.env, self.replica
        while True:
            horizon = env.peek()
            until: int = self._stop_ns if horizon == float("inf") else min(self._stop_ns, int(horizon))
            replica.know_until(until)
            reason = replica.advance(until, max_steps=STEPS_A_CALL, flags=st.STOP_AT_EVENTS)
            if replica.has_events:
                # A refusal is told behind whatever else happens at its instant, its own arrival first of all.
                priority = LAST if replica.last_event_kind == st.EV_REJECT else FIRST
                if replica.last_event_ns > env.now or priority == LAST:
                    yield _At(env, replica.last_event_ns - int(env.now), priority)
                replica.drain_events()
            if reason in (st.EVENT, st.WORK):
                continue
            if until == st.NEVER:
                self._woken = env.event()
                yield self._woken
            elif env.now >= self._stop_ns:
                return
            else:
                # Behind everything else that is pending at that time, which may well be now.
                yield _At(env, until - int(env.now), LAST)

    def _observe(self, events: st.Records) -> None:
        for kind_code, time_ns, row in events.tolist():
            kind = st.EVENT_KINDS[kind_code]
            for hook in self.hooks:
                hook(kind, time_ns, row)
            watched = self._watched.get(row)
            if watched is not None:
                watched.fire(kind, time_ns)
                if kind in ("finish", "reject"):
                    del self._watched[row]


def span_process(
    env: simpy.Environment,
    replica: Replica,
    feed: Iterator[Chunk],
    stop_ns: int,
    progress: Callable[[int], None],
) -> Generator[simpy.Event, Any, None]:
    """Driver 2: a replica's SimPy process that advances as far as the arrivals at hand allow."""
    known_until_ns = 0
    while True:
        reason = replica.advance(stop_ns, max_steps=STEPS_A_CALL)
        if replica.now_ns > env.now:
            yield env.timeout(replica.now_ns - env.now)
        progress(replica.now_ns)
        # A step that outlasts the stop does not ask for those who arrive during it.
        if reason == st.NEED_ARRIVALS or (
            reason == st.UNTIL and known_until_ns <= stop_ns and known_until_ns < st.NEVER
        ):
            chunk = next(feed)
            known_until_ns = chunk.known_until_ns
            replica.supply(chunk.arrivals, known_until_ns=known_until_ns, ids=chunk.ids)
        elif reason != st.WORK:
            return


def parameters_for_trace(
    trace: Trace, config: ReplicaConfig, plan: MemoryPlan, *, share: bool = True, log_events: bool = False
) -> CoreParameters:
    """The core's parameters for a replay of a trace: its span, and, where it may ``share``, the hashes that it has."""
    hashed = share and "prefix_hashes" in trace.info.columns
    return parameters_of(
        config,
        plan,
        span_ns=trace.info.span_ns,
        hash_block_tokens=trace.info.hash_block_tokens if hashed else None,
        log_events=log_events,
    )


def run(
    trace: Trace,
    config: ReplicaConfig,
    *,
    out: Path | None = None,
    driver: Driver = "span",
    progress: Callable[[float], None] | None = None,
    stop_at_s: float | None = None,
    hooks: tuple[Hook, ...] = (),
    force: bool = False,
    keep: bool = True,
) -> RunResult:
    """Replay a trace on one replica.

    ``stop_at_s``: simulated seconds after which everything unfinished is reported as such; turns that a closed loop has
    not sent by then are nowhere. ``hooks`` (not with driver ``span``) see each event. Without ``out`` the tables are
    kept in memory, unless ``keep`` is false. Raises DoesNotFitError before any work, TraceError for a closed loop of a
    trace without turns, InputError for rows that the configuration cannot take, WorkError when the run fails.
    """
    if hooks and driver == "span":
        raise ValueError("hooks need driver='events': the span driver does not stop at single events")
    plan = plan_memory(config)
    say_if_slow(config.policy.parts)
    parameters = parameters_for_trace(trace, config, plan, log_events=driver != "span")
    setup = Setup(trace=trace, config=config, plans=((plan, 1),), driver=driver, stop_at_s=stop_at_s)
    with RunOutput(setup, out, force=force, keep=keep) as output:
        replica = Replica(parameters, Sinks.into(output.target))
        _drive(trace, replica, driver, setup.stop_ns, progress, hooks)
        replica.close()
        return output.result(lambda about: summarize(Totals.of(replica), about))


def _drive(
    trace: Trace,
    replica: Replica,
    driver: Driver,
    stop_ns: int,
    progress: Callable[[float], None] | None,
    hooks: tuple[Hook, ...],
) -> None:
    span_ns = max(1, min(trace.info.span_ns, stop_ns))

    def report(now_ns: int) -> None:
        if progress is not None:
            progress(min(1.0, now_ns / span_ns))

    env = simpy.Environment(initial_time=0)
    with_ids = replica.parameters.shares
    loop = ClosedLoop(trace, with_ids=with_ids) if driver == "closed-loop" else None
    feed = arrival_chunks(trace, with_ids=with_ids)
    if driver == "span":
        env.process(span_process(env, replica, feed, stop_ns, report))
        env.run()
    else:
        events = EventReplica(env, replica, feed if loop is None else None, stop_ns, report)
        events.hooks += hooks
        if loop is not None:
            loop.start(events)
        # Without a stop the run is over when nothing is pending; the arrivals after a stop are not waited for.
        env.run(until=None if stop_ns == st.NEVER else events.process)
    report(span_ns)

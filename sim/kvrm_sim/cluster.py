"""A cluster: equal replicas behind a router, in one SimPy environment (docs/cluster.md).

Before each arrival every replica is advanced to its time; then the router reads the replicas, and its choice gets the
request. A router whose choices do not depend on the replicas lets them run over whole chunks of arrivals instead. A
replica is the one of ``engine.run`` either way, with its own pool, queue and records; the records of all are put in one
order. Left out: the router's own time, news that arrive late, requests that are sent elsewhere after they arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from kvrm_sim import state as st
from kvrm_sim.cluster_records import MergedRecords
from kvrm_sim.cluster_summary import Served, summarize_several
from kvrm_sim.columns import REPLICA
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import STEPS_A_CALL, parameters_for_trace
from kvrm_sim.errors import ConfigError
from kvrm_sim.feed import CHUNK_ROWS, Chunk, arrival_chunks, rows_for
from kvrm_sim.memory import plan_memory
from kvrm_sim.new_arrays import OUT_RECORDS
from kvrm_sim.parameters import CoreParameters
from kvrm_sim.plugin_core import say_if_slow
from kvrm_sim.replica import Replica
from kvrm_sim.result import RunResult
from kvrm_sim.router_views import ReplicaView, RoutedRequest
from kvrm_sim.routers import PREFIX_WEIGHT, Router, make_router
from kvrm_sim.run_output import RunOutput, Setup, Several
from kvrm_sim.sinks import Target
from kvrm_sim.totals import Totals
from kvrm_sim.words import DEFAULT_ROUTER
from kvrm_traces import Trace

#: Each replica has its pool and its buffers in memory: some tens of megabytes.
MOST_REPLICAS = 1024
#: Rows of a chunk where each arrival is routed by itself.
ROUTED_ROWS = 8_192

#: The replica has more to do before the time to which it is advanced.
GOES_ON = (st.WORK, st.DECIDED)

Progress = Callable[[int], None]


class Cluster:
    """Equal replicas and their router. ``target`` gets their records, in one order, with ``replica``."""

    #: Where the replicas stop for :meth:`on_decision`: nowhere.
    flags = 0

    def __init__(self, parameters: CoreParameters, count: int, router: Router, target: Target) -> None:
        self.router = router
        self.records = MergedRecords(count, target)
        out_records = max(4 * int(parameters.record[0].slots), OUT_RECORDS // count)
        self.replicas = [Replica(parameters, self.records.sinks(at), out_records=out_records) for at in range(count)]
        self.views = [ReplicaView(replica) for replica in self.replicas]

    @property
    def shares(self) -> bool:
        """Whether the replicas share blocks by the trace's prefix hashes."""
        return self.replicas[0].parameters.shares

    def arrivals(self, trace: Trace, chunk_rows: int) -> Iterator[Chunk]:
        """A trace's, with what of them the replicas and the router look at."""
        sessions = "session_id" in trace.info.columns and not self.router.stateless
        return arrival_chunks(trace, chunk_rows, with_ids=self.shares, with_sessions=sessions)

    def serve(self, feed: Iterator[Chunk], stop_ns: int, progress: Progress) -> None:
        """Run :meth:`process` in an environment of its own."""
        env = simpy.Environment(initial_time=0)
        env.process(self.process(env, feed, stop_ns, progress))
        env.run()

    def process(
        self, env: simpy.Environment, feed: Iterator[Chunk], stop_ns: int, progress: Progress
    ) -> Generator[simpy.Event, Any, None]:
        """The SimPy process that serves a trace's arrivals and runs the replicas to their end, or to ``stop_ns``."""
        for chunk in feed:
            if self.router.stateless:
                self._share(chunk, stop_ns, progress)
            else:
                yield from self._route(env, chunk, stop_ns)
            reached_ns = min(int(chunk.arrivals["arrival_ns"][-1]), stop_ns)
            if reached_ns > env.now:
                yield env.timeout(reached_ns - env.now)
            progress(reached_ns)
            self.records.release(self.replicas, reached_ns)
            if reached_ns < chunk.arrivals["arrival_ns"][-1]:
                break
        self.advance(stop_ns, known_until_ns=st.NEVER, progress=progress)
        for replica in self.replicas:
            replica.close()
        self.records.finish()

    def advance(self, until_ns: int, *, known_until_ns: int, progress: Progress | None = None) -> None:
        """Advance every replica to a time; no arrival before ``known_until_ns`` is missing."""
        for at, replica in enumerate(self.replicas):
            if replica.rests_until(until_ns):
                continue
            replica.know_until(known_until_ns)
            while (reason := replica.advance(until_ns, max_steps=STEPS_A_CALL, flags=self.flags)) in GOES_ON:
                if reason == st.DECIDED:
                    self.on_decision(at)
                elif progress is not None:
                    progress(replica.now_ns)

    def on_decision(self, at: int) -> None:
        """That replica has just decided a step (with ``flags`` = STOP_AT_DECISIONS only)."""

    def served(self) -> list[Served]:
        """What each replica has counted, when all are closed."""
        return [
            Served(Totals.of(replica), busy_ns)
            for replica, busy_ns in zip(self.replicas, self.records.busy_ns, strict=True)
        ]

    def _share(self, chunk: Chunk, stop_ns: int, progress: Progress) -> None:
        """Hand out a chunk at once: nothing that the replicas do matters to the router."""
        rows, prompts = chunk.arrivals["row"].tolist(), chunk.arrivals["prompt_tokens"].tolist()
        choose, views = self.router.choose, self.views
        chosen = np.array(
            [choose(RoutedRequest(row, tokens), views, 0) for row, tokens in zip(rows, prompts, strict=True)]
        )
        for at, replica in enumerate(self.replicas):
            replica.supply(chunk.arrivals[chosen == at], known_until_ns=chunk.known_until_ns, ids=chunk.ids)
        self.advance(stop_ns, known_until_ns=chunk.known_until_ns, progress=progress)

    def _route(self, env: simpy.Environment, chunk: Chunk, stop_ns: int) -> Generator[simpy.Event, Any, None]:
        """Route arrival by arrival, up to ``stop_ns``; each replica has taken in everything before the choice."""
        arrivals, replicas, choose, views = chunk.arrivals, self.replicas, self.router.choose, self.views
        ids_from = [replica.make_room(len(arrivals), chunk.ids) for replica in replicas]
        times = arrivals["arrival_ns"].tolist()
        for at, (now_ns, request) in enumerate(zip(times, routed_requests(chunk), strict=True)):
            if now_ns > stop_ns:
                return
            if now_ns > env.now:
                yield env.timeout(now_ns - env.now)
            self.advance(now_ns, known_until_ns=now_ns)
            chosen = choose(request, views, now_ns)
            replicas[chosen].append(arrivals[at], ids_from[chosen])


def routed_requests(chunk: Chunk) -> Iterator[RoutedRequest]:
    """What a router sees of each arrival of a chunk."""
    a = chunk.arrivals
    sessions = chunk.sessions.tolist() if len(chunk.sessions) else [st.NONE] * len(a)
    fields = (a[name].tolist() for name in ("row", "prompt_tokens", "ids_at", "num_ids"))
    for row, prompt, ids_at, num_ids, session in zip(*fields, sessions, strict=True):
        yield RoutedRequest(row, prompt, None if session == st.NONE else session, chunk.ids, ids_at, num_ids)


def check_cluster(
    replicas: int, router: str, prefix_weight: float | None, trace: Trace | None, config: ReplicaConfig | None
) -> Router:
    """The router, or ConfigError: a number that is no cluster, an unknown router, one that the input cannot serve.

    ``trace`` and ``config`` None: they are not looked at.
    """
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ConfigError(f"cluster = {replicas}: should be from 1 to {MOST_REPLICAS} replicas", "cluster", replicas)
    made = make_router(router, prefix_weight)
    columns = None if trace is None else trace.info.columns
    if router == "session-sticky" and columns is not None and "session_id" not in columns:
        raise ConfigError("router 'session-sticky' needs a trace with the column session_id; this one has no sessions")
    if router == "prefix-aware":
        if columns is not None and "prefix_hashes" not in columns:
            raise ConfigError(
                "router 'prefix-aware' needs a trace with the column prefix_hashes; this one has no hashes"
            )
        if config is not None and not config.policy.pager.prefix_sharing:
            raise ConfigError(
                f"router 'prefix-aware': policy {config.policy.name!r} keeps no prefix; set "
                "pager.prefix_sharing = true, or take another router"
            )
    return made


def run_cluster(
    trace: Trace,
    config: ReplicaConfig,
    *,
    replicas: int,
    router: str = DEFAULT_ROUTER,
    prefix_weight: float | None = None,
    out: Path | None = None,
    progress: Callable[[float], None] | None = None,
    stop_at_s: float | None = None,
    force: bool = False,
    keep: bool = True,
    chunk_rows: int | None = None,
) -> RunResult:
    """Replay a trace on ``replicas`` equal replicas behind a router (``words.ROUTERS``).

    Every table has a column ``replica``, and the summary the object ``cluster``. ``chunk_rows``: arrivals read at a
    time, which no result depends on. Other options and errors: :func:`kvrm_sim.engine.run`; ConfigError for a router
    that this trace or policy cannot serve.
    """
    made = check_cluster(replicas, router, prefix_weight, trace, config)
    plan = plan_memory(config)
    say_if_slow(config.policy.parts)
    parameters = parameters_for_trace(trace, config, plan)
    described: dict[str, Any] = {"replicas": replicas, "router": router}
    if router == "prefix-aware":
        described["prefix_weight"] = PREFIX_WEIGHT if prefix_weight is None else prefix_weight
    several = Several(request_fields=REPLICA, described=described)
    setup = Setup(trace=trace, config=config, plans=((plan, replicas),), stop_at_s=stop_at_s, several=several)
    with RunOutput(setup, out, force=force, keep=keep) as output:
        cluster = Cluster(parameters, replicas, made, output.target)
        _drive(cluster, trace, setup.stop_ns, progress, chunk_rows)
        return output.result(partial(summarize_several, {"": cluster.served()}, described))


def _drive(
    cluster: Cluster,
    trace: Trace,
    stop_ns: int,
    progress: Callable[[float], None] | None,
    chunk_rows: int | None,
) -> None:
    span_ns = max(1, min(trace.info.span_ns, stop_ns))
    furthest_ns = 0

    def report(now_ns: int) -> None:
        nonlocal furthest_ns  # replicas take turns: the bar never goes back
        furthest_ns = max(furthest_ns, now_ns)
        if progress is not None:
            progress(min(1.0, furthest_ns / span_ns))

    if chunk_rows is None:
        chunk_rows = CHUNK_ROWS if cluster.router.stateless else ROUTED_ROWS
        if cluster.shares:
            chunk_rows = rows_for(len(cluster.replicas))
    cluster.serve(cluster.arrivals(trace, chunk_rows), stop_ns, report)
    report(span_ns)

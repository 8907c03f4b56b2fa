"""A cluster whose replicas run apart, over the processes of an engine: the same bytes as ``kvrm_sim.cluster``.

Possible where the router is *stateless*: its choices follow from the rows of the trace alone, so no replica has to be
advanced before another. Each shard of replicas reads the whole trace, takes its own arrivals and spools its records;
the shards' states and records are then put together as a cluster's run puts them. Left out: routers that look at the
replicas, and prefill apart from decode.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kvrm_analysis.engines.engines import Engine, Lost
from kvrm_analysis.engines.shard_records import Spool, merge
from kvrm_sim.cluster import Cluster, check_cluster
from kvrm_sim.cluster_summary import Served, summarize_several
from kvrm_sim.columns import REPLICA
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import parameters_for_trace
from kvrm_sim.errors import ConfigError, RunError
from kvrm_sim.feed import CHUNK_ROWS, Chunk, arrival_chunks, rows_for
from kvrm_sim.memory import plan_memory
from kvrm_sim.parameters import CoreParameters
from kvrm_sim.plugin_registry import PartSource, using
from kvrm_sim.plugins import Part
from kvrm_sim.result import RunResult
from kvrm_sim.router_views import ReplicaView, RoutedRequest
from kvrm_sim.routers import RoundRobin, Router, make_router, router_parts
from kvrm_sim.run_output import RunOutput, Setup, Several
from kvrm_sim.words import DEFAULT_ROUTER
from kvrm_traces import Trace
from kvrm_traces.shared import in_memory


@dataclass(frozen=True)
class Shard:
    """A task: which replicas of the cluster, ascending, and where their records go (None: nowhere)."""

    number: int
    replicas: tuple[int, ...]
    folder: Path | None


@dataclass(frozen=True)
class ShardWork:
    """See :class:`kvrm_analysis.engines.engines.Work`: tasks are :class:`Shard`, results what its replicas counted."""

    trace: Trace
    config: ReplicaConfig
    replicas: int
    router: str
    stop_ns: int
    plugins: tuple[PartSource, ...] = ()

    def start(self) -> Callable[[Shard], dict[int, Served]]:
        """Nothing needs to be compiled first: the first shard's first chunk does."""
        return self._run

    def portable(self) -> ShardWork:
        """With the trace's columns in it."""
        return replace(self, trace=in_memory(self.trace).open())

    def _run(self, shard: Shard) -> dict[int, Served]:
        with using(self.plugins), Spool(shard.folder, shard.number, shard.replicas) as spool:
            parameters = parameters_for_trace(self.trace, self.config, plan_memory(self.config))
            own = _OwnRows(make_router(self.router), self.replicas, shard.replicas)
            cluster = Cluster(parameters, len(shard.replicas), own, spool)
            cluster.serve(own.feed(self._chunks(parameters)), self.stop_ns, lambda _: None)
            return dict(zip(shard.replicas, cluster.served(), strict=True))

    def _chunks(self, parameters: CoreParameters) -> Iterator[Chunk]:
        rows = rows_for(self.replicas) if parameters.shares else CHUNK_ROWS
        return arrival_chunks(self.trace, rows, with_ids=parameters.shares)


class _OwnRows:
    """The router of a shard: sends its arrivals to its replicas, and takes the others out of the trace before."""

    stateless = True

    def __init__(self, router: Router, count: int, replicas: Sequence[int]) -> None:
        self._router, self._count = router, count
        self._local = np.full(count, -1, np.int64)
        self._local[list(replicas)] = np.arange(len(replicas))
        self._first_row = 0
        self._places: NDArray[np.int64] = np.zeros(0, np.int64)

    def feed(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """The chunks with own arrivals alone; those with none are left out."""
        for chunk in chunks:
            self._first_row = int(chunk.arrivals["row"][0])
            self._places = self._local[self._chosen(chunk)]
            own = chunk.arrivals[self._places >= 0]
            if len(own):
                yield chunk._replace(arrivals=own)

    def choose(self, request: RoutedRequest, _replicas: Sequence[ReplicaView], _now_ns: int, /) -> int:
        return int(self._places[request.row - self._first_row])

    def _chosen(self, chunk: Chunk) -> NDArray[np.int64]:
        rows = chunk.arrivals["row"]
        if isinstance(self._router, RoundRobin):  # its rule, over a whole array: every shard asks for every row
            return np.asarray(rows % self._count, np.int64)
        choose = self._router.choose
        # It reads no replica; how many there are it may ask.
        views = cast("Sequence[ReplicaView]", range(self._count))
        prompts = chunk.arrivals["prompt_tokens"].tolist()
        requests = (RoutedRequest(row, tokens) for row, tokens in zip(rows.tolist(), prompts, strict=True))
        return np.array([choose(request, views, 0) for request in requests], np.int64)


def check_shards(router: str) -> None:
    """Raise ConfigError for a router that has to see the replicas."""
    if not make_router(router).stateless:
        raise ConfigError(
            f"router {router!r} looks at the replicas at each arrival, so they cannot run apart: leave out the engine, "
            "or take a router whose choices follow from the rows alone, e.g. 'round-robin'",
            "router",
            router,
        )


def run_sharded(
    trace: Trace,
    config: ReplicaConfig,
    *,
    replicas: int,
    engine: Engine,
    router: str = DEFAULT_ROUTER,
    out: Path | None = None,
    progress: Callable[[float], None] | None = None,
    stop_at_s: float | None = None,
    force: bool = False,
    keep: bool = True,
) -> RunResult:
    """:func:`kvrm_sim.cluster.run_cluster` with the replicas shared out over an engine's processes. Every byte of the
    result is the same but for ``sim.wall_s`` and its like.

    With ``out`` (or ``keep``) the shards spool their records beside it: a Ray cluster of several machines needs a
    folder that all of them see. Raises ConfigError for a router that is not stateless, RunError for a shard that is
    lost.
    """
    check_cluster(replicas, router, None, trace, config)
    check_shards(router)
    plan = plan_memory(config)
    parameters_for_trace(trace, config, plan)  # what a trace cannot have with a policy is an error before any process
    count = min(engine.workers, replicas)
    described = {"replicas": replicas, "router": router}
    setup = Setup(
        trace=trace,
        config=config,
        plans=((plan, replicas),),
        stop_at_s=stop_at_s,
        several=Several(request_fields=REPLICA, described=described),
    )
    with RunOutput(setup, out, force=force, keep=keep) as output, _spools(out, keep) as folder:
        parts = (*config.policy.parts, *router_parts(router))
        work = ShardWork(trace, config, replicas, router, setup.stop_ns, _sources(parts))
        shards = [Shard(at, tuple(range(at, replicas, count)), folder) for at in range(count)]
        served = _served(engine, work, shards, progress)
        if folder is not None:
            merge(folder, count, output.target)
        return output.result(partial(summarize_several, {"": served}, described))


@contextmanager
def _spools(out: Path | None, keep: bool) -> Iterator[Path | None]:
    """A folder for the shards' records, beside ``out``; None where nobody wants them."""
    if out is None and not keep:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix=".shards-", dir=None if out is None else out.parent)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sources(parts: Sequence[type[Part]]) -> tuple[PartSource, ...]:
    """Users' parts as another process finds them: the file that one was read from, else the class."""
    return tuple(
        str(sys.modules[part.__module__].__file__) if part.__module__.startswith("kvrm_plugin_") else part
        for part in parts
    )


def _served(
    engine: Engine, work: ShardWork, shards: Sequence[Shard], progress: Callable[[float], None] | None
) -> list[Served]:
    """What all replicas of the cluster have counted, in order."""
    found: dict[int, Served] = {}
    for _, result in engine.map(work, shards):
        if isinstance(result, Lost):
            raise RunError(f"a shard of the cluster is lost: {result.reason}")
        found |= result
        if progress is not None:
            progress(len(found) / work.replicas)
    return [found[at] for at in range(work.replicas)]

"""Prefill and decode on different replicas (docs/cluster.md): prompts are computed on one kind, decoded on the other.

A prefill replica gives a request's first token; then its KV moves over a link, and it joins a decode replica, on which
that KV appears at admission. Decode replicas never act on prefill ones, so the two sides run one after the other, each
through the decision core as it is: the prefill side with outputs of one token, the decode side with ``prefill = none``.
Memory grows with the trace by some tens of bytes a request.

Left out: blocks stay at the source until the transfer ends, and are held at the destination while it runs (here they
are free, and taken at admission); a preempted decode finds its KV again at no cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.cluster import MOST_REPLICAS, Cluster, check_cluster
from kvrm_sim.columns import SPLIT
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.engine import parameters_for_trace
from kvrm_sim.errors import ConfigError
from kvrm_sim.feed import CHUNK_ROWS_WITH_IDS, Chunk
from kvrm_sim.memory import plan_memory
from kvrm_sim.pager import blocks_for
from kvrm_sim.parameters import CoreParameters
from kvrm_sim.peer_links import SharedLink
from kvrm_sim.plugin_core import say_if_slow
from kvrm_sim.result import RunResult
from kvrm_sim.routers import LeastKv, Router
from kvrm_sim.run_output import RunOutput, Setup, Several
from kvrm_sim.sinks import Target
from kvrm_sim.split_records import Kept, Outputs, Transfers, merged_requests
from kvrm_sim.split_summary import Side, summarize_split
from kvrm_sim.words import DEFAULT_ROUTER
from kvrm_traces import Trace

#: Keys that say how prompts are computed: on a decode replica nothing reads them.
_ABOUT_PREFILL = ("launch.mixed", "launch.token_sizes", "schedule.token_budget", "pager.partial_tail")


class Prefilled(NamedTuple):
    """A prompt whose KV is written: when its step ends, on which prefill replica, in how many runs of blocks."""

    end_ns: int
    row: int
    prompt_tokens: int
    replica: int
    runs: int


@dataclass(frozen=True)
class Link:
    """What moving a prompt's KV takes, ns. One link for each pair of replicas, which the transfers on it share; the
    latency is nobody's share.
    """

    latency_ns: int
    segment_ns: float
    token_ns: float
    segments_a_run: int

    @classmethod
    def of(cls, config: ReplicaConfig) -> Link:
        """From the profile: every rank sends its own shard to its counterpart, all at once."""
        h = config.hardware.values()
        return cls(
            latency_ns=round(h["peer_latency_ns"]),
            segment_ns=h["copy_segment_ns"],
            token_ns=1e9 * config.rank_kv_bytes_per_token / h["peer_bytes_per_s"],
            segments_a_run=config.model.layers if config.policy.layout == "layer_major" else 1,
        )

    def alone_ns(self, prompt_tokens: int, runs: int) -> float:
        """What sending takes on an idle link, before the latency; at least 1."""
        return max(1.0, self.segment_ns * runs * self.segments_a_run + self.token_ns * prompt_tokens)


class PrefillSide(Cluster):
    """Replicas that compute prompts; notes each one that is complete when its last step is decided."""

    flags = st.STOP_AT_DECISIONS

    def __init__(self, parameters: CoreParameters, count: int, router: Router, target: Target) -> None:
        super().__init__(parameters, count, router, target)
        self.prefilled: list[Prefilled] = []

    def on_decision(self, at: int) -> None:
        """Before the step ends the row still has its block table; after it, nothing tells its runs."""
        replica = self.replicas[at]
        end_ns = int(replica.steps[0].end_ns)
        for row in replica.rows["prefill"][: int(replica.scalars[0].num_prefill)]:
            r = replica.rows[row]
            q = replica.requests[r.request]
            if r.computed + r.planned == q.prompt_tokens + q.delivered:
                self.prefilled.append(Prefilled(end_ns, int(q.row), int(q.prompt_tokens), at, int(r.runs)))


class DecodeSide(Cluster):
    """Replicas that decode. Each request goes where the fewest blocks are held, wanted, or under way to."""

    def __init__(self, parameters: CoreParameters, count: int, first: int, target: Target) -> None:
        """``first``: the number that the first of them has in the records."""
        super().__init__(parameters, count, LeastKv(), target)
        self._first = first
        self._under_way = [0] * count

    def take(
        self, prefilled: list[Prefilled], outputs: Outputs, link: Link, stop_ns: int, transfers: Transfers
    ) -> None:
        """Serve everything that was prefilled, in order, and close. What was moved is noted in ``transfers``."""
        links: dict[tuple[int, int], SharedLink[Prefilled]] = {}
        arriving: list[tuple[int, int, int, Prefilled]] = []

        def serve_until(time_ns: int) -> None:
            for (_, chosen), shared in links.items():
                for sent_ns, done in shared.take_sent_by(time_ns):
                    heapq.heappush(arriving, (sent_ns + link.latency_ns, done.row, chosen, done))
            while arriving and arriving[0][0] <= time_ns:
                end_ns, row, chosen, done = heapq.heappop(arriving)
                transfers.duration_ns[row] = end_ns - done.end_ns
                self._join(end_ns, row, chosen, done, outputs)

        for done in sorted(prefilled):
            if done.end_ns > stop_ns:
                break
            serve_until(done.end_ns)
            self.advance(done.end_ns, known_until_ns=done.end_ns)
            chosen = self._choose()
            shared = links.setdefault((done.replica, chosen), SharedLink())
            shared.join(done.end_ns, link.alone_ns(done.prompt_tokens, done.runs), done)
            self._under_way[chosen] += self._blocks(done)
            transfers.decode_replica[done.row], transfers.groups[done.row] = self._first + chosen, done.runs
        serve_until(stop_ns)
        self.advance(stop_ns, known_until_ns=st.NEVER)
        for replica in self.replicas:
            replica.close()
        self.records.finish()

    def _choose(self) -> int:
        loads = [
            view.held_blocks + view.work_ahead()[1] + under_way
            for view, under_way in zip(self.views, self._under_way, strict=True)
        ]
        return loads.index(min(loads))

    def _blocks(self, done: Prefilled) -> int:
        return int(blocks_for(self.replicas[0].parameters.record[0], done.prompt_tokens + 1))

    def _join(self, end_ns: int, row: int, chosen: int, done: Prefilled, outputs: Outputs) -> None:
        """Its transfer has ended. It knows its prompt and its first token; the entries of the prompt are written."""
        self._under_way[chosen] -= self._blocks(done)
        self.advance(end_ns, known_until_ns=end_ns)
        request = np.zeros(1, st.ARRIVALS)
        request["row"], request["arrival_ns"] = row, end_ns
        request["prompt_tokens"] = done.prompt_tokens + 1
        request["output_tokens"] = outputs.delivered[row] - 1
        request["declared_max_tokens"] = st.NONE
        self.replicas[chosen].insert(request)


def outputs_of(trace: Trace, config: ReplicaConfig) -> Outputs:
    """What each request is to deliver (docs/semantics.md section 1): over the limit it is refused, or cut."""
    tokens = [
        (batch.column("prompt_tokens").to_numpy(), batch.column("output_tokens").to_numpy())
        for batch in trace.batches(columns=("prompt_tokens", "output_tokens"))
    ]
    prompt, recorded = (np.concatenate(column) for column in zip(*tokens, strict=True))
    room = config.limit_tokens - prompt
    fits = recorded <= room if config.over_limit != "truncate" else room > 0
    return Outputs(recorded, np.where(fits, np.minimum(recorded, room), 0))


def _first_tokens(feed: Iterator[Chunk], outputs: Outputs) -> Iterator[Chunk]:
    """Each request with an output of one token; one that is over the limit keeps its own, to be refused for it."""
    for chunk in feed:
        arrivals = chunk.arrivals
        arrivals["output_tokens"] = np.where(outputs.delivered[arrivals["row"]] > 0, 1, arrivals["output_tokens"])
        yield chunk


def decode_config(config: ReplicaConfig) -> ReplicaConfig:
    """The configuration of a decode replica: the same, but prompts cost nothing and no prefix is kept."""
    changes: dict[str, object] = {f"policy.{key}": None for key in _ABOUT_PREFILL}
    return config.override({**changes, "policy.schedule.prefill": "none", "policy.pager.prefix_sharing": False})


def check_split(config: ReplicaConfig | None, prefill_replicas: int, decode_replicas: int) -> None:
    """Raise ConfigError for what cannot be split. ``config`` None: it is not looked at."""
    for name, count in (("prefill_replicas", prefill_replicas), ("decode_replicas", decode_replicas)):
        if not 1 <= count <= MOST_REPLICAS:
            raise ConfigError(f"{name} = {count}: should be from 1 to {MOST_REPLICAS} replicas", name, count)
    if config is None:
        return
    if not config.policy.paged:
        raise ConfigError(
            f"policy {config.policy.name!r} reserves a request's whole length; prefill and decode are split for paged "
            "policies only",
            "reserve.mode",
            config.policy.reserve.mode,
        )
    if config.policy.schedule.prefill == "none":
        raise ConfigError("prefill = 'none' leaves prefill replicas nothing to do", "schedule.prefill", "none")


def run_split(
    trace: Trace,
    config: ReplicaConfig,
    *,
    prefill_replicas: int,
    decode_replicas: int,
    router: str = DEFAULT_ROUTER,
    prefix_weight: float | None = None,
    out: Path | None = None,
    progress: Callable[[float], None] | None = None,
    stop_at_s: float | None = None,
    force: bool = False,
    keep: bool = True,
) -> RunResult:
    """Replay a trace with prompts on ``prefill_replicas`` behind ``router``, decodes on ``decode_replicas``.

    requests.parquet has the columns ``columns.SPLIT``. Decode replicas are numbered behind the prefill ones.
    Other options and errors: :func:`kvrm_sim.engine.run`.
    """
    check_split(config, prefill_replicas, decode_replicas)
    made = check_cluster(prefill_replicas, router, prefix_weight, trace, config)
    decoding = decode_config(config)
    plans = plan_memory(config), plan_memory(decoding)
    say_if_slow(config.policy.parts)
    described = {"prefill_replicas": prefill_replicas, "decode_replicas": decode_replicas, "router": router}
    setup = Setup(
        trace=trace,
        config=config,
        plans=((plans[0], prefill_replicas), (plans[1], decode_replicas)),
        stop_at_s=stop_at_s,
        several=Several(request_fields=SPLIT, described=described),
    )
    with RunOutput(setup, out, force=force, keep=keep) as output:
        first, second = _Relay(output.target, 0), _Relay(output.target, prefill_replicas)
        prompts = PrefillSide(parameters_for_trace(trace, config, plans[0]), prefill_replicas, made, first)
        decodes = DecodeSide(
            parameters_for_trace(trace, decoding, plans[1], share=False), decode_replicas, prefill_replicas, second
        )
        outputs, transfers = outputs_of(trace, config), Transfers.none(trace.info.rows)
        feed = _first_tokens(prompts.arrivals(trace, CHUNK_ROWS_WITH_IDS), outputs)
        prompts.serve(feed, setup.stop_ns, lambda _: None)
        moving = [done for done in prompts.prefilled if outputs.delivered[done.row] > 1]
        if progress is not None:
            progress(0.5)
        decodes.take(moving, outputs, Link.of(config), setup.stop_ns, transfers)
        sides = Side(prompts.served(), first.kept.by_row()), Side(decodes.served(), second.kept.by_row())
        merged = merged_requests(sides[0].requests, sides[1].requests, outputs, transfers)
        output.target.requests(merged)
        result = output.result(partial(summarize_split, *sides, merged, described))
    if progress is not None:
        progress(1.0)
    return result


class _Relay:
    """Keeps a side's requests, to be merged; hands on its other records with its replicas' numbers."""

    def __init__(self, target: Target, first: int) -> None:
        self.kept = Kept()
        self.requests = self.kept.requests
        self._target, self._first = target, first

    def windows(self, records: st.Records) -> None:
        records["replica"] += self._first
        self._target.windows(records)

    def pool(self, samples: st.Records, classes: NDArray[np.int64]) -> None:
        samples["replica"] += self._first
        self._target.pool(samples, classes)

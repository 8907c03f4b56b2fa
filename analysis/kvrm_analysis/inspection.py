"""A stretch of a run, looked at again step by step: what a run does not write because it would be too much.

The run is simulated once more from its run.toml and its trace, in spans up to the stretch and decision by decision
within it. The same inputs give the same run; the requests that end on the way are compared with the recorded ones, and
a difference is an error, never a picture of another run. Costs the simulation up to the end of the stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvrm_analysis.recorded import Recorded
from kvrm_sim import state as st
from kvrm_sim.columns import request_table, step_table
from kvrm_sim.engine import STEPS_A_CALL, parameters_for_trace
from kvrm_sim.errors import InputError, RunError
from kvrm_sim.feed import Chunk
from kvrm_sim.memory import plan_memory
from kvrm_sim.replica import Replica
from kvrm_sim.sinks import Sinks

#: In a map of the pool, what a block is where no request alone holds it; requests are the rows of the trace, from 0.
FREE, CACHED, LEAVING, SHARED = -1, -2, -3, -4
#: Entries of a map of the pool at most: a quarter of a gigabyte.
MOST_MAP_ENTRIES = 1 << 26

#: One row of a batch: the step (its index in the stretch), the request (row of the trace), its batch row (-1 for a
#: prompt, which has none yet), tokens that it computes in the step, blocks that it holds, entries written before it.
BATCH = np.dtype([(name, np.int64) for name in ("step", "row", "slot", "tokens", "blocks", "computed")])


@dataclass(frozen=True)
class PoolMap:
    """Who holds which block: samples at ``times_ns`` int64 [n].

    ``owners`` int32 [n, pool_blocks]: a row of the trace, or FREE, CACHED, LEAVING (given back, but still read by a
    step or a copy), SHARED (by several). ``written`` bool, the same shape: it holds at least one token.
    """

    times_ns: NDArray[np.int64]
    owners: NDArray[np.int32]
    written: NDArray[np.bool_]


@dataclass(frozen=True)
class Stretch:
    """What happened in [start, end]. Times in ns from the run's start, rows are the trace's.

    ``steps``: one row a step that ended in it, the columns of steps.parquet. ``events``: ``kind`` (reject, admit,
    preempt, first_token, finish), ``time_ns``, ``row``. ``requests``: those that ended in it, as in requests.parquet.
    ``batch``: ``BATCH`` records, None unless asked for; ``pool`` likewise. Indices of ``batch.step`` count the steps
    that were decided or in flight in the stretch: the first of them is row 0 of ``steps``, the last may not have ended.
    """

    start_ns: int
    end_ns: int
    steps: pa.Table
    events: pa.Table
    requests: pa.Table
    batch: NDArray[np.void] | None
    pool: PoolMap | None
    pool_blocks: int
    block_size_tokens: int


def inspect(
    source: Recorded,
    start_s: float = 0.0,
    end_s: float | None = None,
    *,
    batch: bool = False,
    pool_samples: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Stretch:
    """Run a run again and watch [start_s, end_s] of it (None: to its end).

    ``batch``: keep every row of every step's batch. ``pool_samples``: about as many samples of the whole pool (fewer
    where its blocks are many). Raises InputError for a stretch that is none, RunError when this is not the recorded
    run.
    """
    last_s = _last_s(source)
    stop_s = last_s if end_s is None else min(end_s, last_s)
    if not 0 <= start_s < stop_s:
        asked = f"{start_s:g}:{'' if end_s is None else f'{end_s:g}'}"
        raise InputError(f"window {asked} s: should be START < END within the run, 0 to {last_s:g} s")
    watch = _Watch(source, round(start_s * 1e9), round(stop_s * 1e9), progress)
    return watch.stretch(batch=batch, pool_samples=pool_samples)


def gap_counts(source: Recorded, progress: Callable[[float], None] | None = None) -> NDArray[np.int64]:
    """The run's histogram of inter-token gaps, which only a run in progress has: int64 [meters.BUCKETS]."""
    watch = _Watch(source, 0, round(_last_s(source) * 1e9), progress)
    return watch.gap_counts()


def _last_s(source: Recorded) -> float:
    ends = source.run.steps["end_ns"].to_numpy()
    if source.replica is not None:
        ends = ends[source.run.steps["replica"].to_numpy() == source.replica]
    if len(ends) == 0:
        raise InputError(f"run {source.run.name!r}: no step of it ended, there is nothing to look at")
    last = float(ends.max()) / 1e9
    return last if source.stop_s is None else min(last, source.stop_s)


class _Watch:
    """The replica of a run, advanced to a stretch and through it."""

    def __init__(self, source: Recorded, start_ns: int, end_ns: int, progress: Callable[[float], None] | None) -> None:
        self.source, self.start_ns, self.end_ns = source, start_ns, end_ns
        self._progress = progress
        config = source.config.model_copy(update={"window_s": 0.0, "check": False})
        parameters = parameters_for_trace(source.trace, config, plan_memory(config), log_events=True)
        self.replica = Replica(parameters, Sinks(self._keep_request, self._keep_step, lambda _samples, _classes: None))
        self._feed: Iterator[Chunk] = source.feed(with_ids=parameters.shares)
        self._known_until_ns = 0
        self._ended: list[st.Records] = []
        self._steps: list[st.Records] = []
        self._events: list[st.Records] = []

    def _keep_request(self, records: st.Records) -> None:
        self._ended.append(records.copy())

    def _keep_step(self, records: st.Records) -> None:
        kept = records[(records["end_ns"] >= self.start_ns) & (records["end_ns"] <= self.end_ns)]
        if len(kept):
            self._steps.append(kept.copy())

    def _keep_events(self, records: st.Records) -> None:
        kept = records[(records["time_ns"] >= self.start_ns) & (records["time_ns"] <= self.end_ns)]
        if len(kept):
            self._events.append(kept.copy())

    def _to(self, until_ns: int, flags: int) -> Iterator[int]:
        """Advance to a time; yields where the flags make it stop."""
        while True:
            reason = self.replica.advance(until_ns, max_steps=STEPS_A_CALL, flags=flags)
            if self._progress is not None and reason != st.DECIDED:
                self._progress(min(1.0, self.replica.now_ns / self.end_ns))
            if reason == st.NEED_ARRIVALS or (
                reason == st.UNTIL and self._known_until_ns <= until_ns and self._known_until_ns < st.NEVER
            ):
                chunk = next(self._feed)
                self._known_until_ns = chunk.known_until_ns
                self.replica.supply(chunk.arrivals, known_until_ns=chunk.known_until_ns, ids=chunk.ids)
            elif reason == st.DECIDED:
                yield reason
            elif reason != st.WORK:
                return

    def stretch(self, *, batch: bool, pool_samples: int) -> Stretch:
        replica = self.replica
        for _ in self._to(self.start_ns, 0):
            raise AssertionError("nothing asked the core to stop")
        replica.drain_events()
        replica.sinks.events = self._keep_events
        pool_blocks = int(replica.parameters.record[0].pool_blocks)
        sampler = _Sampler(replica, self, min(pool_samples, MOST_MAP_ENTRIES // pool_blocks)) if pool_samples else None
        batches: list[NDArray[np.void]] = []
        if sampler is None and not batch:  # nothing is to be seen at single decisions
            for _ in self._to(self.end_ns, 0):
                raise AssertionError("nothing asked the core to stop")
        for number, _ in enumerate(self._decisions()):
            if batch:
                batches.append(batch_of(replica, number))
            if sampler is not None:
                sampler.see(int(replica.steps[0].start_ns))
        replica.drain_events()
        replica.drain_records()
        self._compare()
        replica.close()  # hands out the record of the step that ended last
        return Stretch(
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            steps=step_table(_joined(self._steps, st.WINDOWS)),
            events=_event_table(_joined(self._events, st.EVENTS)),
            requests=self._ended_within(),
            batch=_joined(batches, BATCH) if batch else None,
            pool=None if sampler is None else sampler.pool_map(),
            pool_blocks=pool_blocks,
            block_size_tokens=int(replica.parameters.record[0].block_size),
        )

    def _decisions(self) -> Iterator[int]:
        """The step in flight as the stretch begins, then each that is decided in it."""
        if self.replica.scalars[0].phase == st.FLYING:
            yield st.DECIDED
        yield from self._to(self.end_ns, st.STOP_AT_DECISIONS)

    def gap_counts(self) -> NDArray[np.int64]:
        for _ in self._to(self.end_ns, 0):
            raise AssertionError("nothing asked the core to stop")
        self.replica.drain_records()
        self._compare()
        counts: NDArray[np.int64] = self.replica.arrays.histograms[st.H_ITL].copy()
        return counts

    def _ended_within(self) -> pa.Table:
        ended = _joined(self._ended, st.OUT)
        when = np.where(ended["outcome"] == st.REJECTED, ended["arrival_ns"], ended["finish_ns"])
        return request_table(
            ended[(when >= self.start_ns) & (when <= self.end_ns) & (ended["outcome"] != st.UNFINISHED)]
        )

    def _compare(self) -> None:
        """Those who ended on the way are the run's, in its order and at its times."""
        table = self.source.run.requests
        if table is None:
            return
        if self.source.replica is not None:
            table = table.filter(pc.equal(table["replica"], self.source.replica))
        ended = request_table(_joined(self._ended, st.OUT))
        for name in ("row", "finish_ns", "delivered_tokens"):
            if not table[name].slice(0, ended.num_rows).equals(ended[name]):
                raise RunError(
                    f"run {self.source.run.name!r}: simulated again it is another run ({name} differs): it was made "
                    "by another version of kvrm, or its folder was changed"
                )


def batch_of(replica: Replica, number: int) -> NDArray[np.void]:
    """The batch of the step that was just decided, as ``BATCH`` records: decoding rows by slot, then chunks."""
    rows, s = replica.rows, replica.scalars[0]
    decoding = np.flatnonzero((rows["decoding"] != 0) & (rows["blocks"] > 0)) if replica.steps[0].decode_rows else ()
    chunks = rows["prefill"][: int(s.num_prefill)]
    chunks = chunks[rows["planned"][chunks] > 0]
    at = np.concatenate([np.asarray(decoding, np.int64), chunks])
    count = len(decoding)
    found = np.zeros(len(at), BATCH)
    found["step"] = number
    found["row"] = replica.requests["row"][rows["request"][at]]
    found["slot"] = rows["slot"][at]
    found["slot"][count:] = st.NONE
    found["blocks"] = rows["blocks"][at]
    found["tokens"] = 1
    found["tokens"][count:] = rows["planned"][chunks]
    found["computed"][:count] = rows["origin"][at[:count]] + int(s.decode_counter)
    found["computed"][count:] = rows["computed"][chunks]
    return found


def owners_of(replica: Replica) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Who holds each block now, and whether tokens are in it: as ``PoolMap`` has them, [pool_blocks]."""
    p, s = replica.parameters.record[0], replica.scalars[0]
    rows, blocks, size = replica.rows, replica.blocks, int(p.block_size)
    pool = int(p.pool_blocks)
    owners = np.full(pool + 1, LEAVING, np.int32)
    owners[blocks["free"][: pool + 1] != 0] = FREE
    written = np.zeros(pool + 1, bool)
    if p.sharing:
        key, references, fenced = (blocks[name][: pool + 1] for name in ("key", "refs", "fenced"))
        cached = (owners == LEAVING) & (key != st.NONE) & (references == 0) & (fenced == 0)
        owners[cached] = CACHED
        written[cached] = True
    for row in np.flatnonzero(rows["blocks"] > 0).tolist():
        held = int(rows["blocks"][row])
        if replica.parameters.paged:
            ids = replica.table[row, :held]
        else:
            ids = np.arange(rows["run_start"][row], rows["run_start"][row] + held)
        tokens = int(rows["origin"][row] + s.decode_counter if rows["decoding"][row] else rows["computed"][row])
        owners[ids] = replica.requests["row"][rows["request"][row]]
        written[ids[: -(-tokens // size) - int(rows["dropped"][row])]] = True
    if p.sharing:
        owners[references > 1] = SHARED
    return owners[1:], written[1:]


class _Sampler:
    """Keeps the pool at the first decision after each of equally spaced times."""

    def __init__(self, replica: Replica, watch: _Watch, samples: int) -> None:
        self._replica = replica
        self._every_ns = max(1, (watch.end_ns - watch.start_ns) // max(1, samples))
        self._next_ns = watch.start_ns
        self._times: list[int] = []
        self._owners: list[NDArray[np.int32]] = []
        self._written: list[NDArray[np.bool_]] = []

    def see(self, now_ns: int) -> None:
        if self._times and now_ns < self._next_ns:
            return
        owners, written = owners_of(self._replica)
        self._times.append(now_ns)
        self._owners.append(owners)
        self._written.append(written)
        self._next_ns = now_ns - now_ns % self._every_ns + self._every_ns

    def pool_map(self) -> PoolMap:
        pool = int(self._replica.parameters.record[0].pool_blocks)
        if not self._times:
            return PoolMap(np.zeros(0, np.int64), np.zeros((0, pool), np.int32), np.zeros((0, pool), bool))
        return PoolMap(np.array(self._times), np.stack(self._owners), np.stack(self._written))


def _joined(parts: Sequence[NDArray[np.void]], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _event_table(events: st.Records) -> pa.Table:
    kinds = pa.DictionaryArray.from_arrays(events["kind"].astype(np.int8), pa.array(st.EVENT_KINDS))
    return pa.table({"kind": kinds, "time_ns": events["time_ns"].copy(), "row": events["row"].copy()})

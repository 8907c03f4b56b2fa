"""The records of several replicas in one order, whenever each was handed out.

By time, then by replica, then as the replica wrote them. A record is held back until no earlier one can come, so what
is kept is what was written since the slowest replica's time. The order depends on nothing but the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.columns import with_fields
from kvrm_sim.replica import Replica
from kvrm_sim.sinks import Sinks, Target

_EXPOSED = tuple(f"{part}_exposed_ns" for part in st.PARTS)


def ended_ns(records: st.Records) -> NDArray[np.int64]:
    """When each request left: its finish, a rejected one's arrival; NEVER for those that were unfinished."""
    left = np.where(records["outcome"] == st.REJECTED, records["arrival_ns"], records["finish_ns"])
    return np.where(records["outcome"] == st.UNFINISHED, st.NEVER, left).astype(np.int64)


@dataclass(frozen=True)
class Stream:
    """One kind of records of several replicas, and their order."""

    #: As a replica writes them; with ``replica`` behind, they are those of a cluster.
    fields: np.dtype[Any]
    #: The time of each record: what comes first in their order.
    time_ns: Callable[[st.Records], NDArray[np.int64]]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the records with ``replica``."""
        return with_fields(self.fields)

    @staticmethod
    def order(records: st.Records, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of the records in order. Stable: a replica's own order stays."""
        return np.lexsort((records["replica"], times))


STREAMS = {
    "requests": Stream(st.OUT, ended_ns),
    "windows": Stream(st.WINDOWS, lambda records: records["start_ns"]),
    "pool": Stream(st.POOL_SAMPLES, lambda records: records["time_ns"]),
}


class _Held:
    """Records of one stream that are held back, and int64 [records, any] beside each of them."""

    def __init__(self, stream: Stream, sink: Callable[[st.Records, NDArray[np.int64]], None]) -> None:
        self._stream, self._sink = stream, sink
        self._kept: list[st.Records] = []
        self._beside: list[NDArray[np.int64]] = []

    def add(self, replica: int, records: st.Records, beside: NDArray[np.int64] | None = None) -> None:
        """Copy records of one replica."""
        tagged = np.zeros(len(records), self._stream.dtype)
        for name in self._stream.fields.names or ():
            tagged[name] = records[name]
        tagged["replica"] = replica
        self._kept.append(tagged)
        self._beside.append(np.zeros((len(records), 0), np.int64) if beside is None else beside.copy())

    def release(self, before_ns: int, *, last: bool) -> None:
        """Hand on what is before this time, in order; everything with ``last``."""
        if not self._kept:
            return
        records, beside = np.concatenate(self._kept), np.concatenate(self._beside)
        times = self._stream.time_ns(records)
        order = self._stream.order(records, times)
        count = len(order) if last else int(np.searchsorted(times[order], before_ns))
        now, later = order[:count], order[count:]
        if count:
            self._sink(records[now], beside[now])
        self._kept = [records[later]] if len(later) else []
        self._beside = [beside[later]] if len(later) else []


class MergedRecords:
    """Hands the records of ``count`` replicas to ``target`` in order, and adds up the time of each one's steps."""

    def __init__(self, count: int, target: Target) -> None:
        self.busy_ns = [0] * count
        self._requests = _Held(STREAMS["requests"], lambda records, _: target.requests(records))
        self._windows = _Held(STREAMS["windows"], lambda records, _: target.windows(records))
        self._pool = _Held(STREAMS["pool"], target.pool)

    def sinks(self, replica: int) -> Sinks:
        """Where that replica's records go."""

        def windows(records: st.Records) -> None:
            self.busy_ns[replica] += sum(int(records[name].sum()) for name in _EXPOSED)
            self._windows.add(replica, records)

        return Sinks(
            requests=lambda records: self._requests.add(replica, records),
            windows=windows,
            pool=lambda samples, classes: self._pool.add(replica, samples, classes),
        )

    def release(self, replicas: list[Replica], now_ns: int) -> None:
        """All replicas have been advanced to now: drain them, and hand on what nothing can come before any more."""
        for replica in replicas:
            replica.drain_records()
        self._requests.release(now_ns, last=False)
        self._pool.release(now_ns, last=False)
        self._windows.release(min(replica.open_window_ns(now_ns) for replica in replicas), last=False)

    def finish(self) -> None:
        """All replicas are closed: hand on the rest."""
        for stream in (self._requests, self._pool, self._windows):
            stream.release(st.NEVER, last=True)

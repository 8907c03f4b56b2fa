"""The records of replicas that ran apart: each shard spools its own in order, and they are merged as they are read.

The order is that of a cluster's run (``kvrm_sim.cluster_records``): by time, then by replica, then as the replica wrote
them. Memory is some blocks of records a shard, whatever the length of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.cluster_records import STREAMS
from kvrm_sim.errors import RunError
from kvrm_sim.sinks import Target

#: Records of a block that is read at a time.
BLOCK_RECORDS = 65_536

_CLASSES = np.dtype((np.int64, (st.RUN_CLASSES,)))


class Spool:
    """Where the records of one shard go: a file a stream in ``folder``, None: nowhere. See ``kvrm_sim.sinks.Target``.

    ``replicas``: which replica of the cluster each of the shard's is; ascending, so that their order stays.
    """

    def __init__(self, folder: Path | None, shard: int, replicas: Sequence[int]) -> None:
        self._replicas = np.array(replicas, np.int64)
        self._files: dict[str, IO[bytes]] = {}
        if folder is not None:
            self._files = {name: path_of(folder, shard, name).open("wb") for name in (*STREAMS, "classes")}

    def requests(self, records: st.Records) -> None:
        """Append OUT records with ``replica``."""
        self._add("requests", records)

    def windows(self, records: st.Records) -> None:
        """Append WINDOWS records with ``replica``."""
        self._add("windows", records)

    def pool(self, samples: st.Records, classes: NDArray[np.int64]) -> None:
        """Append POOL_SAMPLES records with ``replica``, and their int64 [samples, RUN_CLASSES]."""
        self._add("pool", samples)
        if self._files:
            self._files["classes"].write(np.ascontiguousarray(classes).tobytes())

    def _add(self, name: str, records: st.Records) -> None:
        if self._files:
            own = records.copy()
            own["replica"] = self._replicas[records["replica"]]
            self._files[name].write(own.tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()


def path_of(folder: Path, shard: int, name: str) -> Path:
    """The file of one stream of a shard."""
    return folder / f"shard-{shard}.{name}"


class _Source:
    """One shard's stream, read block by block; ``times`` ascend."""

    def __init__(self, folder: Path, shard: int, name: str, block: int) -> None:
        self._dtype, self._time_ns = STREAMS[name].dtype, STREAMS[name].time_ns
        self._block = block
        try:
            self._file = path_of(folder, shard, name).open("rb")
            self._classes = path_of(folder, shard, "classes").open("rb") if name == "pool" else None
        except OSError as error:
            raise RunError(f"{error.filename}: the records of a shard cannot be read here: {error.strerror}") from error
        self.records: st.Records = np.zeros(0, self._dtype)
        self.times: NDArray[np.int64] = np.zeros(0, np.int64)
        self.classes: NDArray[np.int64] = np.zeros((0, st.RUN_CLASSES), np.int64)
        self.more = True
        self.load()

    def load(self) -> None:
        """Read one block behind what is there."""
        data = self._file.read(self._block * self._dtype.itemsize)
        found = np.frombuffer(data, self._dtype)
        self.more = len(found) == self._block
        self.records = np.concatenate([self.records, found])
        self.times = np.concatenate([self.times, self._time_ns(found)])
        if self._classes is not None:
            beside = np.frombuffer(self._classes.read(len(found) * _CLASSES.itemsize), np.int64)
            self.classes = np.concatenate([self.classes, beside.reshape(len(found), st.RUN_CLASSES)])

    @property
    def known_until_ns(self) -> int | None:
        """No record before it is missing here; None: none is missing at all."""
        if not self.more:
            return None
        return int(self.times[-1]) if len(self.times) else -1

    def take(self, count: int) -> tuple[st.Records, NDArray[np.int64], NDArray[np.int64]]:
        """The first records, their times, and what lies beside them."""
        taken = self.records[:count], self.times[:count], self.classes[:count]
        self.records, self.times, self.classes = self.records[count:], self.times[count:], self.classes[count:]
        return taken

    def close(self) -> None:
        self._file.close()
        if self._classes is not None:
            self._classes.close()


def merge(folder: Path, shards: int, target: Target, *, block: int = BLOCK_RECORDS) -> None:
    """Hand the records of all shards to ``target`` in the order of a cluster's run. Raises RunError without them."""
    for records, _ in _merged(folder, shards, "requests", block):
        target.requests(records)
    for records, _ in _merged(folder, shards, "windows", block):
        target.windows(records)
    for records, classes in _merged(folder, shards, "pool", block):
        target.pool(records, classes)


def _merged(folder: Path, shards: int, name: str, block: int) -> Iterator[tuple[st.Records, NDArray[np.int64]]]:
    sources = [_Source(folder, shard, name, block) for shard in range(shards)]
    try:
        while True:
            bounds = [bound for source in sources if (bound := source.known_until_ns) is not None]
            before_ns = min(bounds) if bounds else None
            counts = [
                len(source.times) if before_ns is None else int(np.searchsorted(source.times, before_ns))
                for source in sources
            ]
            parts = [source.take(count) for source, count in zip(sources, counts, strict=True) if count]
            if parts:
                records, times, classes = (np.concatenate(column) for column in zip(*parts, strict=True))
                order = STREAMS[name].order(records, times)
                yield records[order], classes[order[: len(classes)]] if name == "pool" else classes
            if before_ns is None:
                return
            for source in sources:
                if source.known_until_ns is not None and source.known_until_ns <= before_ns:
                    source.load()
    finally:
        for source in sources:
            source.close()

"""From a run's folder back to what it was made from: the trace, the configuration, the replica.

run.toml names the trace, its file, its sha256 and what was done to it. How a file was read (a column's name, arrivals
that were drawn) is not in it: such a trace is given by the caller, and refused unless it is the recorded one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrm_analysis.runs import NamedRun
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.errors import InputError
from kvrm_sim.feed import Chunk, arrival_chunks
from kvrm_traces import Trace, TraceInfo, open_trace
from kvrm_traces.source import SourceFile
from kvrm_traces.trace import changed_sha256

_BUILT_IN = re.compile(r"built-in (?P<name>\S+), seed (?P<seed>\d+)")
_TRANSFORMS = (
    ("turns", re.compile(r"turns delta")),
    ("think", re.compile(r"think (\S+?)(?: seed (\d+))?")),
    ("window", re.compile(r"window (\S+):(\S*) s")),
    ("idle_cap", re.compile(r"idle cap (\S+) s")),
    ("sample", re.compile(r"sample (\S+) seed (\d+)")),
    ("limit", re.compile(r"limit (\d+)")),
    ("replicas", re.compile(r"replica (\d+) of (\d+)")),
    ("speedup", re.compile(r"speedup (\S+)")),
    ("time_stretch", re.compile(r"time_stretch (\S+)")),
    ("rate", re.compile(r"rate (\S+)")),
)

#: Transforms after which rows are missing: how many there were is not known.
_THINNING = ("window", "sample", "limit", "replica")
#: Those that make another trace, with a sha256 of its own.
_CHANGING = ("turns", "think")


@dataclass(frozen=True)
class Recorded:
    """What a run was made from. ``replica``: the one of a cluster that is meant; None: there is one only.

    ``stop_s``: simulated time at which it was stopped; None: it ran to its end.
    """

    run: NamedRun
    config: ReplicaConfig
    trace: Trace
    stop_s: float | None
    replica: int | None
    _rows: NDArray[np.int64] | None

    def feed(self, *, with_ids: bool) -> Iterator[Chunk]:
        """The arrivals of the replica, as the core takes them."""
        for chunk in arrival_chunks(self.trace, with_ids=with_ids):
            if self._rows is None:
                yield chunk
            else:
                yield chunk._replace(arrivals=chunk.arrivals[np.isin(chunk.arrivals["row"], self._rows)])


def recorded(run: NamedRun, *, trace: Trace | None = None, replica: int | None = None) -> Recorded:
    """Open again what a run was made from. ``trace`` where run.toml does not say enough; ``replica`` of a cluster.

    Raises InputError when the trace cannot be found or is not the recorded one, for the runs of clusters that split
    prefill from decode, and for a replica that there is not; ConfigError when run.toml names parts of users that
    are not plugged in.
    """
    document = run.document()
    if document["run"].get("driver") == "closed-loop":
        raise InputError(
            f"run {run.name!r} is a closed loop: its arrivals followed its answers, so no part of it is simulated again"
        )
    cluster = document["run"].get("cluster")
    _check_replica(run, cluster, replica)
    assert run.folder is not None
    config = ReplicaConfig.from_file(run.folder / "run.toml")
    opened = trace_of(run, trace)
    rows = None if cluster is None else _rows_of(run, replica or 0)
    return Recorded(run, config, opened, document["run"].get("stop_at_s"), replica if cluster else None, rows)


def trace_of(run: NamedRun, trace: Trace | None = None) -> Trace:
    """The trace that a run replayed, cut and scaled as it was, whatever kind of run. ``trace`` where run.toml does not
    say enough. Raises InputError when it cannot be found or is not the recorded one.
    """
    about = run.document()["trace"]
    opened = trace if trace is not None else _open(about, run)
    _check(opened.info, about, run)
    return opened


def as_replayed(run: NamedRun, trace: Trace) -> Trace:
    """A trace cut and scaled as the run's was; what was done to it already, in the same order, is not done again.

    Raises InputError for a transform that is not known.
    """
    words, done = run.document()["trace"].get("transforms") or "", trace.transforms or ""
    if f"{words}, ".startswith(f"{done}, "):
        words = words.removeprefix(done).removeprefix(", ")
    return _transformed(trace, words)


def check_replica(run: NamedRun, count: int | None, replica: int | None) -> None:
    """Raise InputError for a replica that a run does not have. ``count``: how many there are; None: no cluster."""
    if count is None and replica not in (None, 0):
        raise InputError(f"replica {replica}: run {run.name!r} has one replica, number 0")
    if count is not None and (replica is None or not 0 <= replica < count):
        raise InputError(f"run {run.name!r} has {count} replicas: name one, from 0 on (given: {replica})")


def _check_replica(run: NamedRun, cluster: dict[str, Any] | None, replica: int | None) -> None:
    if cluster is not None and "kv_transfer" in run.summary.get("cluster", {}):
        raise InputError(
            f"run {run.name!r} splits prefill from decode: what one replica does depends on the others, and it cannot "
            "be run again alone"
        )
    check_replica(run, None if cluster is None else cluster["replicas"], replica)


def _rows_of(run: NamedRun, replica: int) -> NDArray[np.int64]:
    """The requests that the router gave to a replica: it serves them as it would alone."""
    table = run.requests
    assert table is not None
    rows = np.asarray(table["row"].to_numpy(), np.int64)
    found: NDArray[np.int64] = rows[np.asarray(table["replica"].to_numpy()) == replica]
    return found


def _open(about: dict[str, Any], run: NamedRun) -> Trace:
    built_in = _BUILT_IN.fullmatch(about["source"])
    parts = (about.get("transforms") or "").split(", ")
    rows = None if any(part.startswith(_THINNING) for part in parts) else about["rows"]
    path = Path(about["source"])
    if built_in is not None:
        trace = open_trace(built_in["name"], seed=int(built_in["seed"]), rows=rows)
    elif not path.exists():
        assert run.folder is not None
        raise InputError(f"{run.folder / 'run.toml'}: the trace {path} is not there: name it where it is (--trace)")
    elif path.suffix == ".toml":
        trace = open_trace(path, rows=rows)
    else:
        if path.is_file():
            # Before it is parsed: it may be another file of that name, large, and errors quote its rows.
            done = [part for part in parts if part.startswith(_CHANGING)]
            _same("sha256", changed_sha256(SourceFile(path).sha256(), *done), str(path), about, run)
        trace = _opened(path, about["unit"])
    return _transformed(trace, about.get("transforms") or "")


def _opened(path: Path, unit: str) -> Trace:
    """A file that says its unit itself is refused with a stated one, and one that does not is refused without."""
    try:
        return open_trace(path)
    except InputError as error:
        try:
            return open_trace(path, unit=unit)
        except InputError:
            raise error from None  # of another option than the unit, then


def _transformed(trace: Trace, words: str) -> Trace:
    """Do to the trace what the words of ``Selection.words`` say."""
    for part in filter(None, words.split(", ")):
        for name, pattern in _TRANSFORMS:
            found = pattern.fullmatch(part)
            if found is not None:
                trace = _apply(trace, name, found)
                break
        else:
            raise InputError(f"transform {part!r} of the trace is not known here: give the trace as it was replayed")
    return trace


def _apply(trace: Trace, name: str, found: re.Match[str]) -> Trace:
    if name == "turns":
        return trace.whole_prompts()
    if name == "think":
        return trace.with_think(found[1], int(found[2] or 0))
    if name == "window":
        return trace.window(float(found[1]), float(found[2]) if found[2] else None)
    if name == "limit":
        return trace.limit(int(found[1]))
    if name == "replicas":
        return trace.replicas(int(found[2]), int(found[1]))
    if name == "sample":
        return trace.sample(float(found[1]), int(found[2]))
    factor = float(found[1])
    if name == "rate":
        return trace.at_rate(factor)
    if name == "idle_cap":
        return trace.idle_cap(factor)
    return trace.speedup(factor) if name == "speedup" else trace.time_stretch(factor)


def _check(info: TraceInfo, about: dict[str, Any], run: NamedRun) -> None:
    for name in ("sha256", "rows", "span_ns"):
        _same(name, getattr(info, name), info.source, about, run)


def _same(name: str, found: object, source: str, about: dict[str, Any], run: NamedRun) -> None:
    if found != about[name]:
        raise InputError(
            f"the trace {source} has {name} = {found}, run {run.name!r} was made with {about[name]}: give the trace as "
            "it was replayed"
        )

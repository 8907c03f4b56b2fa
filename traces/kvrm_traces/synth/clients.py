"""Clients of a service, each with its own rate, burstiness and lengths over the day: ServeGen's files.

A folder holds two files a client: ``chunk-N-trace.csv`` (headerless: second, requests/s, CV, pattern, two arguments; a
row every ten minutes) and ``chunk-N-dataset.json`` (distributions of lengths over stretches of the day, written as text
of a Python dictionary). In a row's window a client's requests are a stationary renewal process with gamma gaps of that
rate and CV, whatever the pattern; lengths are drawn from the distributions of the stretch, text and other input added
up. Clients are independent.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.measure import Clock
from kvrm_traces.numbers import LARGEST
from kvrm_traces.schema import REQUIRED, TraceInfo, pace, schema_of
from kvrm_traces.stream import random_stream
from kvrm_traces.synth.client_files import ClientFiles
from kvrm_traces.trace import Trace

#: Inputs beside text; each adds its own draw.
_INPUTS = ("text_tokens", "image_tokens", "audio_tokens", "video_tokens")
_OUTPUT = "output_tokens"
_MOST_RATE = 1e6

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A distribution over whole numbers."""

    values: Ints
    upto: npt.NDArray[np.float64]

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:
        """So many independent draws."""
        at = np.searchsorted(self.upto, rng.random(rows) * self.upto[-1], side="right")
        drawn: Ints = self.values[np.minimum(at, self.values.size - 1)]
        return drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Client:
    """``windows``: (start s, requests/s, CV), ascending; ``stretches``: (start s, inputs, output), ascending."""

    number: int
    windows: tuple[tuple[float, float, float], ...]
    stretches: tuple[tuple[float, tuple[Table, ...], Table], ...]


def open_clients(files: ClientFiles, *, rows: int | None = None, seed: int = 0) -> Trace:
    """The clients' requests over all their windows, or the first `rows`. Raises TraceError for a file that is wrong."""
    folder = files.folder
    clients, sha256 = _read(files)
    store = ClientStore(folder, clients, seed)
    clock = Clock()
    for batch in store.batches(0, store.rows, ("arrival_ns",), 1 << 16):
        clock.see(int64_values(batch.column(0)))
    info = TraceInfo(
        name=folder.name,
        source=str(folder),
        format="clients",
        unit="ns",
        rows=clock.rows,
        span_ns=clock.span_ns,
        sha256=hashlib.sha256(f"clients 1 {sha256} {seed}".encode()).hexdigest(),
        resolution_ns=clock.resolution_ns,
        ties=clock.ties,
        notes=(
            f"{folder.name}: {len(clients)} clients, generated with seed {seed}"
            + (f"; {store.without} of them never ask" if store.without else ""),
            pace(clock.rows, clock.span_ns),
        ),
    )
    trace = Trace(store, info)
    return trace if rows is None else trace.limit(rows)


class ClientStore:
    """The clients' requests, generated again on every reading, a window at a time: memory is a window's requests."""

    def __init__(self, folder: Path, clients: Sequence[Client], seed: int) -> None:
        self._clients = clients
        self._seed = seed
        edges = sorted({start for client in clients for start, _, _ in client.windows})
        if len(edges) < 2:
            raise TraceError(f"{folder}: its clients have {len(edges)} windows; expected two or more, from second 0 on")
        # The last window is as long as the one before it.
        self._edges = [*edges, 2 * edges[-1] - edges[-2]]
        self.without = sum(all(rate == 0 for _, rate, _ in client.windows) for client in clients)
        counts = [arrival_ns.size for arrival_ns, _ in self._windows(lengths=False)]
        self.rows = sum(counts)
        if self.rows == 0:
            raise TraceError(f"{folder}: its clients ask for nothing; expected a rate above 0 somewhere")
        self._first_ns = next(int(arrival_ns[0]) for arrival_ns, _ in self._windows(lengths=False) if arrival_ns.size)

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """See :class:`kvrm_traces.store.Store`. Windows before `start` are generated too: a stream has no index."""
        schema = schema_of(REQUIRED)
        selected = pa.schema([schema.field(name) for name in columns])
        at = 0
        for arrival_ns, lengths in self._windows(lengths=any(name != "arrival_ns" for name in columns)):
            first, last = max(0, start - at), min(arrival_ns.size, stop - at)
            at += arrival_ns.size
            drawn = {"arrival_ns": arrival_ns - self._first_ns, **lengths}
            for begin in range(first, last, rows):
                part = slice(begin, min(last, begin + rows))
                yield pa.RecordBatch.from_arrays([int64_column(drawn[name][part]) for name in columns], schema=selected)
            if at >= stop:
                return

    def _windows(self, *, lengths: bool) -> Iterator[tuple[Ints, dict[str, Ints]]]:
        """(arrivals, lengths by column) of each window, sorted. Times and lengths have random streams of their own."""
        streams = [[random_stream(self._seed, client.number, of) for of in range(2)] for client in self._clients]
        for begin_s, end_s in zip(self._edges[:-1], self._edges[1:], strict=True):
            parts: list[tuple[Ints, Ints, Ints]] = []
            for client, (times, sizes) in zip(self._clients, streams, strict=True):
                arrival_ns = _arrivals(client, begin_s, end_s, times)
                if arrival_ns.size:
                    none = np.empty(0, np.int64)
                    parts.append(
                        (arrival_ns, *(_lengths(client, begin_s, arrival_ns.size, sizes) if lengths else (none, none)))
                    )
            if not parts:
                continue
            arrival_ns, prompt, output = (np.concatenate([part[at] for part in parts]) for at in range(3))
            order = np.argsort(arrival_ns, kind="stable")
            found = {"prompt_tokens": prompt[order], "output_tokens": output[order]} if lengths else {}
            yield arrival_ns[order], found


def _arrivals(client: Client, begin_s: float, end_s: float, rng: np.random.Generator) -> Ints:
    """Of a window: gamma gaps of the row's rate and CV.

    The window begins at a uniform place of a gap. Long gaps are the likelier ones to be met: one more in its shape.
    """
    current = [row for row in client.windows if row[0] <= begin_s]
    if not current or current[-1][1] == 0:
        return np.empty(0, np.int64)
    _, rate, cv = current[-1]
    span_s, shape = end_s - begin_s, 1.0 / max(cv, 1e-3) ** 2
    expected = rate * span_s
    gaps = rng.standard_gamma(shape, max(8, math.ceil(expected + 6 * cv * math.sqrt(expected) + 8))) / (shape * rate)
    gaps[0] = rng.standard_gamma(shape + 1) / (shape * rate) * rng.random()
    times_s = np.cumsum(gaps)
    while times_s[-1] < span_s:
        times_s = np.concatenate(
            (times_s, times_s[-1] + np.cumsum(rng.standard_gamma(shape, gaps.size) / (shape * rate)))
        )
    inside: Ints = np.rint((begin_s + times_s[times_s < span_s]) * 1e9).astype(np.int64)
    return inside


def _lengths(client: Client, begin_s: float, rows: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    _, inputs, output = [stretch for stretch in client.stretches if stretch[0] <= begin_s][-1]
    prompt = sum((table.draw(rng, rows) for table in inputs), np.zeros(rows, np.int64))
    return np.maximum(prompt, 1), np.maximum(output.draw(rng, rows), 1)


def _read(files: ClientFiles) -> tuple[list[Client], str]:
    """The clients by their numbers, and a hash of all their bytes."""
    digest = hashlib.sha256()
    clients = []
    for number in files.numbers:
        windows, stretches = f"chunk-{number}-trace.csv", f"chunk-{number}-dataset.json"
        data = [files.read(name) for name in (windows, stretches)]
        for one in data:
            digest.update(hashlib.sha256(one).digest())
        clients.append(
            Client(
                number=number,
                windows=_windows(files.folder / windows, data[0]),
                stretches=_stretches(files.folder / stretches, data[1]),
            )
        )
    return clients, digest.hexdigest()


def _windows(path: Path, data: bytes) -> tuple[tuple[float, float, float], ...]:
    rows: list[tuple[float, float, float]] = []
    try:
        lines = list(csv.reader(data.decode("utf-8").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: not readable as CSV ({error})") from error
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            start_s, rate, cv = (float(value) for value in line[:3])
        except ValueError:
            start_s = rate = cv = math.nan
        if not (
            0 <= start_s < 1e9 and 0 <= rate <= _MOST_RATE and 0 <= cv <= 1e4 and (not rows or start_s > rows[-1][0])
        ):
            shown = ",".join(line)[:60]
            raise TraceError(
                f"{path}: row {number}: {shown!r}: expected second,rate,cv with seconds that ascend from 0 on"
            )
        rows.append((start_s, rate, cv if cv > 0 else 1.0))
    return tuple(rows)


def _stretches(path: Path, data: bytes) -> tuple[tuple[float, tuple[Table, ...], Table], ...]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is not JSON ({error})") from error
    if not isinstance(document, Mapping) or not document:
        raise TraceError(f"{path}: expected an object of stretches by their first second")
    found = []
    for key, fields in document.items():
        try:
            start_s = float(key)
        except ValueError:
            start_s = math.nan
        if not start_s >= 0 or not isinstance(fields, Mapping):
            raise TraceError(
                f"{path}: {str(key)[:40]!r}: expected a second, 0 or more, and the distributions from it on"
            )
        inputs = tuple(_table(path, key, name, fields[name]) for name in _INPUTS if name in fields)
        if not inputs or _OUTPUT not in fields:
            raise TraceError(
                f"{path}: {key}: has {', '.join(map(str, fields))[:80]}; expected text_tokens and {_OUTPUT}"
            )
        found.append((start_s, inputs, _table(path, key, _OUTPUT, fields[_OUTPUT])))
    found.sort(key=lambda stretch: stretch[0])
    if found[0][0] != 0:
        raise TraceError(f"{path}: begins at second {found[0][0]:g}; expected distributions from second 0 on")
    return tuple(found)


def _table(path: Path, key: str, name: str, text: Any) -> Table:
    """A distribution written as text of a dictionary {value: probability}: a literal is read, nothing is evaluated."""
    try:
        table = ast.literal_eval(text) if isinstance(text, str) else text
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise TraceError(f"{path}: {key}: {name}: is no dictionary of counts ({type(error).__name__})") from error
    if not isinstance(table, Mapping) or not table:
        raise TraceError(f"{path}: {key}: {name}: expected {{tokens: probability}}, not empty")
    pairs = []
    for value, share in table.items():
        try:
            tokens, weight = int(value), float(share)
        except (TypeError, ValueError, OverflowError):
            tokens, weight = -1, math.nan
        if not (0 <= tokens <= LARGEST and 0 <= weight <= 1e12):
            raise TraceError(
                f"{path}: {key}: {name}: {value!r}: {share!r}: expected tokens from 0 on and a probability"
            )
        pairs.append((tokens, weight))
    upto = np.cumsum([weight for _, weight in pairs])
    if not upto[-1] > 0:
        raise TraceError(f"{path}: {key}: {name}: its probabilities add up to {upto[-1]:g}")
    return Table(values=np.array([tokens for tokens, _ in pairs], np.int64), upto=upto)

"""Writing the trace event format: a JSON object of events, gzipped, that Perfetto and chrome://tracing open.

Times there are microseconds; ours are nanoseconds, written as decimals and so without loss. Events are written as they
come: nothing is kept. Every name goes through JSON, which escapes it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvrm_analysis.ours import TIMELINE_HEAD

#: Fast: a level of 6 takes three times as long for a file a third smaller.
COMPRESSION = 3
#: Text is compressed in pieces of about so many characters.
PIECE_CHARACTERS = 1 << 20


def microseconds(times_ns: NDArray[np.int64]) -> list[str]:
    """Times or durations in ns as decimals in us.

    A reader that multiplies by 1,000 and cuts what is behind the point would lose a nanosecond of some: those have a
    fourth decimal, a tenth of a nanosecond more.
    """
    lossy = ((times_ns / 1000.0) * 1000.0).astype(np.int64) != times_ns
    whole, rest = (part.tolist() for part in np.divmod(times_ns, 1000))
    return [
        f"{head}.{tail:03d}1" if lost else f"{head}.{tail:03d}"
        for head, tail, lost in zip(whole, rest, lossy.tolist(), strict=True)
    ]


def microsecond(time_ns: int) -> str:
    """One of them: an array of one takes ten times as long."""
    whole, rest = divmod(time_ns, 1000)
    return f"{whole}.{rest:03d}1" if int((time_ns / 1000.0) * 1000.0) != time_ns else f"{whole}.{rest:03d}"


class EventWriter:
    """A file of events; ``about`` is said in it. A context manager: the file is whole when it has been left."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self._about = about
        self._pieces: list[str] = []
        self._characters = 0
        self._first = True
        #: How many events have been written.
        self.events = 0

    def __enter__(self) -> Self:
        # No name and no time in the header: the same events are the same bytes.
        self._raw = self._path.open("wb")
        self._file = gzip.GzipFile(filename="", fileobj=self._raw, mode="wb", compresslevel=COMPRESSION, mtime=0)
        self._file.write(TIMELINE_HEAD)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
            self._file.write(f'\n],"otherData":{json.dumps(dict(self._about))}}}\n'.encode())
        self._file.close()
        self._raw.close()

    def lines(self, events: Iterable[str]) -> None:
        """Events that are JSON already, one each."""
        for event in events:
            self._pieces.append(event)
            self._characters += len(event)
            self.events += 1
            if self._characters > PIECE_CHARACTERS:
                self._flush()

    def process(self, pid: int, name: str, threads: Mapping[int, str] | None = None) -> None:
        """Names of a process and its threads, and their order: as given."""
        named: list[dict[str, Any]] = [
            {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}},
            {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}},
        ]
        for tid, title in (threads or {}).items():
            named.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": title}})
            named.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}})
        self.lines(json.dumps(event, separators=(",", ":")) for event in named)

    def counter(self, pid: int, name: str, times_ns: NDArray[np.int64], values: NDArray[Any]) -> None:
        """A counter's values from each time on; a value that stays is written once."""
        changed = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
        head = f'{{"ph":"C","pid":{pid},"name":{json.dumps(name)},"ts":'
        self.lines(
            f'{head}{time},"args":{{"value":{value}}}}}'
            for time, value in zip(microseconds(times_ns[changed]), values[changed].tolist(), strict=True)
        )

    def _flush(self) -> None:
        if self._pieces:
            text = ",\n".join(self._pieces)
            self._file.write((text if self._first else ",\n" + text).encode())
            self._first = False
        self._pieces, self._characters = [], 0

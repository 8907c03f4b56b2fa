"""Opening a trace, by the name of a built-in one or by its path."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kvrm_traces.archive import is_archive
from kvrm_traces.cleaning import MissingTimestamp, Rules
from kvrm_traces.datasets import datasets, fetched_path
from kvrm_traces.errors import TraceError
from kvrm_traces.readers.agents import FORMAT
from kvrm_traces.readers.canonical import open_canonical
from kvrm_traces.reading import Stated, read_file
from kvrm_traces.run_folder import is_run, read_run
from kvrm_traces.selection import checked_count
from kvrm_traces.sessions_file import read_sessions
from kvrm_traces.source import SourceFile
from kvrm_traces.stream import Stream
from kvrm_traces.synth.arrivals import parse_arrivals
from kvrm_traces.synth.builtin import BUILTINS, open_builtin, open_generator
from kvrm_traces.synth.client_files import client_files
from kvrm_traces.synth.clients import open_clients
from kvrm_traces.trace import Trace
from kvrm_traces.turns import TURNS, Turns


def open_trace(
    source: str | Path,
    *,
    format: str | None = None,
    unit: str | None = None,
    columns: Mapping[str, str] | None = None,
    strict: bool = False,
    missing_timestamp: MissingTimestamp = "refuse",
    seed: int = 0,
    rows: int | None = None,
    arrivals: str | None = None,
    hash_block_tokens: int | None = None,
    hash_tolerance_blocks: int = 0,
    turns: Turns | None = None,
) -> Trace:
    """Open a trace for replay.

    `source` is the name of a built-in trace (a key of BUILTINS), the name of a public data set that was fetched
    (:mod:`kvrm_traces.datasets`), the folder of a run (its requests), a generator in a TOML file, a folder of clients,
    also in an archive (``ARCHIVE/FOLDER``), or the path of a file: CSV, JSONL or Parquet, plain, gzip or zstd, or an
    archive of sessions. What was detected is in ``info.notes``. Our own Parquet opens by its
    metadata; any other file is read once.

    `format`: a key of ``readers.registry.FORMATS``; None detects it. `unit`: 's', 'ms', 'us', 'ns' or 'datetime',
    where the format does not say. `columns`: our names to the file's, e.g. ``{"arrival": "when"}``. `strict`: refuse
    instead of rejecting rows. `missing_timestamp`: 'refuse', or 'zero' to read a missing arrival as 0. `arrivals`:
    the process of a file without arrivals, 'poisson:RATE' or 'gamma:RATE:CV', drawn with `seed`. `rows`: length of a
    built-in trace. `hash_block_tokens`, `hash_tolerance_blocks`: block size of prefix hashes, and by how many blocks
    their number may differ from what the prompt implies. `turns`: what prompts of conversations are, where the format
    does not say: 'cumulative' (None), all that was said so far, or 'delta', what a turn adds; then they are put
    together (:meth:`Trace.whole_prompts`).

    Raises :class:`TraceError`, with the file, the row, the value and what would be right.
    """
    _one_of("missing_timestamp", missing_timestamp, ("refuse", "zero"))
    _one_of("turns", turns, (None, *TURNS))
    reading: dict[str, object] = {"format": format, "unit": unit, "columns": columns, "arrivals": arrivals}
    reading |= {"hash_block_tokens": hash_block_tokens, "hash_tolerance_blocks": hash_tolerance_blocks, "turns": turns}
    if str(source) in BUILTINS:
        _nothing_of(reading, f"{source}: is a built-in trace")
        return open_builtin(str(source), rows=rows, seed=seed)
    if Path(source).suffix == ".toml":
        _nothing_of(reading, f"{source}: is a generator")
        return open_generator(Path(source), rows=rows, seed=seed)
    if is_run(Path(source)):
        _nothing_of({**reading, "rows": rows}, f"{source}: is the folder of a run")
        return read_run(Path(source))
    if (clients := client_files(source)) is not None:
        _nothing_of(reading, f"{source}: is a folder of clients")
        return open_clients(clients, rows=rows, seed=seed)
    file = _file(source)
    if not file.is_parquet and is_archive(file):
        reading |= {"format": None if format == FORMAT else format, "arrivals": None}
        _nothing_of({**reading, "rows": rows}, f"{source}: is an archive of sessions")
        return read_sessions(file, _stated_arrivals(arrivals, seed), strict=strict)
    if rows is not None:
        raise TraceError(f"{source}: rows is the length of a built-in trace; use limit for a file")
    stated = Stated(
        format=format, unit=unit, columns=columns, hash_block_tokens=hash_block_tokens, strict=strict, turns=turns
    )
    if file.is_parquet and format in (None, "parquet") and not columns:
        if (trace := _converted(file, reading)) is not None:
            return trace
    rules = Rules(
        missing_timestamp=missing_timestamp,
        arrivals=_stated_arrivals(arrivals, seed),
        hash_tolerance_blocks=checked_count("hash_tolerance_blocks", hash_tolerance_blocks, 0),
    )
    return read_file(file, stated, rules)


def _one_of(name: str, value: str | None, words: tuple[str | None, ...]) -> None:
    if value not in words:
        raise TraceError(f"{name} {value!r}: must be {' or '.join(filter(None, words))}")


def _converted(file: SourceFile, reading: Mapping[str, object]) -> Trace | None:
    """The trace that `convert` wrote; None when the file was written by others."""
    trace = open_canonical(file)
    if trace is None:
        if reading["format"] == "parquet":
            raise TraceError(f"{file.path}: is Parquet that convert did not write; leave out the format")
        return None
    # It may not have been known when it was converted that its turns are deltas.
    delta = reading["turns"] == "delta"
    said = {**reading, "format": None, "turns": None if delta else reading["turns"]}
    _nothing_of(said, f"{file.path}: is a converted trace")
    return trace.whole_prompts() if delta else trace


def _nothing_of(reading: Mapping[str, object], what: str) -> None:
    """An option that would be ignored is refused instead."""
    for name, value in reading.items():
        if value:
            raise TraceError(f"{what}, so {name} {value!r} says nothing; leave it out")


def _file(source: str | Path) -> SourceFile:
    path = Path(source)
    if not path.exists() and str(source) in datasets():
        path = fetched_path(str(source), str(source))
    if not path.exists() and path.parent == Path():
        near = difflib.get_close_matches(str(source), BUILTINS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built-in are {', '.join(BUILTINS)}"
        raise TraceError(f"{source}: no such file, and no built-in trace of this name; {hint}")
    return SourceFile(path)


def _stated_arrivals(text: str | None, seed: int) -> Stream | None:
    if text is None:
        return None
    checked_count("seed", seed, 0)
    return Stream(parse_arrivals(text).blocks(np.random.default_rng(seed)))

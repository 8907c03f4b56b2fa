"""Opening an archive of sessions: read, spooled in order of arrival, and told."""

from __future__ import annotations

from kvrm_traces.errors import TraceError
from kvrm_traces.readers.agents import COLUMNS, FORMAT, AgentSessions
from kvrm_traces.rejects import Rejects
from kvrm_traces.schema import TraceInfo, pace, schema_of
from kvrm_traces.source import SourceFile
from kvrm_traces.spool import spooled
from kvrm_traces.stream import Stream
from kvrm_traces.trace import Trace

_SHOWN = 3


def read_sessions(source: SourceFile, starts: Stream | None, *, strict: bool) -> Trace:
    """The sessions of an archive as a trace; `starts`: when they begin, in the order of the archive.

    Raises TraceError without them, for an archive that cannot be read, and for one without a usable request.
    """
    if starts is None:
        raise TraceError(
            f"{source.path}: says when requests are within their session, not when sessions begin; state a process of "
            "their arrivals, e.g. arrivals poisson:0.05 (sessions/s). Of an archive of clients (ServeGen's), name a "
            f"folder in it: {source.path}/FOLDER"
        )
    rejects = Rejects(source.path, strict=strict)
    sessions = AgentSessions(source, starts, rejects)
    store, clock = spooled(sessions.batches(), schema_of(COLUMNS))
    if clock.rows == 0:
        found = rejects.words() if rejects.total else "no session in it"
        raise TraceError("; ".join([f"{source.path}: holds no usable request: {found}", *rejects.examples[:1]]))
    notes = [
        f"{source.path.name}: format {FORMAT} (sessions of coding agents, read as a stream)",
        f"{sessions.sessions} sessions, {sessions.subagents} sub-agents nested in them; {sessions.copies} files repeat "
        "the requests of another and were left out",
        "arrivals: sessions begin by the stated process, requests at the file's seconds behind it",
        pace(clock.rows, clock.span_ns),
        f"prefix hashes: blocks of {sessions.block_tokens} tokens, {sessions.unique_ids} different; the part-filled "
        "block at the end of a prompt has none",
    ]
    if rejects.total:
        notes += [rejects.words(), *rejects.examples[:_SHOWN]]
    info = TraceInfo(
        name=source.stem.removesuffix(".tar"),
        source=str(source.path),
        format=FORMAT,
        unit="s",
        rows=clock.rows,
        span_ns=clock.span_ns,
        sha256=source.sha256(),
        hash_block_tokens=sessions.block_tokens,
        resolution_ns=clock.resolution_ns,
        rejected=dict(sorted(rejects.counts.items())),
        rejected_examples=tuple(rejects.examples),
        ties=clock.ties,
        notes=tuple(notes),
        columns=tuple(schema_of(COLUMNS).names),
        turns="cumulative",
    )
    return Trace(store, info)

"""Reading a file that is not a converted trace: detected, cleaned, spooled, and told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from kvrm_traces.cleaning import Cleaner, Rules
from kvrm_traces.errors import TraceError
from kvrm_traces.measure import Clock
from kvrm_traces.readers.canonical import first_record, read_parquet
from kvrm_traces.readers.csvfile import read_csv
from kvrm_traces.readers.generic import generic_layout
from kvrm_traces.readers.jsonlfile import read_jsonl
from kvrm_traces.readers.layout import NS, Layout, Unit
from kvrm_traces.readers.piece import Piece
from kvrm_traces.readers.registry import detect
from kvrm_traces.rejects import Rejects
from kvrm_traces.schema import TraceInfo, pace, requests
from kvrm_traces.source import SourceFile
from kvrm_traces.spool import spooled
from kvrm_traces.trace import Trace
from kvrm_traces.turns import Turns, check_delta

#: Rejected rows that the echo quotes; TraceInfo has more.
_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stated:
    """What the caller states about a file; None: what the format says."""

    format: str | None = None
    unit: str | None = None
    columns: Mapping[str, str] | None = None
    hash_block_tokens: int | None = None
    strict: bool = False
    turns: Turns | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """How a file is going to be read."""

    format: str
    container: str
    layout: Layout
    pieces: Iterator[Piece]


def read_file(source: SourceFile, stated: Stated, rules: Rules) -> Trace:
    """The trace in a CSV, JSONL or foreign Parquet file, read once and spooled."""
    plan = _plan(source, stated, rules)
    rejects = Rejects(source.path, strict=stated.strict)
    cleaner = Cleaner(source.path, plan.layout, rejects, rules)
    store, clock = spooled((cleaner.clean(piece) for piece in plan.pieces), cleaner.schema)
    if clock.rows == 0:
        found = rejects.words() if rejects.total else "a header but no rows"
        raise TraceError("; ".join([f"{source.path}: holds no usable request: {found}", *rejects.examples[:1]]))
    if cleaner.stamps_missing == clock.rows:
        raise TraceError(f"{source.path}: no row has an arrival; state a process, e.g. arrivals poisson:2.5")
    info = TraceInfo(
        name=source.stem,
        source=str(source.path),
        format=plan.format,
        unit=plan.layout.unit if plan.layout.unit and rules.arrivals is None else "stated process",
        rows=clock.rows,
        span_ns=clock.span_ns,
        sha256=source.sha256(),
        hash_block_tokens=plan.layout.hash_block_tokens if "prefix_hashes" in cleaner.schema.names else None,
        resolution_ns=clock.resolution_ns,
        rejected=dict(sorted(rejects.counts.items())),
        rejected_examples=tuple(rejects.examples),
        ties=clock.ties,
        descents=clock.order.descents,
        most_back_ns=clock.order.most_back_ns,
        streams=len(clock.order.restarts(clock.rows, clock.span_ns)) + 1,
        notes=tuple(_notes(source, plan, rules, cleaner, clock, rejects)),
        columns=tuple(cleaner.schema.names),
        turns=None if plan.layout.turns == "delta" else plan.layout.turns,
    )
    trace = Trace(store, info)
    return trace.whole_prompts() if plan.layout.turns == "delta" else trace


def _plan(source: SourceFile, stated: Stated, rules: Rules) -> _Plan:
    if source.is_parquet:
        layout = generic_layout(source.path, first_record(source), stated.columns)
        layout = _settled(source, layout, stated, rules)
        return _Plan(format="generic", container="parquet", layout=layout, pieces=read_parquet(source, layout.fields))
    format, container, layout, delimiter = detect(source, format=stated.format, columns=stated.columns)
    layout = _settled(source, layout, stated, rules)
    pieces = read_csv(source, layout.fields, delimiter) if container == "csv" else read_jsonl(source, layout.fields)
    return _Plan(format=format, container=container, layout=layout, pieces=pieces)


def _settled(source: SourceFile, layout: Layout, stated: Stated, rules: Rules) -> Layout:
    """The layout with what the caller stated; nothing in it is ambiguous any more."""
    if "arrival" not in layout.fields:
        if stated.unit is not None:
            raise TraceError(f"{source.path}: has no column of arrivals, so unit {stated.unit!r} says nothing")
        if rules.arrivals is None:
            raise TraceError(
                f"{source.path}: has no column of arrivals; map one (arrival=...) or state a process, "
                "e.g. arrivals poisson:2.5"
            )
    else:
        layout = dataclasses.replace(layout, unit=_unit(source, layout, stated.unit))
    if stated.hash_block_tokens is not None and stated.hash_block_tokens < 1:
        raise TraceError(f"hash_block_tokens {stated.hash_block_tokens}: must be 1 or more")
    block_tokens = stated.hash_block_tokens or layout.hash_block_tokens
    if "prefix_hashes" in layout.fields and block_tokens is None:
        raise TraceError(
            f"{source.path}: how many tokens has a block of column {layout.fields['prefix_hashes']!r}? "
            "State hash_block_tokens, e.g. 512"
        )
    turns = _turns(source, layout, stated.turns)
    return dataclasses.replace(layout, hash_block_tokens=block_tokens, turns=turns)


def _turns(source: SourceFile, layout: Layout, stated: Turns | None) -> Turns | None:
    if stated is None:
        return layout.turns
    if stated == "delta":
        check_delta(str(source.path), tuple(layout.fields), layout.turns)
    elif "session_id" not in layout.fields:
        raise TraceError(f"{source.path}: has no column session_id, so turns {stated!r} says nothing; leave it out")
    return stated


def _unit(source: SourceFile, layout: Layout, stated: str | None) -> Unit:
    column = layout.fields["arrival"]
    if stated is not None and stated not in (*NS, "datetime"):
        raise TraceError(f"unit {stated!r}: must be one of {', '.join((*NS, 'datetime'))}")
    if stated is None and layout.unit is None:
        raise TraceError(
            f"{source.path}: the unit of column {column!r} is ambiguous; state unit s, ms, us or ns (or datetime): "
            "the rate depends on it a thousandfold"
        )
    if stated is not None and layout.unit is not None and (stated == "datetime") != (layout.unit == "datetime"):
        raise TraceError(f"{source.path}: column {column!r} is in {layout.unit}, not in {stated}; leave out the unit")
    return stated or layout.unit  # type: ignore[return-value]  # one of Unit, as checked


def _notes(
    source: SourceFile, plan: _Plan, rules: Rules, cleaner: Cleaner, clock: Clock, rejects: Rejects
) -> Iterator[str]:
    """What is echoed before a run: what was detected, the clock, the order, what was left out."""
    packed = f", {source.compression}" if source.compression else ""
    yield f"{source.path.name}: format {plan.format} ({plan.container}{packed})"
    if plan.layout.unit is not None and rules.arrivals is None:
        words = "dates, UTC where no zone is given" if plan.layout.unit == "datetime" else f"in {plan.layout.unit}"
        yield f"arrivals: column {plan.layout.fields['arrival']!r}, {words}"
    else:
        yield "arrivals: drawn from the stated process; the file states none"
    yield pace(clock.rows, clock.span_ns)
    yield from plan.layout.notes
    if "session_id" in plan.layout.fields and plan.layout.turns is None:
        yield "turns: each prompt is read as the whole conversation so far; where they are not, state turns delta"
    if clock.ties:
        arrive = "request arrives" if clock.ties == 1 else "requests arrive"
        yield f"{clock.ties} {arrive} with the one before; they keep the order of the file{_steps(clock)}"
    if clock.descents:
        were = "was" if clock.descents == 1 else "were"
        yield (f"{requests(clock.descents)} {were} earlier than the one before: sorted, ties in the order of the file")
        yield from _streams(clock)
    if cleaner.stamps_missing:
        yield f"{cleaner.stamps_missing} missing arrivals were read as 0, as stated"
    if "prefix_hashes" in cleaner.schema.names:
        yield f"prefix hashes: blocks of {plan.layout.hash_block_tokens} tokens, {cleaner.hashes.unique} different"
    if cleaner.hashes_tolerated:
        yield f"{cleaner.hashes_tolerated} rows have ids for another number of blocks than their prompt: tolerated"
    if rejects.total:
        yield rejects.words()
        yield from rejects.examples[:_SHOWN]


def _streams(clock: Clock) -> Iterator[str]:
    """That the file is several streams end to end, and where each begins."""
    restarts = clock.order.restarts(clock.rows, clock.span_ns)
    if not restarts:
        yield f"out of order by up to {clock.order.most_back_ns / 1e9:.6g} s within one stream"
        return
    where = "; ".join(
        f"at request {one.row} the clock goes back from {(one.from_ns - clock.least_ns) / 1e9:.6g} s to "
        f"{(one.to_ns - clock.least_ns) / 1e9:.6g} s"
        for one in restarts[:_SHOWN]
    )
    more = f"; and {len(restarts) - _SHOWN} more" if len(restarts) > _SHOWN else ""
    yield f"the file is {len(restarts) + 1} streams, one after another: {where}{more}"


def _steps(clock: Clock) -> str:
    """How coarse the clock is: what it ticks in, and how far apart its different readings are."""
    if clock.resolution_ns is None:
        return ""
    step_s = clock.span_ns / 1e9 / (clock.rows - clock.ties - 1)
    return (
        f" (the clock ticks in {clock.resolution_ns / 1e9:g} s; different arrivals are {step_s:.3g} s apart on average)"
    )

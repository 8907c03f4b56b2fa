"""Where a report's page of a trace has its numbers from: the trace itself, opened again, or what a run recorded of it.

A run records when each request arrived and how long it was: no prefix hashes, no sessions, and nothing of rows that
were rejected or out of order. So the trace is opened where run.toml says that it was, if it is still the same; where it
cannot be, the page is of the run's own requests, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from kvrm_analysis.reading import columns
from kvrm_analysis.recorded import as_replayed, trace_of
from kvrm_analysis.report.subject import Subject
from kvrm_analysis.runs import NamedRun
from kvrm_sim.errors import InputError
from kvrm_traces import Trace, TraceReport, inspect_trace
from kvrm_traces.run_folder import requests_trace
from kvrm_traces.schema import REQUIRED
from kvrm_traces.source import SourceFile

#: Of a trace that nobody named, so that a report takes seconds: bytes of a file, of a compressed one, requests of a
#: generator, and blocks of prompts that have hashes.
MOST_BYTES, MOST_COMPRESSED_BYTES, MOST_GENERATED, MOST_BLOCKS = 1 << 26, 1 << 23, 5_000_000, 8_000_000
#: Touches of prefix blocks that the curves of reuse are drawn from: about four seconds.
MOST_TOUCHES = 1 << 19

MEGABYTE = 1e6


@dataclass(frozen=True)
class Inspected:
    """A distinct trace of a report. ``at``: the first run that replayed it. ``report``: None where nothing is known.

    ``instead``: why it is of the run's requests and not of the trace; None where it is of the trace.
    """

    at: int
    report: TraceReport | None
    instead: str | None


def inspect_traces(
    subject: Subject, documents: Sequence[dict[str, Any]], trace: Trace | None = None, *, reopen: bool = True
) -> list[Inspected]:
    """Every distinct trace of the runs, as it was replayed. ``documents``: run.toml a run, empty where there is none.

    ``trace``: one of them, as opened, where run.toml does not say enough; what a run cut or scaled of it is done to it
    again. Without ``reopen`` no other is opened. Raises InputError when no run replayed ``trace``.
    """
    runs = [subject.runs[at] for at in subject.traces]
    if trace is not None and all(run.summary["trace"]["sha256"] != trace.info.sha256 for run in runs):
        recorded = ", ".join(dict.fromkeys(str(run.summary["trace"]["sha256"]) for run in runs))
        raise InputError(
            f"the trace {trace.info.source} has sha256 = {trace.info.sha256}, the runs were made with {recorded}: give "
            "one that they replayed"
        )
    return [_inspected(subject, at, documents[at], trace, reopen) for at in subject.traces]


def _inspected(subject: Subject, at: int, document: dict[str, Any], trace: Trace | None, reopen: bool) -> Inspected:
    run = subject.runs[at]
    limit = document.get("max_context_tokens") or document.get("model", {}).get("max_context_tokens")
    if trace is not None and trace.info.sha256 == run.summary["trace"]["sha256"]:
        again = trace_of(run, as_replayed(run, trace))
        return Inspected(at, inspect_trace(again, limit_tokens=limit, most_touches=MOST_TOUCHES), None)
    try:
        again = _unasked(run, document, reopen)
        return Inspected(at, inspect_trace(again, limit_tokens=limit, most_touches=MOST_TOUCHES), None)
    except InputError as error:
        closed = document.get("run", {}).get("driver") == "closed-loop"
        return _of_requests(at, run, limit, str(error), closed_loop=closed)


def _unasked(run: NamedRun, document: dict[str, Any], reopen: bool) -> Trace:
    """A trace that nobody named. Raises InputError with the reason where it cannot be had, or would take long."""
    if not reopen:
        raise InputError("the trace itself was not to be opened")
    if run.folder is None:
        raise InputError("the run was not written to a folder, so nothing says where its trace is")
    _check_size(document["trace"])
    try:
        trace = trace_of(run)
    except InputError as error:
        if "--trace" in str(error):
            raise
        raise InputError(f"{error} (--trace names it, with the options that read it)") from error
    _check_blocks(run, trace)
    return trace


def _check_size(about: dict[str, Any]) -> None:
    path = Path(about["source"])
    if path.suffix != ".toml" and path.is_file():
        size = path.stat().st_size
        most = MOST_BYTES if SourceFile(path).compression is None else MOST_COMPRESSED_BYTES
        if size > most:
            raise InputError(
                f"{path} has {size / MEGABYTE:,.0f} MB, and more than {most / MEGABYTE:,.0f} MB are read only when the "
                "trace is named (--trace)"
            )
    elif about["format"] == "builtin" and about["rows"] > MOST_GENERATED:
        raise InputError(
            f"more than {MOST_GENERATED:,} requests are generated again only when the trace is named (--trace)"
        )


def _check_blocks(run: NamedRun, trace: Trace) -> None:
    tokens = columns(run, "requests", ["prompt_tokens"])
    if trace.info.hash_block_tokens is None or not tokens.num_rows:
        return
    blocks = pc.sum(tokens["prompt_tokens"]).as_py() // trace.info.hash_block_tokens
    if blocks > MOST_BLOCKS:
        raise InputError(
            f"its prompts have some {blocks:,} blocks with hashes, and more than {MOST_BLOCKS:,} are looked at only "
            "when the trace is named (--trace)"
        )


def _of_requests(at: int, run: NamedRun, limit: int | None, instead: str, *, closed_loop: bool) -> Inspected:
    table = columns(run, "requests", ["row", *REQUIRED])
    if not table.num_rows:
        return Inspected(at, None, f"{instead}; and requests were not recorded")
    told = run.summary["trace"]
    try:
        made = requests_trace(
            table,
            name=str(told["name"]),
            source=run.name,
            sha256=str(told["sha256"]),
            where=f"run {run.name!r}",
            closed_loop=closed_loop,
        )
        return Inspected(at, inspect_trace(made, limit_tokens=limit), instead)
    except InputError as error:
        return Inspected(at, None, f"{instead}; and its requests are not those of a trace: {error}")

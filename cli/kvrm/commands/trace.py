"""``kvrm trace``: look at a trace, convert one, make one."""

from __future__ import annotations

import difflib
import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from kvrm import api, folders
from kvrm.commands.source import opened
from kvrm.console import note, say
from kvrm.flags import Load, Reading, expanded

SourceArgument = Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or a name of `kvrm list traces`.")]
TargetOption = Annotated[str, typer.Option("--out", "-o", help="Parquet file to write; refused when it exists.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file when it exists.")]

app = typer.Typer(no_args_is_help=True, help="Inspect, convert and make traces.")


@app.command("inspect")
@expanded
def inspect(
    trace: SourceArgument,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON, alone.")] = False,
    load: Load,
    reading: Reading,
) -> None:
    """Print a trace's statistics: rate, burstiness, lengths, prefix reuse, rejected rows."""
    report = api.inspect_trace(opened(trace, reading, load))
    say(json_text.dumps(report.to_dict(), indent=2, allow_nan=False) if json else report.to_text().rstrip("\n"))


@app.command("convert")
@expanded
def convert(
    trace: SourceArgument,
    *,
    out: TargetOption,
    force: ForceOption = False,
    load: Load,
    reading: Reading,
) -> None:
    """Write a trace as canonical Parquet; replaying that file gives the identical result."""
    folders.refuse_source(Path(out), trace)
    folders.check(Path(out), kind="file", force=force)
    source = opened(trace, reading, load)
    note(f"{source.info.rows} requests written to {api.convert_trace(source, out, force=force)}")


@app.command("synth")
def synth(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `kvrm list traces`.")],
    *,
    out: TargetOption,
    force: ForceOption = False,
    rows: Annotated[int | None, typer.Option("--rows", help="Length in requests (default: the trace's own).")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generator.")] = 0,
) -> None:
    """Generate a built-in trace and write it as Parquet; the same seed gives the same bytes."""
    folders.check(Path(out), kind="file", force=force)
    _known(name)
    source = opened(name, Reading(rows=rows, seed=seed))
    note(f"{source.info.rows} requests written to {api.convert_trace(source, out, force=force)}")


def _known(name: str) -> None:
    """A file's name is no built-in trace, although both open alike."""
    names = api.catalogue("traces")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built-in are {', '.join(names)}"
        raise typer.BadParameter(f"{name!r} is no built-in trace; {hint}", param_hint="NAME")

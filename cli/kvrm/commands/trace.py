"""``kvrm trace``: look at a trace, fetch one, convert one, make one."""

from __future__ import annotations

import difflib
import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from kvrm import api, folders, traces
from kvrm.commands.source import opened
from kvrm.console import note, progress_bytes, say, say_text, working
from kvrm.flags import Load, Reading, expanded

SourceArgument = Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or a name of `kvrm list traces`.")]
TargetOption = Annotated[str, typer.Option("--out", "-o", help="Parquet file to write; refused when it exists.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file when it exists.")]

app = typer.Typer(no_args_is_help=True, help="Inspect, fetch, convert and make traces.")


@app.command("inspect")
@expanded
def inspect(
    trace: SourceArgument,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON, alone.")] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Count requests beyond its context: a name of `kvrm list models` or a TOML file."),
    ] = None,
    max_context: Annotated[
        int | None, typer.Option("--max-context", help="Count requests beyond so many tokens, prompt and output.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="PAGE.png", help="Page of figures to write, PNG and SVG.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the page when it exists.")] = False,
    load: Load,
    reading: Reading,
) -> None:
    """Print a trace's statistics: rate, burstiness, lengths, order, sessions, prefix reuse, what was rejected.

    A page of figures is written with --out. Windows to replay are proposed: see `--window`.
    """
    if out is not None:
        folders.check_together(traces.page_files(out), kind="figure", force=force)
    traces.context_limit(model, max_context)  # a wrong one is said before minutes of reading
    with working(f"inspecting {trace}"):
        report = traces.inspect_trace(
            opened(trace, reading, load), model=model, max_context_tokens=max_context, out=out, force=force
        )
    if json:
        say(json_text.dumps(report.to_dict(), indent=2, allow_nan=False))
    else:
        say_text(report.to_text().rstrip("\n"))
    if out is not None:
        note(f"figures: {', '.join(map(str, traces.page_files(out)))}")


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
    with working(f"converting {trace}"):
        source = opened(trace, reading, load)
        written = traces.convert_trace(source, out, force=force)
    note(f"{source.info.rows} requests written to {written}")


@app.command("fit")
@expanded
def fit(
    trace: SourceArgument,
    *,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="GENERATOR.toml", help="File to write, for `kvrm trace synth`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file when it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON, alone.")] = False,
    load: Load,
    reading: Reading,
) -> None:
    """Fit a generator to a trace, and print how near it comes.

    Rate, CV of the gaps and Fano factors of both, and distances between their distributions beside what chance makes.
    """
    if out is not None:
        folders.refuse_source(Path(out), trace)
        folders.check(Path(out), kind="file", force=force)
    with working(f"fitting {trace}"):
        done = traces.fit_trace(opened(trace, reading, load), out=out, force=force, seed=reading.seed)
    say(json_text.dumps(done.to_dict(), indent=2, allow_nan=False) if json else done.to_text())
    if out is not None:
        note(f"generator: {out}")


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `kvrm list datasets`.")],
    *,
    source: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="A copy at hand: checked and copied, not downloaded.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch it again when it is there.")] = False,
) -> None:
    """Download a public data set into the user's cache, and print its path; its name then stands for the file.

    A download that was cut goes on where it ended. Length and checksum are compared where they are known.
    """
    with progress_bytes(name) as progress:
        done = traces.fetch_trace(name, source=source, force=force, progress=progress)
    for line in done.notes:
        note(line)
    note(f"sha256 {done.sha256}")
    say(str(done.path))


@app.command("synth")
def synth(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `kvrm list traces`, or a TOML file.")],
    *,
    out: TargetOption,
    force: ForceOption = False,
    rows: Annotated[int | None, typer.Option("--rows", help="Length in requests (default: the trace's own).")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generator.")] = 0,
) -> None:
    """Generate a trace and write it as Parquet; the same seed gives the same bytes.

    NAME is a built-in trace, or a TOML file that describes a generator (docs/traces.md); `kvrm trace fit` writes one.
    """
    folders.check(Path(out), kind="file", force=force)
    if Path(name).suffix != ".toml":
        _known(name)
    with working(f"generating {name}"):
        source = opened(name, Reading(rows=rows, seed=seed))
        written = traces.convert_trace(source, out, force=force)
    note(f"{source.info.rows} requests written to {written}")


def _known(name: str) -> None:
    """A file's name is no built-in trace, although both open alike."""
    names = api.catalogue("traces")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built-in are {', '.join(names)}"
        raise typer.BadParameter(f"{name!r} is no built-in trace; {hint}", param_hint="NAME")

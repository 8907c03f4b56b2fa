"""What the command line says, and where: results on stdout, everything else on stderr."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

import typer

#: Back to the margin, and the line cleared.
_NEW_LINE = "\r\x1b[2K"


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None in a pipe, where lines are as long as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str) -> None:
    """A result, on stdout."""
    typer.echo(text)


def say_text(text: str) -> None:
    """A result in words, on stdout: on a terminal its long lines are folded at spaces."""
    typer.echo("\n".join(_folded(line, sys.stdout) for line in text.splitlines()))


def note(text: str) -> None:
    """Something that a person wants to know beside the result, on stderr."""
    typer.echo(_folded(text, sys.stderr), err=True)


def complain(text: str) -> None:
    """Why the command failed: one line on stderr, named after the program."""
    typer.echo(_folded(f"kvrm: {text}", sys.stderr), err=True)


def _folded(line: str, stream: TextIO) -> str:
    """A line for a terminal: folded at spaces, what follows two columns further in. As it is where nobody looks."""
    width = shutil.get_terminal_size().columns
    if not stream.isatty() or len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def listing(entries: Mapping[str, str]) -> str:
    """Names and what they are, two columns; long lines are wrapped on a terminal and left alone in a pipe."""
    margin = max((len(name) for name in entries), default=0) + 2
    lines: list[str] = []
    for name, text in entries.items():
        if sys.stdout.isatty():
            width = max(shutil.get_terminal_size().columns - margin, 20)
            first, *rest = textwrap.wrap(text, width) or [""]
            lines.append((name.ljust(margin) + first).rstrip())
            lines.extend(" " * margin + line for line in rest)
        else:
            lines.append((name.ljust(margin) + text).rstrip())
    return "\n".join(lines)


@contextmanager
def progress_bars() -> Iterator[Callable[[str, float], None] | None]:
    """A bar a run on a terminal; None, and so nothing, in a pipe. Takes a run's name and its share done, 0 to 1."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bars:
        ids: dict[str, TaskID] = {}

        def advance(run: str, share: float) -> None:
            if run not in ids:
                ids[run] = bars.add_task(run, total=1.0)
            bars.update(ids[run], completed=share)

        yield advance


@contextmanager
def working(what: str) -> Iterator[None]:
    """What is done, and for how long by now, on a terminal; nothing in a pipe. For work whose length is not known."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as spinner:
        spinner.add_task(what, total=None)
        yield


@contextmanager
def progress_bytes(what: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """A bar of bytes on a terminal; None in a pipe. Takes the bytes that are there, and those that there will be."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda at, total: bar.update(task, completed=at, total=total)


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Takes what is done next, on stderr: first what will be done, then phases, as "phase" or "phase: what of it".

    A terminal keeps the first and shows the rest on one line; a pipe gets one line a phase. Written by the caller's own
    thread: a bar that redraws itself would be measured with the rest.
    """
    began = time.monotonic()
    terminal = sys.stderr.isatty()
    last: str | None = None

    def tell(text: str) -> None:
        nonlocal last
        phase = text if last is None else text.partition(": ")[0]
        if terminal and last is not None:
            room = shutil.get_terminal_size().columns - 1
            typer.echo(_NEW_LINE + f"{time.monotonic() - began:4.0f} s  {text}"[:room], nl=False, err=True)
        elif phase != last:
            note(phase if last is None else f"{time.monotonic() - began:4.0f} s  {phase}")
        last = phase

    try:
        yield tell
    finally:
        if terminal and last is not None:
            typer.echo(_NEW_LINE, nl=False, err=True)

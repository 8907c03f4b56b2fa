"""Where a command writes: refused before the work when it cannot be, and never seen half-written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["folder", "file", "report", "timeline", "figure"]

#: A folder with one of these was written by kvrm, and `force` may replace it.
OURS = ("summary.json", "run.toml", "report.json")


@contextmanager
def staged(target: Path, *, kind: Kind, force: bool = False) -> Iterator[Path]:
    """Yield a path beside `target` that does not exist yet; what is written there becomes `target` at the end.

    When the body raises (an interrupt too), what it wrote is removed and `target` is as it was. Raises
    :class:`kvrm_traces.errors.InputError` before yielding when `target` exists and may not be replaced, or its folder
    cannot be written. `force` replaces a folder, report, timeline or figure only where kvrm wrote it (a figure by a
    figure, ...), and another file by a file.
    """
    _refuse_existing(target, kind=kind, force=force)
    made, workshop = _workshop(target)
    try:
        yield workshop / target.name
        if target.exists():
            target.rename(workshop / "replaced")
        (workshop / target.name).rename(target)
    finally:
        _clear(made, workshop)


@contextmanager
def staged_together(targets: Sequence[Path], *, kind: Kind = "file", force: bool = False) -> Iterator[tuple[Path, ...]]:
    """The same for files of one folder that belong together: at the end all of them are there, or none is changed."""
    for target in targets:
        _refuse_existing(target, kind=kind, force=force)
    made, workshop = _workshop(targets[0])
    unfinished = tuple(workshop / target.name for target in targets)
    try:
        yield unfinished
        _place(unfinished, targets, workshop)
    finally:
        _clear(made, workshop)


def check_together(targets: Sequence[Path], *, kind: Kind = "file", force: bool = False) -> None:
    """Raise what :func:`staged_together` would raise, now."""
    for target in targets:
        check(target, kind=kind, force=force)


def check(target: Path, *, kind: Kind, force: bool = False) -> None:
    """Raise what :func:`staged` would raise, now: for a caller with long work to do before it."""
    _refuse_existing(target, kind=kind, force=force)
    _clear(*_workshop(target))


def next_free(parent: Path, stem: str) -> Path:
    """`parent/stem-1`, or the first number that is not taken."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"


def refuse_source(target: Path, source: str | Path) -> None:
    """Raise InputError when `target` is the very file that is to be read."""
    from kvrm_traces.errors import InputError

    if target.exists() and Path(source).exists() and target.samefile(source):
        raise InputError(f"{target} is the trace that is read: write to another name")


def _refuse_existing(target: Path, *, kind: Kind, force: bool) -> None:
    from kvrm_traces.errors import InputError

    if target.name in ("", ".."):
        raise InputError(
            f"{str(target)!r} cannot be written: give the name of a new {kind if kind == 'folder' else 'file'}"
        )
    if not os.path.lexists(target):
        return
    if not force:
        raise InputError(f"{target} exists: choose another name, or pass --force to replace what a run wrote there")
    if target.is_dir():
        ours = any((target / name).is_file() for name in OURS)
        if kind != "folder":
            raise InputError(f"{target} is a folder: give the name of a file")
        if any(target.iterdir()) and not ours:
            raise InputError(f"{target} is a folder that kvrm did not write (no {OURS[0]} in it): it is left alone")
    elif kind == "folder":
        raise InputError(f"{target} is a file, not a folder that kvrm wrote: it is left alone")
    elif kind != "file":
        _refuse_foreign(target, kind)


def _refuse_foreign(target: Path, kind: Literal["report", "timeline", "figure"]) -> None:
    from kvrm_analysis.ours import is_ours
    from kvrm_traces.errors import InputError

    try:
        ours = is_ours(target, kind)
    except OSError as error:
        raise InputError(f"{target} cannot be read, to see whether kvrm wrote it: {error.strerror}") from error
    if not ours:
        raise InputError(f"{target} is not a {kind} that kvrm wrote: it is left alone, choose another name")


def _place(finished: Sequence[Path], targets: Sequence[Path], workshop: Path) -> None:
    """Rename each into its place; when one cannot be, those before it are as they were."""
    placed: list[tuple[Path, Path, Path | None]] = []
    try:
        for at, (new, target) in enumerate(zip(finished, targets, strict=True)):
            old = workshop / f"replaced-{at}" if target.exists() else None
            if old is not None:
                target.rename(old)
            placed.append((new, target, old))
            new.rename(target)
    except BaseException:  # an interrupt too
        for new, target, old in reversed(placed):
            if target.exists():
                target.rename(new)
            if old is not None:
                old.rename(target)
        raise


def _workshop(target: Path) -> tuple[list[Path], Path]:
    """A folder beside `target` to work in, and the parents that had to be made for it, innermost first."""
    from kvrm_traces.errors import InputError

    made = [parent for parent in target.parents if not parent.exists()]
    workshop = target.parent / f".{target.name}.partial-{os.getpid()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        workshop.mkdir()
    except OSError as error:
        _clear(made, workshop)
        where = target.parent if error.filename == str(workshop) else error.filename
        raise InputError(f"{target} cannot be written: {where}: {error.strerror}") from error
    return made, workshop


def _clear(made: list[Path], workshop: Path) -> None:
    """Remove the workshop, and the parents made for it that hold nothing now."""
    shutil.rmtree(workshop, ignore_errors=True)
    with suppress(OSError):  # the first one that is not empty stays, and so do those around it
        for parent in made:
            parent.rmdir()

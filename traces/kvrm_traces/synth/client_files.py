"""Where the files of clients are: a folder, or a folder in an archive, which is read as a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvrm_traces.archive import is_archive, members
from kvrm_traces.datasets import datasets, fetched_path
from kvrm_traces.errors import TraceError
from kvrm_traces.source import SourceFile

_NAME = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)")
#: What one file may hold.
MOST_BYTES = 1 << 26
_SHOWN = 8


@dataclass(frozen=True)
class ClientFiles:
    """``numbers`` of the clients, ascending; ``read`` has the bytes of a file by its name, and raises TraceError."""

    folder: Path
    numbers: tuple[int, ...]
    read: Callable[[str], bytes]


def client_files(source: str | Path) -> ClientFiles | None:
    """Of a folder, of ``ARCHIVE/FOLDER``, or of ``NAME/FOLDER`` of a fetched archive; None where it is none of them.

    Raises TraceError for an archive without clients in a folder of this name.
    """
    path = Path(source)
    if path.is_dir():
        numbers = _numbers(entry.name for entry in path.iterdir())
        return ClientFiles(path, numbers, lambda name: _bytes(path / name)) if numbers else None
    outer = None if path.exists() else _archive_before(path)
    if outer is None:
        return None
    archive, inner = outer
    if not is_archive(archive):
        raise TraceError(f"{path}: {archive.path} is a file, and no archive with folders in it")
    found = _in_archive(archive, path, inner)
    return ClientFiles(path, _numbers(found), lambda name: _member(found, path / name))


def _numbers(names: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({int(found[1]) for name in names if (found := _NAME.fullmatch(name))}))


def _archive_before(path: Path) -> tuple[SourceFile, PurePosixPath] | None:
    """The file that a path goes on behind, and the rest."""
    for outer in path.parents:
        if outer.is_file():
            return SourceFile(outer), PurePosixPath(*path.relative_to(outer).parts)
    name, *rest = path.parts or ("",)
    if rest and name in datasets() and not Path(name).exists():
        return SourceFile(fetched_path(name, str(path))), PurePosixPath(*rest)
    return None


def _in_archive(archive: SourceFile, path: Path, inner: PurePosixPath) -> dict[str, bytes]:
    """The files of the one folder whose path ends so."""
    folders: dict[PurePosixPath, dict[str, bytes]] = {}
    for name, data in members(archive):
        member = PurePosixPath(name)
        if _NAME.fullmatch(member.name):
            files = folders.setdefault(member.parent, {})
            if member.parent.parts[-len(inner.parts) :] == inner.parts:
                files[member.name] = data
    matching = [folder for folder, files in folders.items() if files]
    if len(matching) == 1:
        return folders[matching[0]]
    there = ", ".join(map(str, (matching or list(folders))[:_SHOWN])) or "none"
    wrong = f"several folders end in {inner}: name one of" if matching else f"no clients in a folder {inner}; there are"
    raise TraceError(f"{path}: {wrong} {there}")


def _bytes(path: Path) -> bytes:
    try:
        _check_size(path, path.stat().st_size)
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); a client has both files") from error


def _member(files: dict[str, bytes], path: Path) -> bytes:
    if path.name not in files:
        raise TraceError(f"{path}: is not in the archive; a client has both files")
    _check_size(path, len(files[path.name]))
    return files[path.name]


def _check_size(path: Path, size_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise TraceError(f"{path}: has {size_bytes} bytes; a client has at most {MOST_BYTES}")

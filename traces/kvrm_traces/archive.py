"""A tar archive as a stream of its regular files: nothing is unpacked on disk, and memory is one member.

Refused, although nothing of it would be written: a member whose name leads out of the archive, a link, a device. So is
an archive out of all proportion to its file, and one that wants more memory to decompress than a trace is worth.
"""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from kvrm_traces.errors import TraceError
from kvrm_traces.source import SourceFile, bounded

XZ_MAGIC = b"\xfd7zXZ\x00"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257

#: The dictionary of an xz stream; the strongest preset needs 65 MiB.
_XZ_MEMORY_BYTES = 1 << 28
#: The longest member, decompressed.
MOST_MEMBER_BYTES = 1 << 28
_READ_BYTES = 1 << 16


def is_archive(source: SourceFile) -> bool:
    """Whether it is a tar archive, as it is or compressed. Raises TraceError for a damaged one."""
    with _decompressed(source) as stream:
        head: bytes = stream.read(_TAR_MAGIC_AT + len(_TAR_MAGIC))
    return head[_TAR_MAGIC_AT:] == _TAR_MAGIC


def members(source: SourceFile) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of each regular file, in the order of the archive. Raises TraceError."""
    try:
        with _decompressed(source) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                _refuse_unsafe(source.path, member)
                if member.isdir():
                    continue
                file = archive.extractfile(member)
                assert file is not None  # a regular file
                yield member.name, file.read()
            while stream.read(_READ_BYTES):
                pass  # the checksum of a compressed stream is behind its last byte
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TraceError(f"{source.path}: damaged or cut short, not readable as a tar archive ({reason})") from error


def _refuse_unsafe(path: Path, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name:
        raise TraceError(f"{path}: member {member.name[:80]!r}: leads out of the archive; expected plain names")
    if not (member.isreg() or member.isdir()):
        raise TraceError(f"{path}: member {member.name[:80]!r}: is a link or a device; expected regular files")
    if member.size > MOST_MEMBER_BYTES:
        raise TraceError(f"{path}: member {member.name[:80]!r}: has {member.size} bytes; at most {MOST_MEMBER_BYTES}")


@contextmanager
def _decompressed(source: SourceFile) -> Iterator[Any]:
    if not source.head.startswith(XZ_MAGIC):
        with source.opened() as stream:
            yield stream
        return
    with source.path.open("rb") as file:
        yield bounded(source.path, _Xz(source.path, file))


class _Xz:
    """A stream of xz, decompressed with bounded memory."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    def read(self, size: int) -> bytes:
        parts = []
        while size > 0 and not self._decoder.eof:
            data = self._file.read(_READ_BYTES) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not data:
                raise TraceError(f"{self._path}: damaged or cut short, xz (it ends before its stream does)")
            try:
                part = self._decoder.decompress(data, size)
            except lzma.LZMAError as error:
                raise TraceError(f"{self._path}: damaged, xz ({error})") from error
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

"""A trace file as bytes: what it is, how it is compressed, how it begins. Nothing here knows a format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from kvrm_traces.errors import TraceError

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_PARQUET_MAGIC = b"PAR1"
_BOM = b"\xef\xbb\xbf"

#: A first line longer than this is no header and no record.
_LONGEST_LINE_BYTES = 1 << 26
_READ_BYTES = 1 << 20

#: A compressed file that expands further than this is no trace: rows of requests shrink to a tenth, at most a fiftieth.
#: Small ones may, since a short file of one repeated row costs nobody anything.
MOST_EXPANSION = 1000
_SMALL_BYTES = 1 << 26


def bounded(path: Path, stream: Any) -> Any:
    """A stream of what `path` decompresses to, which ends in a TraceError when that is out of all proportion."""
    return _Bounded(path, stream)


class _Bounded:
    """A decompressed stream that ends in a TraceError when it is out of all proportion to its file."""

    def __init__(self, path: Path, stream: Any) -> None:
        self._path = path
        self._stream = stream
        self._most = max(_SMALL_BYTES, MOST_EXPANSION * path.stat().st_size)
        self._given = 0
        self.closed = False

    def read(self, size: int) -> bytes:
        piece: bytes = self._stream.read(size)
        self._given += len(piece)
        if self._given > self._most:
            raise TraceError(
                f"{self._path}: expands to more than {MOST_EXPANSION} times its size; expected a trace, decompress it "
                "yourself if it is one"
            )
        return piece

    def close(self) -> None:
        self.closed = True


class SourceFile:
    """A regular, readable, non-empty file; anything else is a TraceError that names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise TraceError(f"{path}: is a directory; name one trace file")
        if not path.exists():
            raise TraceError(f"{path}: no such file")
        if not path.is_file():
            raise TraceError(f"{path}: is not a regular file; save the stream to a file first (it is read twice)")
        try:
            with path.open("rb") as file:
                self.head = file.read(8)
        except OSError as error:
            raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
        if not self.head:
            raise TraceError(f"{path}: is empty; expected a header or a first record")

    @property
    def is_parquet(self) -> bool:
        """Whether it begins as a Parquet file does."""
        return self.head.startswith(_PARQUET_MAGIC)

    @property
    def compression(self) -> str | None:
        """'gzip', 'zstd' or None, by its first bytes: names lie."""
        return next((name for magic, name in _MAGIC.items() if self.head.startswith(magic)), None)

    @property
    def stem(self) -> str:
        """The file's name without its endings: a trace converted to another format keeps its name."""
        name = self.path.name
        for ending in (".gz", ".gzip", ".zst", ".zstd", ".xz"):
            name = name.removesuffix(ending)
        for ending in (".csv", ".tsv", ".jsonl", ".json", ".ndjson", ".parquet"):
            name = name.removesuffix(ending)
        return name or self.path.name

    def sha256(self) -> str:
        """Of the file's bytes as they are on disk, read once in pieces."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """The decompressed bytes as an Arrow input stream; damage found while reading is a TraceError."""
        try:
            with pa.input_stream(str(self.path), compression=self.compression, buffer_size=_READ_BYTES) as stream:
                yield stream if self.compression is None else _Bounded(self.path, stream)
        except OSError as error:
            reason = str(error).splitlines()[0]
            raise TraceError(f"{self.path}: damaged or cut short, {self.compression or 'plain'} ({reason})") from error

    def first_lines(self) -> list[str]:
        """The beginning as whole, non-blank lines, at least two where there are so many; no byte-order mark.

        Raises TraceError for a binary file and for text that is not UTF-8.
        """
        head = b""
        blank = 0
        with self.opened() as stream:
            while len(head) < _LONGEST_LINE_BYTES:
                piece = stream.read(_READ_BYTES)
                head += piece
                if not head.strip():
                    blank, head = blank + len(head), b""
                if not piece or head.strip().count(b"\n"):
                    break
        if b"\x00" in head:
            at = blank + head.index(b"\x00")
            raise TraceError(f"{self.path}: is binary (a zero byte at {at}); expected CSV, JSONL or Parquet")
        whole = head[: head.rfind(b"\n") + 1] or head if piece else head
        try:
            text = whole.removeprefix(_BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{self.path}: is not UTF-8 text (byte {head[error.start]:#04x} at {blank + error.start}); "
                "expected CSV, JSONL or Parquet"
            ) from error
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            raise TraceError(f"{self.path}: holds only blank lines; expected a header or a first record")
        return lines

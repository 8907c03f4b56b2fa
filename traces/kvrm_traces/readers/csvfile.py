"""CSV in pieces: every wanted column as text, so that what is wrong with a value can be said in its own words."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from kvrm_traces.errors import TraceError
from kvrm_traces.readers.piece import Broken, Piece
from kvrm_traces.source import SourceFile

_BLOCK_BYTES = 1 << 20


class _Utf8:
    """A stream whose bytes are UTF-8 up to wherever it was read.

    Arrow looks at the columns that are asked for alone, and hands rows that it skips to Python as text: what is wrong
    in those would be reported to nobody.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.closed = False

    def read(self, size: int) -> bytes:
        piece: bytes = self._stream.read(size)
        try:
            self._decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(f"invalid UTF8 data: byte {error.object[error.start]:#04x}") from error
        return piece

    def close(self) -> None:
        self.closed = True


def read_csv(source: SourceFile, fields: Mapping[str, str], delimiter: str) -> Iterator[Piece]:
    """Yield the columns `fields` (ours -> theirs) of a CSV with a header. Raises TraceError when it is no CSV in
    UTF-8.
    """
    header = next(csv.reader([source.first_lines()[0]], delimiter=delimiter))
    names = {name.strip(): name for name in header}
    wanted = {ours: names[theirs] for ours, theirs in fields.items()}
    numbering = _Numbering()
    with source.opened() as stream:
        try:
            reader = pa_csv.open_csv(
                _Utf8(stream),
                # One thread: only then does Arrow number the rows that it finds broken.
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=pa_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=numbering.skip),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted.values(), pa.string()),
                    include_columns=list(dict.fromkeys(wanted.values())),
                    strings_can_be_null=False,
                ),
            )
            for batch in reader:
                numbers, broken = numbering.of_next(batch.num_rows)
                columns = {ours: batch.column(theirs) for ours, theirs in wanted.items()}
                yield Piece(columns=columns, numbers=numbers, broken=broken)
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            raise TraceError(
                f"{source.path}: at row {numbering.next} or later: not readable as CSV ({reason})"
            ) from error
    yield Piece(columns={}, numbers=np.empty(0, np.int64), broken=numbering.drained())


class _Numbering:
    """Row numbers of the records that Arrow hands on: all but those that it told us it skipped."""

    def __init__(self) -> None:
        self.next = 1
        self._skipped: list[Broken] = []

    def skip(self, row: Any) -> str:
        """Arrow's handler of a row whose number of values is not that of the header (which is its row 1)."""
        reason, right = "another number of values than the header", f"{row.expected_columns} values"
        self._skipped.append(Broken(number=row.number - 1, text=row.text[:80], reason=reason, right=right))
        return "skip"

    def of_next(self, count: int) -> tuple[npt.NDArray[np.int64], tuple[Broken, ...]]:
        """Numbers of the next `count` good rows, and the broken ones among and before them."""
        stop = self.next + count
        passed = 0
        # A block's broken rows are known before its good ones are handed on, in order.
        while passed < len(self._skipped) and self._skipped[passed].number < stop + passed:
            passed += 1
        numbers = np.arange(self.next, stop + passed, dtype=np.int64)
        broken = tuple(self._skipped[:passed])
        self.next = stop + passed
        self._skipped = self._skipped[passed:]
        return np.setdiff1d(numbers, [row.number for row in broken], assume_unique=True), broken

    def drained(self) -> tuple[Broken, ...]:
        """The broken rows after the last good one."""
        return tuple(self._skipped)

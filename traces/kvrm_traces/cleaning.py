"""From records as a file has them to canonical rows: every value checked, every row that fails counted with its reason.

A request needs at least one prompt token and one output token: rows with none are failures in every public trace, and
are rejected (reason "below 1"), never replayed as empty requests.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kvrm_traces import numbers, times
from kvrm_traces.errors import TraceError
from kvrm_traces.hashes import HashEncoder, as_lists, expected_blocks, lists_with_blanks
from kvrm_traces.numbers import as_text, whole_numbers
from kvrm_traces.readers.layout import Layout
from kvrm_traces.readers.piece import Piece
from kvrm_traces.rejects import Rejects
from kvrm_traces.schema import LEAST, MOST, SCHEMA, schema_of
from kvrm_traces.stream import Stream

MissingTimestamp = Literal["refuse", "zero"]

#: No trace is longer than this; arrivals further apart are on two clocks, or in another unit.
LONGEST_NS = 366 * 86_400 * 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """What the caller chose. ``arrivals``: a stated process, for files without arrivals."""

    missing_timestamp: MissingTimestamp = "refuse"
    arrivals: Stream | None = None
    hash_tolerance_blocks: int = 0


class Cleaner:
    """Cleans the pieces of one file, in order."""

    def __init__(self, path: Path, layout: Layout, rejects: Rejects, rules: Rules) -> None:
        self._path = path
        self._layout = layout
        self._rejects = rejects
        self._rules = rules
        self._clock = _OneClock(path, layout)
        self.hashes = HashEncoder(chained=layout.chained)
        self.hashes_tolerated = 0
        self.stamps_missing = 0
        self.schema = schema_of(("arrival_ns", *layout.fields))

    def clean(self, piece: Piece) -> pa.RecordBatch:
        """The piece's good rows under ``schema``, arrivals still in the clock of the file."""
        for broken in piece.broken:
            self._rejects.add(broken.reason, broken.number, broken.text, broken.right)
        if piece.numbers.size == 0:
            return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)
        sieve = _Sieve(piece, self._rejects)
        counts = {name: self._counts(sieve, name) for name in LEAST if name in piece.columns}
        arrival_ns = self._arrivals(sieve)
        lists, blocks = self._hash_lists(sieve, counts["prompt_tokens"])
        good = pa.array(sieve.good)
        if self._rules.arrivals is not None:
            arrival_ns[sieve.good] = self._rules.arrivals.take(int(sieve.good.sum()))
        else:
            self._clock.check(arrival_ns[sieve.good], piece.numbers[sieve.good])
        columns: dict[str, pa.Array] = {"arrival_ns": pa.array(arrival_ns).filter(good)}
        columns |= {name: values.filter(good) for name, values in counts.items()}
        if lists is not None:
            columns["prefix_hashes"] = self.hashes.encode(lists.filter(good), blocks[sieve.good])
        for name in self.schema.names:
            if name not in columns:
                columns[name] = _texts(piece.columns[name]).filter(good)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _counts(self, sieve: _Sieve, name: str) -> pa.Array:
        """A column of counts; blank is null where the canonical column allows it."""
        found, codes = whole_numbers(sieve.piece.columns[name])
        least, most = LEAST[name], MOST.get(name, numbers.LARGEST)
        optional = SCHEMA.field(name).nullable
        right = f"a whole number from {least} to {most}"
        for code, reason in numbers.REASONS.items():
            if not (optional and code == numbers.MISSING):
                sieve.reject(codes == code, name, f"{name} {reason}", right)
        sieve.reject((codes == numbers.OK) & (found < least), name, f"{name} below {least}", right)
        sieve.reject((codes == numbers.OK) & (found > most), name, f"{name} above {most}", right)
        return pa.array(found, mask=(codes == numbers.MISSING) if optional else None)

    def _arrivals(self, sieve: _Sieve) -> npt.NDArray[np.int64]:
        """Arrivals in the clock of the file. A missing one ends the reading, unless it was said what it means."""
        if "arrival" not in sieve.piece.columns:
            return np.zeros(sieve.good.size, np.int64)
        assert self._layout.unit is not None  # settled before the reading
        ns, codes = times.times_ns(sieve.piece.columns["arrival"], self._layout.unit)
        column = self._layout.fields["arrival"]
        missing = codes == times.MISSING
        if self._rules.arrivals is not None:
            sieve.refuse(self._path, ~missing, "arrival", f"column {column!r} has arrivals; leave out the stated ones")
            return ns
        if self._layout.unit == "datetime" and self._rules.missing_timestamp == "zero":
            sieve.refuse(self._path, missing, "arrival", "a missing date cannot be read as 0; give it, or drop the row")
        if self._rules.missing_timestamp == "refuse":
            why = f"no arrival in column {column!r}; missing_timestamp zero reads it as 0, or state an arrival process"
            sieve.refuse(self._path, missing, "arrival", why)
        sieve.refuse(self._path, codes == times.FAR, "arrival", self._clock.advice())
        right = "a date" if self._layout.unit == "datetime" else f"a number of {self._layout.unit}, 0 or more"
        sieve.reject(codes == times.NOT_A_TIME, "arrival", "arrival not a time", right)
        sieve.reject(codes == times.NEGATIVE, "arrival", "arrival below 0", right)
        self.stamps_missing += int(np.count_nonzero(missing & sieve.good))
        return ns

    def _hash_lists(self, sieve: _Sieve, prompt: pa.Array) -> tuple[pa.Array | None, npt.NDArray[np.int64]]:
        """The lists of ids and how many each prompt should have; a list of another length rejects its row."""
        block_tokens = self._layout.hash_block_tokens
        if "prefix_hashes" not in sieve.piece.columns or block_tokens is None:
            return None, np.empty(0, np.int64)
        lists = as_lists(sieve.piece.columns["prefix_hashes"])
        sieve.reject(
            lists_with_blanks(lists), "prefix_hashes", "prefix_hashes with a blank id", "an id for every block"
        )
        expected = expected_blocks(prompt.to_numpy(), block_tokens)
        lengths = pc.list_value_length(lists)
        known = lengths.is_valid().to_numpy(zero_copy_only=False)
        off = np.abs(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False) - expected) * known
        tolerance = self._rules.hash_tolerance_blocks
        right = f"ceil(prompt_tokens / {block_tokens}) ids" + (f", give or take {tolerance}" if tolerance else "")
        sieve.reject(off > tolerance, "prefix_hashes", "prefix_hashes of another length than the prompt", right)
        self.hashes_tolerated += int(np.count_nonzero((off > 0) & sieve.good))
        return lists, expected


class _Sieve:
    """Which rows of a piece are still good; a row is rejected once, for the first reason found."""

    def __init__(self, piece: Piece, rejects: Rejects) -> None:
        self.piece = piece
        self.good = np.ones(piece.numbers.size, np.bool_)
        self._rejects = rejects

    def reject(self, rows: npt.NDArray[np.bool_], column: str, reason: str, right: str) -> None:
        """Leave out the good ones among these rows."""
        rows = rows & self.good
        if rows.any():
            first = int(np.argmax(rows))
            value = self._quoted(column, first)
            self._rejects.add(reason, int(self.piece.numbers[first]), value, right, int(np.count_nonzero(rows)))
            self.good &= ~rows

    def refuse(self, path: Path, rows: npt.NDArray[np.bool_], column: str, why: str) -> None:
        """End the reading at the first good one among these rows."""
        rows = rows & self.good
        if rows.any():
            first = int(np.argmax(rows))
            number = int(self.piece.numbers[first])
            raise TraceError(f"{path}: row {number}: {column} {self._quoted(column, first)!r}: {why}")

    def _quoted(self, column: str, row: int) -> str:
        value = self.piece.columns[column][row].as_py()
        text = "" if value is None else str(value)
        return text if len(text) <= 60 else text[:57] + "..."


class _OneClock:
    """All arrivals of a file are on one clock: no two of them are further apart than any trace is long (case A09)."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path = path
        self._layout = layout
        self._first: tuple[int, int] | None = None
        self._least_ns = 0
        self._most_ns = 0

    def check(self, arrival_ns: npt.NDArray[np.int64], row_numbers: npt.NDArray[np.int64]) -> None:
        """Refuse the first arrival that is too far from the file's first."""
        if arrival_ns.size == 0:
            return
        if self._first is None:
            self._first = (int(row_numbers[0]), int(arrival_ns[0]))
        first_row, first_ns = self._first
        # Halved, because a difference of two int64 may not be one.
        far = np.abs(arrival_ns // 2 - first_ns // 2) > LONGEST_NS // 2
        if far.any():
            at = int(np.argmax(far))
            raise TraceError(
                f"{self._path}: row {int(row_numbers[at])}: arrival at {int(arrival_ns[at]) / 1e9:.6g} s of the file's "
                f"clock, but row {first_row} is at {first_ns / 1e9:.6g} s: {self.advice()}"
            )

    def advice(self) -> str:
        """What would be right."""
        unit = "" if self._layout.unit == "datetime" else f", or the unit is not {self._layout.unit}"
        return f"more than {LONGEST_NS // (86_400 * 10**9)} days from the others; the column mixes two origins{unit}"


def _texts(values: pa.Array) -> pa.Array:
    """Text with blank as null; anything else as text."""
    texts = as_text(values)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)

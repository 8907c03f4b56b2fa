"""Times to think for a trace that has conversations but no ``think_ms``: stated, drawn, or taken from its arrivals.

======================== =====================================================================================
``constant:SECONDS``     the same after every answer
``exponential:MEAN_S``   drawn, exponential with this mean
``lognormal:MEDIAN_S:S`` drawn, lognormal with this median and the standard deviation S of its logarithm
``recorded:MS``          from the arrival of the turn before to this one, less its answer at MS ms a token; 0 at least
======================== =====================================================================================

The first request of a conversation has none. A draw depends on the seed and on the row's place alone: every row has
one, whether it is used or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.numbers import LARGEST
from kvrm_traces.schema import TraceInfo, schema_of
from kvrm_traces.selection import exactly
from kvrm_traces.sessions import Latest, name_columns, names_in
from kvrm_traces.stream import random_stream

_MS_NS = 10**6

#: No time to think is longer, as none in a file: 24.8 days.
_MOST_S = LARGEST // 1000

#: No answer takes longer: longer than any trace, and it can be added to an arrival.
_LONGEST_NS = 2.0**61

#: By kind: the least and greatest of each number. A mean or a median is a nanosecond or more.
_RANGES: dict[str, tuple[tuple[float, float], ...]] = {
    "constant": ((0, _MOST_S),),
    "exponential": ((1e-9, _MOST_S),),
    "lognormal": ((1e-9, _MOST_S), (0, 10)),
    "recorded": ((0, 1e9),),
}

#: Of the seed's streams, the one that times to think are drawn from: not the one that samples rows.
_STREAM = 2


@dataclasses.dataclass(frozen=True)
class Think:
    """A checked specification: a key of the table above, and its numbers."""

    kind: str
    values: tuple[float, ...]

    @property
    def drawn(self) -> bool:
        """Whether it depends on the seed."""
        return self.kind in ("exponential", "lognormal")

    def words(self, seed: int) -> str:
        """What was done; it is done again from them."""
        spec = ":".join((self.kind, *map(exactly, self.values)))
        return f"think {spec} seed {seed}" if self.drawn else f"think {spec}"


def parse_think(text: str) -> Think:
    """A specification from its text. Raises TraceError with the four forms."""
    kind, *numbers = text.split(":")
    ranges = _RANGES.get(kind, ())
    try:
        values = tuple(float(number) for number in numbers)
    except ValueError:
        values = ()
    fits = len(values) == len(ranges) > 0
    if fits and all(least <= value <= most for value, (least, most) in zip(values, ranges, strict=True)):
        return Think(kind, values)
    raise TraceError(
        f"think {text!r}: must be constant:SECONDS, exponential:MEAN_S, lognormal:MEDIAN_S:SIGMA or "
        f"recorded:MS_PER_TOKEN, e.g. constant:5 or recorded:20; seconds up to {_MOST_S}, SIGMA up to 10"
    )


class ThinkTimes:
    """The column ``think_ms`` of a trace. Memory grows with the conversations."""

    def __init__(self, info: TraceInfo, think: Think, seed: int) -> None:
        """Raises TraceError for a trace without conversations, and for one that has times to think."""
        if "session_id" not in info.columns:
            raise TraceError(
                f"think: {info.source} has no column session_id, so nobody in it waits for an answer; name it, e.g. "
                "session_id=NAME, or leave out the time to think"
            )
        if "think_ms" in info.columns:
            raise TraceError(f"think: {info.source} has times to think already (think_ms); leave them out here")
        self._recorded = think.kind == "recorded"
        self.reads = (*name_columns(info.columns), *(("arrival_ns", "output_tokens") if self._recorded else ()))
        self.words = think.words(seed)
        self._think = think
        self._rng = random_stream(seed, _STREAM)
        #: When the latest turn arrived, and how long its answer is said to have taken.
        self._latest = Latest[tuple[int, int]]()
        self._rows = self._continued = self._cut_low = self._cut_high = self._sum_ms = 0

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of all rows in order of arrival, with the columns ``reads``."""
        for batch in batches:
            before = self._turns_before(batch)
            continues = np.array([found is not None for found in before], np.bool_)
            wanted_ms = self._recorded_ms(batch, before) if self._recorded else self._stated_ms(batch.num_rows)
            think_ms = np.clip(wanted_ms, 0, LARGEST)
            self._rows += batch.num_rows
            self._continued += int(np.count_nonzero(continues))
            self._cut_low += int(np.count_nonzero(continues & (wanted_ms < 0)))
            self._cut_high += int(np.count_nonzero(continues & (wanted_ms > LARGEST)))
            self._sum_ms += int(think_ms[continues].sum())
            column = pa.array(think_ms, pa.int64(), mask=~continues)
            yield pa.RecordBatch.from_arrays([column], schema=schema_of(("think_ms",)))

    def note(self) -> str:
        """What it came to."""
        if not self._continued:
            return f"none of {self._rows} requests continues another"
        mean_s = self._sum_ms / self._continued / 1e3
        found = f"{self._continued} of {self._rows} requests continue another, after {mean_s:.4g} s on average"
        if self._cut_low:
            found += (
                f"; {self._cut_low} cut at 0, which came before the answer at {exactly(self._think.values[0])} ms a "
                "token would have ended"
            )
        if self._cut_high:
            found += f"; {self._cut_high} cut at {LARGEST / 1e3} s"
        return f"{found} (a closed loop reads it)"

    def _turns_before(self, batch: pa.RecordBatch) -> list[tuple[int, int] | None]:
        """Of each request that continues one: when that one arrived, and how long its answer took, in ns."""
        about = [(0, 0)] * batch.num_rows
        if self._recorded:
            token_ns = self._think.values[0] * _MS_NS
            answers = np.minimum(int64_values(batch.column("output_tokens")) * token_ns, _LONGEST_NS)
            answers_ns = np.rint(answers).astype(np.int64)
            about = list(zip(int64_values(batch.column("arrival_ns")).tolist(), answers_ns.tolist(), strict=True))
        found = []
        for (own, parent), told in zip(names_in(batch), about, strict=True):
            found.append(self._latest.before(own, parent))
            self._latest.keep(own, told)
        return found

    def _recorded_ms(self, batch: pa.RecordBatch, before: list[tuple[int, int] | None]) -> npt.NDArray[np.int64]:
        """To the nearest ms; below 0 where the answer would have taken longer."""
        arrivals_ns = int64_values(batch.column("arrival_ns"))
        ends_ns = np.array([0 if found is None else sum(found) for found in before], np.int64)
        return (arrivals_ns - ends_ns + _MS_NS // 2) // _MS_NS

    def _stated_ms(self, rows: int) -> npt.NDArray[np.int64]:
        """One for every row."""
        first, *others = self._think.values
        if self._think.kind == "constant":
            seconds = np.full(rows, first)
        elif self._think.kind == "exponential":
            seconds = first * self._rng.standard_exponential(rows)
        else:
            seconds = first * np.exp(others[0] * self._rng.standard_normal(rows))
        # No draw comes near the end of int64: a median of 24.8 days by e**(10 * 9) does, so it is cut before.
        return np.rint(np.minimum(seconds * 1e3, 2.0 * LARGEST)).astype(np.int64)

"""Where the rows of a trace are: the seam between what a trace is made of and what is done with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa


class Store(Protocol):
    """Rows in canonical form, sorted by arrival, first arrival 0; readable any number of times."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    def batches(self, start: int, stop: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Rows [start, stop) in order, as non-empty batches of at most `rows` rows with these columns in this order."""
        ...

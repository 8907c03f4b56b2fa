"""What the containers (CSV, JSONL) hand on: a few thousand records, a column each, still unchecked."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken:
    """A row that is no record at all: its number, its text, what is wrong with it, and what would be right."""

    number: int
    text: str
    reason: str
    right: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Records in the order of the file.

    `columns`: by our names, Arrow arrays of whatever type the container found, one length. `numbers`: int64, each
    record's row number in the file: data rows from 1, blank lines not counted. `broken`: rows among them that are none.
    """

    columns: dict[str, pa.Array]
    numbers: npt.NDArray[np.int64]
    broken: tuple[Broken, ...] = ()

"""int64 columns between Arrow and numpy, without a copy.

``pyarrow.Array.to_numpy`` imports pandas on its first call, a quarter of a second that a replay need not spend.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def int64_values(column: pa.Array) -> npt.NDArray[np.int64]:
    """The values of an int64 column without nulls; read-only. Raises ValueError for others."""
    if not pa.types.is_int64(column.type) or column.null_count:
        raise ValueError(f"expected int64 without nulls, not {column.type} with {column.null_count}")
    values = np.frombuffer(column.buffers()[1] or b"", np.int64)
    return values[column.offset : column.offset + len(column)]


def int64_column(values: npt.NDArray[np.int64]) -> pa.Array:
    """A column over the memory of `values`, which must not be written any more."""
    contiguous = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), contiguous.size, [None, pa.py_buffer(contiguous)])

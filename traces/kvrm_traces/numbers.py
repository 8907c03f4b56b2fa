"""Values of a column as whole numbers, at Arrow's speed where they are, one by one where they are not."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

#: Why a value is no usable count.
OK, MISSING, NOT_WHOLE, TOO_LARGE = 0, 1, 2, 3
REASONS = {MISSING: "missing", NOT_WHOLE: "not a whole number", TOO_LARGE: "too large"}

#: No count of tokens is larger; sums over a trace stay far from the end of int64.
LARGEST = 2**31 - 1


def whole_numbers(values: pa.Array) -> tuple[Ints, Codes]:
    """(numbers, codes) of a column; a number is 0 where its code is not OK. Whole floats ('374.0') count as whole."""
    if pa.types.is_string(values.type):
        numbers, codes = _plain(values) or _texts(values)
    elif pa.types.is_integer(values.type) and not pa.types.is_uint64(values.type):
        numbers, codes = _typed(values)
    elif pa.types.is_null(values.type):
        numbers, codes = np.zeros(len(values), np.int64), np.full(len(values), MISSING, np.int8)
    else:
        numbers, codes = _texts(as_text(values))
    large = ((numbers > LARGEST) | (numbers < -LARGEST)) & (codes == OK)
    codes[large] = TOO_LARGE
    numbers[large] = 0
    return numbers, codes


def as_text(values: pa.Array) -> pa.Array:
    """A column of any type as the text that a CSV would have; null stays null."""
    if pa.types.is_string(values.type):
        return values
    return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())


def _plain(values: pa.Array) -> tuple[Ints, Codes] | None:
    """Text that is decimal integers throughout; None when some of it is not (Arrow would read 0x10, too)."""
    if pc.any(pc.match_substring(values, "x")).as_py() or pc.any(pc.match_substring(values, "X")).as_py():
        return None
    try:
        return _typed(values.cast(pa.int64()))
    except pa.ArrowInvalid:
        return None


def _typed(values: pa.Array) -> tuple[Ints, Codes]:
    codes = np.where(values.is_null().to_numpy(zero_copy_only=False), MISSING, OK).astype(np.int8)
    return np.array(pc.fill_null(values, 0).cast(pa.int64()).to_numpy()), codes


def _texts(values: pa.Array) -> tuple[Ints, Codes]:
    plain = pc.fill_null(pc.match_substring_regex(values, r"^-?[0-9]{1,18}$"), False)
    usable = pc.if_else(plain, values, pa.scalar("0")).cast(pa.int64())
    numbers = np.array(usable.to_numpy())
    codes = np.zeros(len(values), np.int8)
    for at in np.flatnonzero(~plain.to_numpy(zero_copy_only=False)):
        numbers[at], codes[at] = _one(values[int(at)].as_py())
    return numbers, codes


def _one(text: str | None) -> tuple[int, int]:
    if text is None or not text.strip():
        return 0, MISSING
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return 0, NOT_WHOLE
    if value.is_finite() and value.adjusted() > 20:
        return 0, TOO_LARGE  # perhaps beyond what a Decimal's own operations hold
    if not value.is_finite() or (abs(value) <= LARGEST and value != value.to_integral_value()):
        return 0, NOT_WHOLE
    return (int(value), OK) if abs(value) <= LARGEST else (0, TOO_LARGE)

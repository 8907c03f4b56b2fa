"""Values of a column as times in int64 nanoseconds: dates, or numbers in a stated unit, without losing a digit.

Fractions are read as decimals, never through a float, so that milliseconds stay apart and epochs keep their
nanoseconds. Numbers that a JSON file holds as floats are rounded to the nearest nanosecond.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kvrm_traces.numbers import as_text
from kvrm_traces.readers.layout import NS, Unit

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

#: Why a value is no time. FAR: it is a number, but beyond what int64 nanoseconds hold.
OK, MISSING, NOT_A_TIME, NEGATIVE, FAR = 0, 1, 2, 3, 4

_ZONE = r"(Z|z|[+-]\d{2}(:?\d{2})?)$"
_MOST_NS = 2**63 - 1


def times_ns(values: pa.Array, unit: Unit) -> tuple[Ints, Codes]:
    """(ns, codes) of a column in the clock of the file; a time is 0 where its code is not OK."""
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64), np.full(len(values), MISSING, np.int8)
    if pa.types.is_timestamp(values.type):
        return _stamps(values.cast(pa.timestamp("ns", values.type.tz)))
    if unit == "datetime":
        return _dates(as_text(values))
    if pa.types.is_integer(values.type) and not pa.types.is_uint64(values.type):
        ns, codes = _whole(values, NS[unit])
    elif pa.types.is_floating(values.type):
        ns, codes = _floats(values, NS[unit])
    else:
        ns, codes = _number_texts(as_text(values), NS[unit])
    negative = (ns < 0) & (codes == OK)
    codes[negative] = NEGATIVE
    return ns, codes


def _coded(values: pa.Array) -> Codes:
    return np.where(values.is_null().to_numpy(zero_copy_only=False), MISSING, OK).astype(np.int8)


def _whole(values: pa.Array, unit_ns: int) -> tuple[Ints, Codes]:
    codes = _coded(values)
    numbers = pc.fill_null(values, 0).cast(pa.int64()).to_numpy()
    most = _MOST_NS // unit_ns
    far = (numbers > most) | (numbers < -most)
    codes[far] = FAR
    return np.where(far, 0, numbers) * unit_ns, codes


def _floats(values: pa.Array, unit_ns: int) -> tuple[Ints, Codes]:
    codes = _coded(values)
    scaled = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False).astype(np.float64) * unit_ns
    codes[np.isnan(scaled)] = MISSING
    codes[np.abs(scaled) >= float(_MOST_NS)] = FAR
    return np.rint(np.where(codes == OK, scaled, 0.0)).astype(np.int64), codes


def _number_texts(values: pa.Array, unit_ns: int) -> tuple[Ints, Codes]:
    if any(pc.any(pc.match_substring(values, letter)).as_py() for letter in "xX"):
        # Arrow would read 0x10 as 16.
        return _each_number(values, unit_ns)
    try:
        return _whole(values.cast(pa.int64()), unit_ns)
    except pa.ArrowInvalid:
        pass
    try:
        # With as many decimals as the unit has nanoseconds, the unscaled integer of a decimal is the time itself.
        return _decimals(values.cast(pa.decimal128(38, len(str(unit_ns)) - 1)))
    except pa.ArrowInvalid:
        return _each_number(values, unit_ns)


def _decimals(values: pa.Array) -> tuple[Ints, Codes]:
    codes = _coded(values)
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)[values.offset : values.offset + len(values)]
    low, high = words[:, 0], words[:, 1]
    codes[(high != (low >> 63)) & (codes == OK)] = FAR
    return np.where(codes == OK, low, 0), codes


def _each_number(values: pa.Array, unit_ns: int) -> tuple[Ints, Codes]:
    pairs = [_one_number(text, unit_ns) for text in values.to_pylist()]
    return np.array([ns for ns, _ in pairs], np.int64), np.array([code for _, code in pairs], np.int8)


def _one_number(text: str | None, unit_ns: int) -> tuple[int, int]:
    if text is None or not text.strip():
        return 0, MISSING
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return 0, NOT_A_TIME
    if value.is_nan():
        return 0, MISSING
    # By its exponent first: a product may be beyond what a Decimal holds.
    if value.is_infinite() or value.adjusted() > 20 or abs(value) * unit_ns >= _MOST_NS:
        return 0, FAR
    return round(value * unit_ns), OK


def _dates(values: pa.Array) -> tuple[Ints, Codes]:
    # A cast that fails costs twenty times one that does not: the first value says which to try.
    zone = "UTC" if len(values) and re.search(_ZONE, values[0].as_py() or "") else None
    try:
        return _stamps(values.cast(pa.timestamp("ns", zone)))
    except pa.ArrowInvalid:
        pass
    # Zones in some rows only, blanks, or values that are no dates: each kind apart.
    zoned = pc.fill_null(pc.match_substring_regex(values, _ZONE), False).to_numpy(zero_copy_only=False)
    ns, codes = np.zeros(len(values), np.int64), np.zeros(len(values), np.int8)
    for zone, rows in ((None, np.flatnonzero(~zoned)), ("UTC", np.flatnonzero(zoned))):
        part = values.take(pa.array(rows))
        try:
            ns[rows], codes[rows] = _stamps(part.cast(pa.timestamp("ns", zone)))
        except pa.ArrowInvalid:
            for row, value in zip(rows, part, strict=True):
                ns[row], codes[row] = _one_date(value, zone)
    return ns, codes


def _stamps(values: pa.Array) -> tuple[Ints, Codes]:
    return np.array(pc.fill_null(values.cast(pa.int64()), 0).to_numpy()), _coded(values)


def _one_date(value: pa.Scalar, zone: str | None) -> tuple[int, int]:
    text = (value.as_py() or "").strip()
    if not text or text.lower() in ("nan", "nat", "null", "none"):
        return 0, MISSING
    try:
        return pa.array([text]).cast(pa.timestamp("ns", zone))[0].value, OK
    except pa.ArrowInvalid:
        return 0, NOT_A_TIME

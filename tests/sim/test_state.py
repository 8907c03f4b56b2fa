"""The records that the core works on: names that interpreted and compiled code see alike."""

from __future__ import annotations

import numpy as np
import pytest

from kvrm_sim import state as st
from kvrm_sim.columns import POOL_RECORD

RECORDS = {
    name: getattr(st, name)
    for name in (
        "PARAMS", "SCALARS", "REQUESTS", "ROWS", "BLOCKS", "ARRIVALS", "STEP", "OUT", "WINDOWS", "POOL_SAMPLES",
        "EVENTS", "TALLY",
    )
} | {"POOL_RECORD": POOL_RECORD}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_no_field_is_named_like_an_attribute_of_numpy_scalars(name: str) -> None:
    """``record.size`` would be numpy's in interpreted code, and the field in compiled code."""
    assert not set(RECORDS[name].names or ()) & set(dir(np.record)), name


def test_the_list_of_records_is_complete() -> None:
    found = {name for name, value in vars(st).items() if isinstance(value, np.dtype)}
    assert found == set(RECORDS) - {"POOL_RECORD"}


@pytest.mark.parametrize("name", sorted(set(RECORDS) - {"POOL_RECORD"}))
def test_a_field_reads_and_writes_as_an_attribute(name: str) -> None:
    records = np.zeros(1, RECORDS[name])
    record = records[0]
    for value, field in enumerate(RECORDS[name].names or ()):
        setattr(record, field, value)
        assert records[field][0] == getattr(record, field) == value


def test_every_field_is_eight_bytes_but_block_ids_and_counts() -> None:
    """E08: nothing that counts time, tokens or bytes is narrower than int64; ids and counts of blocks fit int32."""
    small = set()
    for name, dtype in RECORDS.items():
        kinds = {field: dtype[field].base for field in dtype.names or ()}
        assert set(kinds.values()) <= {np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.int32)}, name
        small |= {(name, field) for field, kind in kinds.items() if kind == np.int32}
    assert small == {("BLOCKS", field) for field in (st.BLOCKS.names or ()) if field not in ("key", "mark")}
    assert st.BLOCKS.itemsize == 64

"""The table of arrays that compiled code reads refuses what would be misread there."""

from __future__ import annotations

import numpy as np
import pytest

from kvrm_sim import state as st
from kvrm_sim.bundle import LAYOUT, Bundle
from tests.sim.small_replays import core, paged


def small_arrays() -> st.Arrays:
    arrays: st.Arrays = core(paged(), (0, 3, 2)).replica.arrays
    return arrays


def test_every_array_of_a_replica_has_its_dtype_and_dimensions() -> None:
    arrays = small_arrays()
    assert tuple(LAYOUT) == arrays._fields
    for name, array in zip(arrays._fields, arrays, strict=True):
        assert (array.dtype, array.ndim) == LAYOUT[name][1:], name


@pytest.mark.parametrize(
    "array",
    [np.zeros(4, np.int32), np.zeros((4, 2), np.int64), np.zeros(8, np.int64)[::2]],
    ids=["dtype", "dimensions", "strided"],
)
def test_an_array_that_compiled_code_would_misread_is_refused(array: st.Ints) -> None:
    with pytest.raises(TypeError, match=r"array 'ids': .*; should be int64 of 1, without gaps"):
        Bundle(small_arrays()).put("ids", array)

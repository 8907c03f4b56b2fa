"""The external sort against numpy's, with runs and stretches small enough to have many of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrm_traces import sorting
from kvrm_traces.parquet import open_writer
from kvrm_traces.schema import schema_of

SCHEMA = schema_of(("arrival_ns", "prompt_tokens", "output_tokens"))


@given(
    arrivals=st.lists(st.integers(0, 60), min_size=1, max_size=300),
    group_rows=st.integers(1, 40),
    stretch_rows=st.integers(1, 50),
)
def test_it_is_the_stable_sort(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[int], group_rows: int, stretch_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("sort")
    place = np.arange(len(arrivals)) + 1
    table = pa.table([pa.array(arrivals, pa.int64()), pa.array(place), pa.array(place)], schema=SCHEMA)
    with open_writer(folder / "in.parquet", SCHEMA) as writer:
        writer.write_table(table, row_group_size=group_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "_STRETCH_ROWS", stretch_rows)
        patch.setattr(sorting, "_SAMPLED", 1)
        patch.setattr(sorting, "ROW_GROUP_ROWS", 1 << 17)
        sorting.sort_by_arrival(folder / "in.parquet", folder / "out.parquet", SCHEMA)
    order = np.argsort(arrivals, kind="stable")
    assert pq.read_table(folder / "out.parquet").equals(table.take(pa.array(order)))
    assert sorted(path.name for path in folder.iterdir()) == ["in.parquet", "out.parquet"]

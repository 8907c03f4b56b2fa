"""Parts of a table are what the whole table has there."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvrm_analysis.reading import columns, rows
from kvrm_analysis.runs import NamedRun
from kvrm_sim.errors import InputError
from tests.analysis.made_up_runs import made_up_run


@pytest.fixture
def run(tmp_path: Path) -> NamedRun:
    """A run whose steps lie in row groups of 7."""
    made = made_up_run("kv-rm")
    pq.write_table(made.steps, tmp_path / "steps.parquet", row_group_size=7)
    return NamedRun("made up", made, tmp_path)


@pytest.mark.parametrize(("first", "last"), [(0, 100), (0, 1), (6, 8), (7, 14), (13, 55), (99, 100), (5, 5)])
def test_rows_are_those_of_the_table(run: NamedRun, first: int, last: int) -> None:
    assert rows(run, "steps", first, last).equals(run.steps.slice(first, last - first))
    assert rows(NamedRun("in memory", run.run), "steps", first, last).equals(run.steps.slice(first, last - first))


def test_columns_are_those_that_there_are(run: NamedRun) -> None:
    assert columns(run, "steps", ["waiting", "no such column"]).equals(run.steps.select(["waiting"]))
    assert columns(NamedRun("in memory", run.run), "pool", ["time_ns"]).num_rows == 0


def test_a_file_that_is_not_there_is_named(run: NamedRun) -> None:
    with pytest.raises(InputError, match=r"requests\.parquet: cannot be read"):
        columns(run, "requests", ["row"])

"""The PagedAttention study: the published order, and shares near the published ones."""

from __future__ import annotations

import pandas as pd
import pytest

from kvrm_analysis.published import frame_markdown, kv_memory_shares
from kvrm_sim.errors import WorkError
from kvrm_traces import open_trace


@pytest.fixture(scope="module")
def shares() -> pd.DataFrame:
    return kv_memory_shares()


def test_waste_falls_from_max_to_pow2_to_oracle_to_paged(shares: pd.DataFrame) -> None:
    assert list(shares.index) == ["orca-max", "orca-pow2", "orca-oracle", "graph-paged"]
    for column in ("tokens_percent", "tokens_of_reserved_percent", "requests_running_mean"):
        assert shares[column].is_monotonic_increasing


def test_shares_are_near_those_of_the_paper(shares: pd.DataFrame) -> None:
    """Fig. 2 of arXiv:2309.06180, percent of the whole KV memory that holds tokens."""
    assert shares["paper_tokens_percent"].to_list() == [20.4, 26.8, 38.2, 96.3]
    assert (shares["tokens_percent"] - shares["paper_tokens_percent"]).abs().max() < 3


def test_tokens_are_within_what_is_held_and_held_within_the_pool(shares: pd.DataFrame) -> None:
    assert (shares["tokens_percent"] <= shares["held_percent"]).all()
    assert (shares["reserved_percent"] <= shares["held_percent"] + 1e-9).all()
    assert (shares["held_percent"] <= 100).all()


def test_a_load_that_saturates_nothing_is_said() -> None:
    with pytest.raises(WorkError, match="orca-max: no request ever waited"):
        kv_memory_shares(open_trace("sharegpt-like", rows=3))


def test_the_table_as_markdown() -> None:
    frame = pd.DataFrame({"share": [20.06, 3.0], "name": ["a", "b"]}, index=pd.Index(["x", "y"], name="policy"))
    assert frame_markdown(frame) == "| policy | share | name |\n|---|---|---|\n| x | 20.1 | a |\n| y | 3.0 | b |\n"

"""The share of prompt tokens that were found cached."""

from __future__ import annotations

import numpy as np
import pytest

from kvrm_analysis.sharing import hit_share
from kvrm_sim.columns import request_table
from kvrm_sim.state import NONE, OUT


def test_the_share_is_of_the_prompts_that_were_admitted() -> None:
    out = np.zeros(3, OUT)
    out["prompt_tokens"] = (100, 300, 5000)
    out["hit_tokens"] = (0, 64, NONE)  # the last was never admitted
    assert hit_share(request_table(out)) == pytest.approx(64 / 400)


def test_nobody_admitted_is_no_share() -> None:
    out = np.zeros(1, OUT)
    out["hit_tokens"] = NONE
    assert hit_share(request_table(out)) is None
    assert hit_share(request_table(out[:0])) is None

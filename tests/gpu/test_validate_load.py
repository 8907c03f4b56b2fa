"""The load of a validation: a trace cut to the scale, with its gaps and what its prompts have in common."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvrm_gpu.validate_load import Load
from kvrm_sim.errors import InputError
from kvrm_traces import open_trace
from tests.gpu.small_scale import SMALL
from tests.gpu.small_validation import hashed_trace


def test_a_load_keeps_the_gaps_of_the_trace_and_fits_the_scale() -> None:
    load = Load.of(open_trace("azure-conv-like", seed=0, rows=50), SMALL, 50)
    assert (load.arrivals["prompt_tokens"] + load.arrivals["output_tokens"] <= SMALL.limit_tokens).all()
    assert load.arrivals["output_tokens"].min() >= 1
    fast, slow = (load.at_rate(rate).arrivals["arrival_ns"].astype(float) for rate in (100.0, 50.0))
    assert slow[-1] == pytest.approx(49 / 50.0 * 1e9, rel=1e-6)
    assert np.allclose(slow, 2 * fast, atol=2)
    wide = replace(SMALL, limit_tokens=1 << 20, length_divisor=1)
    assert Load.of(open_trace("azure-conv-like", seed=0, rows=50), wide, 50).arrivals["prompt_tokens"].sum() > 0


def test_hash_blocks_that_the_scale_cannot_divide_are_refused(tmp_path: Path) -> None:
    trace = hashed_trace(tmp_path, 500)
    with pytest.raises(InputError, match="hash blocks of 500 tokens cannot be divided by 32, as scale 'small'"):
        Load.of(trace, SMALL, 18, with_ids=True)
    assert Load.of(trace, SMALL, 18).hash_block_tokens is None


def test_a_load_keeps_what_its_prompts_have_in_common(tmp_path: Path) -> None:
    load = Load.of(hashed_trace(tmp_path), SMALL, 18, with_ids=True)
    prompts = load.prompts(97, 0)
    first, second = (prompts(row, int(load.arrivals[row]["prompt_tokens"])).tolist() for row in (0, 3))
    assert len(first) == 13  # 412 tokens divided by 32
    assert second[:13] == first
    assert load.hash_block_tokens == 16
    assert load.arrivals["num_ids"].sum() == len(load.ids)

"""The product's mask of far history is that of the tests' own oracle, and tokens under it are compared as others."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kvrm_gpu.far_mask import FarView
from kvrm_gpu.llama import Llama
from kvrm_gpu.prompts import random_prompt
from kvrm_gpu.reference_tokens import TokenCheck
from kvrm_sim import state as st
from kvrm_sim.policy_parts import FarHistory
from tests.gpu.far_oracle import BLOCK, Life, mask_of
from tests.gpu.plain_llama import logits
from tests.gpu.served import MODEL


@pytest.mark.parametrize("seed", range(30))
def test_masks_are_those_of_the_oracle(seed: int) -> None:
    draw = random.Random(seed)
    far = FarHistory(window_tokens=BLOCK * draw.randint(1, 3), summary_blocks=draw.randint(0, 2))
    view = FarView(BLOCK, far.blocks(BLOCK), far.summary_blocks, {})
    chunks = [draw.randint(1, 17) for _ in range(draw.randint(1, 4))]
    decoded = draw.randint(0, 20)
    life = Life(far)
    for tokens in chunks:
        life.prefill(tokens, sum(chunks))
    for _ in range(decoded):
        life.decode()
    wanted = np.zeros((len(life.keys), len(life.keys)), np.bool_)
    for query, keys in enumerate(life.keys):
        wanted[query, sorted(keys)] = True
    assert np.array_equal(view.mask(chunks, sum(chunks) + decoded), wanted)


def test_admissions_share_out_the_tokens_that_they_delivered() -> None:
    """Prompt of 6: preempted after 3 tokens, then in the middle of its prompt, then once more when it had 5."""
    prefills = [(0, 4, 6), (4, 2, 6), (0, 8, 9), (0, 5, 9), (5, 4, 9), (0, 11, 11)]
    view = FarView(BLOCK, 3, 1, {0: prefills})
    assert list(view.admissions(0, 15)) == [(6, 9, (4, 2)), (9, 11, (5, 4)), (11, 15, (11,))]
    assert list(view.admissions(1, 15)) == []


def test_tokens_are_compared_with_a_masked_forward() -> None:
    """What a window of one block gives is right under its mask, and some of it wrong under any other."""
    llama, prompt = Llama(MODEL, torch.device("cpu"), 0), random_prompt(MODEL.vocab_size, 4)
    start = prompt(0, 23).tolist()
    far = FarHistory(window_tokens=BLOCK, summary_blocks=1)
    life = Life(far)
    life.prefill(14, 23)
    life.prefill(9, 23)
    sequence = list(start)
    for _ in range(12):
        sequence.append(likeliest(llama, sequence, life.keys))
        life.decode()
    check = TokenCheck(llama, st.arrivals(np.array([(0, 23, 12)])), prompt)
    prefills = {0: [(0, 14, 23), (14, 9, 23)]}
    assert check.mismatches({0: sequence}, FarView(BLOCK, 2, 1, prefills)) == 0
    assert check.mismatches({0: sequence}) > 0
    assert check.mismatches({0: sequence}, FarView(BLOCK, 3, 1, prefills)) > 0
    assert check.mismatches({0: sequence}, FarView(BLOCK, 2, 0, prefills)) > 0
    assert check.mismatches({0: sequence}, FarView(BLOCK, 2, 1, {0: [(0, 23, 23)]})) > 0
    assert check.mismatches({0: sequence}, FarView(BLOCK, 2, 1, {})) == 12
    wrong = [*sequence[:-1], sequence[-1] ^ 1]
    assert check.mismatches({0: wrong}, FarView(BLOCK, 2, 1, prefills)) == 1


def likeliest(llama: Llama, sequence: list[int], keys: list[set[int]]) -> int:
    return int(logits(llama, sequence, mask_of(keys))[-1].argmax())

"""Prompts for executed requests: random tokens, the same for the same request, whatever the policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def random_prompt(vocab_size: int, seed: int) -> Callable[[int, int], NDArray[np.int64]]:
    """Prompts by request row: int64 [tokens], the same tokens for the same row and seed."""

    def prompt(row: int, tokens: int) -> NDArray[np.int64]:
        return np.random.default_rng((seed, row)).integers(0, vocab_size, tokens)

    return prompt

"""Prompts for the device: nobody's text, drawn again alike for every run and policy that is to be compared.

Where a trace has prefix hashes, equal ids are equal tokens: each hash block is drawn from its id. An id stands for the
whole prefix up to the end of its block, so prompts that have an id in common have every token before it in common.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st


def random_prompt(vocab_size: int, seed: int) -> Callable[[int, int], NDArray[np.int64]]:
    """Prompts by request row, int64 [tokens]: the same tokens for the same row, whatever the policy."""

    def prompt(row: int, tokens: int) -> NDArray[np.int64]:
        return np.random.default_rng((seed, row)).integers(0, vocab_size, tokens)

    return prompt


def hashed_prompt(
    vocab_size: int, seed: int, arrivals: st.Records, ids: NDArray[np.int64], block_tokens: int
) -> Callable[[int, int], NDArray[np.int64]]:
    """As :func:`random_prompt`, hash blocks of ``block_tokens`` tokens drawn from their ids, and the rest of a prompt
    from its row. ``arrivals``: ARRIVALS by request row, whose ``ids_at`` and ``num_ids`` count in ``ids`` int64.
    """
    rest = random_prompt(vocab_size, seed)

    def prompt(row: int, tokens: int) -> NDArray[np.int64]:
        first, count = int(arrivals[row]["ids_at"]), int(arrivals[row]["num_ids"])
        own = ids[first : first + min(count, -(-tokens // block_tokens))].tolist()
        # Three numbers: no row's two are the same.
        blocks = [np.random.default_rng((seed, id_, 1)).integers(0, vocab_size, block_tokens) for id_ in own]
        drawn = np.concatenate(blocks)[:tokens] if blocks else np.zeros(0, np.int64)
        return np.concatenate((drawn, rest(row, tokens - len(drawn))))

    return prompt

"""Tokens without any cache: whole forward passes through the same weights, to compare what an executor delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from kvrm_gpu.llama import Llama, rms_norm
from kvrm_sim import state as st

#: A token that leads by less than this (in logits) may come out otherwise through other sums.
LEAST_LEAD = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}


class TokenCheck:
    """Compares runs of the same requests. A sequence that came out before is not computed again."""

    def __init__(self, model: Llama, arrivals: st.Records, prompt: Callable[[int, int], NDArray[np.int64]]) -> None:
        self._model = model
        self._arrivals = arrivals
        self._prompt = prompt
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def mismatches(self, sequences: Mapping[int, Sequence[int]]) -> int:
        """Delivered tokens that a plain forward would not have given, near ties apart.

        ``sequences``: prompt and delivered tokens by request row. A missing request, and one whose prompt is not its
        own, counts whole; tokens too many or too few count each.
        """
        wrong = 0
        for row in range(len(self._arrivals)):
            key = row, tuple(sequences.get(row, ()))
            if key not in self._known:
                self._known[key] = self._wrong(*key)
            wrong += self._known[key]
        return wrong

    def _wrong(self, row: int, known: tuple[int, ...]) -> int:
        """One causal pass over a whole sequence gives the next token after each of its prefixes."""
        arrival = self._arrivals[row]
        prompt_tokens, output_tokens = int(arrival["prompt_tokens"]), int(arrival["output_tokens"])
        if list(known[:prompt_tokens]) != self._prompt(row, prompt_tokens).tolist():
            return output_tokens
        excess = abs(prompt_tokens + output_tokens - len(known))
        if len(known) == prompt_tokens:
            return excess
        logits = _logits(self._model, torch.tensor(known[:-1], device=self._model.cosines.device))[prompt_tokens - 1 :]
        given = torch.tensor(known[prompt_tokens:], device=logits.device)
        behind = logits.amax(-1) - logits.gather(1, given[:, None])[:, 0]
        return excess + int((behind > LEAST_LEAD[self._model.dtype]).sum())


def _logits(model: Llama, tokens: torch.Tensor) -> torch.Tensor:
    """float32 [tokens, vocabulary], each token attending to all before it and itself."""
    positions = torch.arange(len(tokens), device=tokens.device)
    with torch.no_grad():
        hidden = model.embed(tokens)
        for layer in model.layers:
            query, key, value = model.project(layer, hidden, positions)
            ratio = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(ratio, 1), value.repeat_interleave(ratio, 1)
            attended = functional.scaled_dot_product_attention(
                query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), is_causal=True
            )
            hidden = model.finish_layer(layer, hidden, attended.transpose(0, 1))
        return functional.linear(rms_norm(hidden, model.final_norm), model.head).float()

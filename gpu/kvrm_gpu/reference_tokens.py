"""Tokens without any cache: whole forward passes through the same weights, to compare what an executor delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from kvrm_gpu.llama import Llama, rms_norm
from kvrm_sim import state as st

#: A token that leads by less than this (in logits) may come out otherwise through other sums in float32.
LEAST_LEAD = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}


def mismatches(
    model: Llama,
    sequences: Mapping[int, list[int]],
    arrivals: st.Records,
    prompt: Callable[[int, int], NDArray[np.int64]],
) -> int:
    """Delivered tokens that a plain forward would not have given, near ties apart.

    ``sequences``: by row of ``arrivals``, prompt and delivered tokens. One causal pass over a whole sequence gives the
    next token after each of its prefixes. A prompt that is not the request's, or a length that is not, counts whole.
    """
    wrong = 0
    for at, arrival in enumerate(arrivals):
        known = sequences.get(at)
        prompt_tokens, output_tokens = int(arrival["prompt_tokens"]), int(arrival["output_tokens"])
        if known is None or known[:prompt_tokens] != prompt(at, prompt_tokens).tolist():
            wrong += output_tokens
            continue
        if len(known) != prompt_tokens + output_tokens:
            wrong += abs(prompt_tokens + output_tokens - len(known))
        logits = _logits(model, torch.tensor(known[:-1], device=model.cosines.device))[prompt_tokens - 1 :]
        given = torch.tensor(known[prompt_tokens:], device=logits.device)
        behind = logits.amax(-1) - logits.gather(1, given[:, None])[:, 0]
        wrong += int((behind > LEAST_LEAD[model.dtype]).sum())
    return wrong


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

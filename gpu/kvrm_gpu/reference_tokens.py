"""Tokens without any cache: whole forward passes through the same weights, to compare what an executor delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from kvrm_gpu.far_mask import FarView
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
        self._known: dict[tuple[object, ...], int] = {}

    def mismatches(self, sequences: Mapping[int, Sequence[int]], far: FarView | None = None) -> int:
        """Delivered tokens that a plain forward would not have given, near ties apart.

        ``sequences``: prompt and delivered tokens by request row. A missing request, and one whose prompt is not its
        own, counts whole; tokens too many or too few count each. ``far``: what each token saw, if not everything
        before it.
        """
        wrong = 0
        for row in range(len(self._arrivals)):
            known = tuple(sequences.get(row, ()))
            if far is None:
                key: tuple[object, ...] = row, known
            else:
                key = row, known, far.block_size, far.kept_blocks, far.summary_blocks, tuple(far.prefills.get(row, ()))
            if key not in self._known:
                self._known[key] = self._wrong(row, known, far)
            wrong += self._known[key]
        return wrong

    def _wrong(self, row: int, known: tuple[int, ...], far: FarView | None) -> int:
        """One pass over a whole sequence gives the next token after each of its prefixes."""
        arrival = self._arrivals[row]
        prompt_tokens, output_tokens = int(arrival["prompt_tokens"]), int(arrival["output_tokens"])
        if list(known[:prompt_tokens]) != self._prompt(row, prompt_tokens).tolist():
            return output_tokens
        excess = abs(prompt_tokens + output_tokens - len(known))
        if len(known) == prompt_tokens:
            return excess
        if far is None:
            return excess + self._behind(known, prompt_tokens, None)
        admissions = list(far.admissions(row, len(known)))
        unseen = len(known) - prompt_tokens - sum(end - first for first, end, _ in admissions)
        masks = ((known[:end], first, far.mask(chunks, end - 1)) for first, end, chunks in admissions)
        return excess + unseen + sum(self._behind(*masked) for masked in masks)

    def _behind(self, known: tuple[int, ...], first: int, mask: NDArray[np.bool_] | None) -> int:
        """Tokens from ``first`` on that are too far behind the likeliest."""
        device = self._model.cosines.device
        seen = None if mask is None else torch.from_numpy(mask).to(device)
        logits = _logits(self._model, torch.tensor(known[:-1], device=device), seen)[first - 1 :]
        given = torch.tensor(known[first:], device=device)
        behind = logits.amax(-1) - logits.gather(1, given[:, None])[:, 0]
        return int((behind > LEAST_LEAD[self._model.dtype]).sum())


def _logits(model: Llama, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """float32 [tokens, vocabulary]; each token attends to all before it and itself, unless ``mask`` bool [tokens,
    tokens] says to what.
    """
    positions = torch.arange(len(tokens), device=tokens.device)
    with torch.no_grad():
        hidden = model.embed(tokens)
        for layer in model.layers:
            query, key, value = model.project(layer, hidden, positions)
            ratio = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(ratio, 1), value.repeat_interleave(ratio, 1)
            attended = functional.scaled_dot_product_attention(
                query.transpose(0, 1),
                key.transpose(0, 1),
                value.transpose(0, 1),
                attn_mask=mask,
                is_causal=mask is None,
            )
            hidden = model.finish_layer(layer, hidden, attended.transpose(0, 1))
        return functional.linear(rms_norm(hidden, model.final_norm), model.head).float()

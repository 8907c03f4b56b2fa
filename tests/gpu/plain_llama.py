"""The model without any cache: every token from a whole forward pass, written apart from kvrm_gpu.llama."""

from __future__ import annotations

import torch

from kvrm_gpu.llama import Llama


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def rotate(x: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_dim], as complex numbers of the two halves."""
    tokens, _, size = x.shape
    frequency = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.polar(torch.ones(tokens, size // 2).double(), torch.arange(tokens)[:, None] * frequency)
    turned = torch.complex(x[..., : size // 2].double(), x[..., size // 2 :].double()) * angle[:, None]
    return torch.cat((turned.real, turned.imag), -1)


def logits(model: Llama, tokens: list[int], mask: torch.Tensor | None = None) -> torch.Tensor:
    """float64 [tokens, vocabulary]. ``mask`` [tokens, tokens] is added to the scores; causal unless given."""
    spec = model.spec
    x = model.embedding.double()[torch.tensor(tokens)]
    causal = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1) if mask is None else mask
    for layer in model.layers:
        fused = norm(x, layer.attention_norm.double()) @ layer.qkv.double().T
        q, k, v = fused.split([spec.query_size, spec.kv_size, spec.kv_size], -1)
        q = rotate(q.view(-1, spec.heads, spec.head_dim))
        k = rotate(k.view(-1, spec.kv_heads, spec.head_dim))
        v = v.view(-1, spec.kv_heads, spec.head_dim)
        heads = []
        for head in range(spec.heads):
            group = head // (spec.heads // spec.kv_heads)
            score = q[:, head] @ k[:, group].T / spec.head_dim**0.5 + causal
            heads.append(score.softmax(-1) @ v[:, group])
        x = x + torch.cat(heads, -1) @ layer.output.double().T
        gate, up = (norm(x, layer.mlp_norm.double()) @ layer.gate_up.double().T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ layer.down.double().T
    return norm(x, model.final_norm.double()) @ model.head.double().T


def next_token(model: Llama, tokens: list[int]) -> tuple[int, float]:
    """(the likeliest token after these, by how much it leads), in float64."""
    best = logits(model, tokens)[-1].topk(2)
    return int(best.indices[0]), float(best.values[0] - best.values[1])


def continuation(model: Llama, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """(greedy tokens after a prompt, the narrowest lead of any)."""
    known, narrowest = list(prompt), float("inf")
    for _ in range(tokens):
        token, lead = next_token(model, known)
        known.append(token)
        narrowest = min(narrowest, lead)
    return known[len(prompt) :], narrowest

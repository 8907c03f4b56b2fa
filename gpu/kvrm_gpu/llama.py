"""A small Llama-shaped model with random weights: what a step costs besides attention, and tokens to compare.

Modelled: RMSNorm, rotary positions, grouped queries, a gated MLP (SwiGLU), an LM head. Sizes come from a ModelSpec.
Left out: trained weights, tensor parallelism, and shapes that are not Llama's (refused).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from kvrm_gpu.kv_pool import DTYPES
from kvrm_sim.errors import ConfigError
from kvrm_sim.model import ModelSpec

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, as [out, in]; queries, keys and values are one product, gate and up another."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Llama:
    """Random weights of a model's sizes, drawn from ``seed``. Raises ConfigError for what is not Llama-shaped."""

    def __init__(self, spec: ModelSpec, device: torch.device, seed: int = 0) -> None:
        _check(spec)
        self.spec = spec
        self.dtype = DTYPES[spec.dtype]
        generator = torch.Generator(device=device).manual_seed(seed)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            drawn = torch.randn(rows, columns, generator=generator, device=device) * columns**-0.5
            return drawn.to(self.dtype)

        def vector(size: int) -> torch.Tensor:
            drawn = 1 + 0.1 * torch.randn(size, generator=generator, device=device)
            return drawn.to(self.dtype)

        fused = spec.query_size + 2 * spec.kv_size
        self.embedding = matrix(spec.vocab_size, spec.hidden_size) * spec.hidden_size**0.5
        self.layers = [
            Layer(
                attention_norm=vector(spec.hidden_size),
                qkv=matrix(fused, spec.hidden_size),
                qkv_bias=vector(fused) if spec.qkv_bias else None,
                output=matrix(spec.hidden_size, spec.query_size),
                mlp_norm=vector(spec.hidden_size),
                gate_up=matrix(2 * spec.intermediate_size, spec.hidden_size),
                down=matrix(spec.hidden_size, spec.intermediate_size),
            )
            for _ in range(spec.layers)
        ]
        self.final_norm = vector(spec.hidden_size)
        self.head = self.embedding if spec.tied_embeddings else matrix(spec.vocab_size, spec.hidden_size)
        self.cosines, self.sines = _rotary_tables(spec, device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, hidden] of tokens int64 [rows]."""
        return self.embedding[tokens]

    def project(
        self, layer: Layer, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [rows, heads, head_dim], key and value [rows, kv_heads, head_dim] at ``positions`` int64 [rows]."""
        spec = self.spec
        fused = functional.linear(rms_norm(hidden, layer.attention_norm), layer.qkv, layer.qkv_bias)
        fused = fused.view(len(hidden), spec.heads + 2 * spec.kv_heads, spec.head_dim)
        rotated = self._rotate(fused[:, : spec.heads + spec.kv_heads], positions)
        return rotated[:, : spec.heads], rotated[:, spec.heads :], fused[:, spec.heads + spec.kv_heads :]

    def _rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosine, sine = self.cosines[positions][:, None], self.sines[positions][:, None]
        low, high = heads.float().chunk(2, dim=-1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1).to(heads.dtype)

    def finish_layer(self, layer: Layer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of a layer after attention [rows, heads, head_dim]: output projection and MLP, both residual."""
        hidden = hidden + functional.linear(attended.flatten(1), layer.output)
        gate, up = functional.linear(rms_norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return hidden + functional.linear(functional.silu(gate) * up, layer.down)

    def greedy(self, hidden: torch.Tensor) -> torch.Tensor:
        """The likeliest next token, int64 [rows]."""
        return functional.linear(rms_norm(hidden, self.final_norm), self.head).float().argmax(-1)


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Root mean square norm over the last dimension, computed in float32."""
    single = hidden.float()
    normed = single * torch.rsqrt(single.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return normed.to(hidden.dtype) * weight


def _rotary_tables(spec: ModelSpec, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    half = torch.arange(0, spec.head_dim, 2, device=device, dtype=torch.float64) / spec.head_dim
    positions = torch.arange(spec.max_context_tokens, device=device, dtype=torch.float64)
    angles = torch.outer(positions, ROTARY_BASE**-half)
    return angles.cos().float(), angles.sin().float()


def _check(spec: ModelSpec) -> None:
    wrong = {
        "model.gated_mlp": (spec.gated_mlp, True),
        "model.other_biases": (spec.other_biases, False),
        "model.position_rows": (spec.position_rows, 0),
        "model.kv_dtype": (spec.kv_dtype, spec.dtype),
    }
    for key, (value, wanted) in wrong.items():
        if value != wanted:
            raise ConfigError(
                f"{key} = {value!r}: the device runs Llama-shaped models, with {key} = {wanted!r}", key, value
            )
    if spec.dtype not in DTYPES:
        message = f"model.dtype = {spec.dtype!r}: the device runs {', '.join(DTYPES)}"
        raise ConfigError(message, "model.dtype", spec.dtype)

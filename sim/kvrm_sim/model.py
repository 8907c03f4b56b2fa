"""ModelSpec: the sizes of a decoder-only transformer that memory and cost depend on.

Modelled: dense Llama-shaped (RMSNorm, RoPE, gated MLP) and OPT-shaped (LayerNorm, learned positions, two-matrix MLP)
decoders with multi-head or grouped-query attention over the full context. Left out: sliding windows (refused),
mixtures of experts, latent attention (pass ``kv_bytes_per_token`` to the replica), quantised weights.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from pydantic import Field, StrictBool, StrictInt, model_validator

from kvrm_sim.errors import ConfigError
from kvrm_sim.tables import PositiveInt, Table

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "float8"]
DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


class ModelSpec(Table):
    """Sizes of one model, from its published configuration."""

    section: ClassVar[str] = "model"

    name: str = Field(min_length=1)
    #: Where the sizes were published.
    source: str = Field(min_length=1)
    layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    #: Prompt and output together.
    max_context_tokens: PositiveInt
    dtype: Dtype = "bfloat16"
    kv_dtype: Dtype = "bfloat16"
    #: Three matrices (gate, up, down) against two.
    gated_mlp: StrictBool = True
    tied_embeddings: StrictBool = False
    qkv_bias: StrictBool = False
    #: Biases on the output projection, the MLP and the norms (OPT).
    other_biases: StrictBool = False
    #: Rows of a learned position table; 0 for rotary positions.
    position_rows: StrictInt = Field(default=0, ge=0)
    #: Tokens of a sliding window; only None (full attention) is modelled.
    sliding_window_tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _supported(self) -> ModelSpec:
        if self.sliding_window_tokens is not None:
            raise ValueError(
                f"model.sliding_window_tokens = {self.sliding_window_tokens}: sliding windows are not modelled, and "
                "full attention would overstate memory and reads; leave it out only where the model attends to all of "
                "its context"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"model.heads = {self.heads} should be a multiple of model.kv_heads = {self.kv_heads}")
        return self

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return DTYPE_BYTES[self.dtype]

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together, before any replication."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of one layer's matrix products: 2 flops each for every token."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        return attention + (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size

    @property
    def head_parameters(self) -> int:
        """Weights of the LM head's matrix product, tied or not."""
        return self.hidden_size * self.vocab_size

    @property
    def parameters(self) -> int:
        """All weights, as published."""
        return self.rank_parameters(1, 0)

    def rank_parameters(self, tensor_parallel: int, rank: int) -> int:
        """Weights on one rank: matrices and vocabulary are split, norms, output biases and positions are replicated."""
        self.check_tensor_parallel(tensor_parallel)
        query = self.query_size // tensor_parallel
        key_value = self.rank_kv_heads(tensor_parallel) * self.head_dim
        inner = self.intermediate_size // tensor_parallel
        layer = self.hidden_size * (2 * query + 2 * key_value) + (3 if self.gated_mlp else 2) * self.hidden_size * inner
        norm = self.hidden_size * (2 if self.other_biases else 1)
        layer += 2 * norm
        if self.qkv_bias:
            layer += query + 2 * key_value
        if self.other_biases:
            layer += 2 * self.hidden_size + inner * (2 if self.gated_mlp else 1)
        vocabulary = self.vocab_size // tensor_parallel + (rank < self.vocab_size % tensor_parallel)
        embeddings = self.hidden_size * vocabulary * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + norm + self.position_rows * self.hidden_size

    def rank_kv_heads(self, tensor_parallel: int) -> int:
        """KV heads that one rank holds: one each, replicated, when there are more ranks than heads."""
        return max(1, self.kv_heads // tensor_parallel)

    def kv_bytes_per_token(self, tensor_parallel: int = 1) -> int:
        """KV bytes of one token on one rank, over all layers (DESIGN section 6)."""
        self.check_tensor_parallel(tensor_parallel)
        return self.layers * 2 * self.rank_kv_heads(tensor_parallel) * self.head_dim * DTYPE_BYTES[self.kv_dtype]

    def check_tensor_parallel(self, tensor_parallel: int) -> None:
        """Raise ``ConfigError`` for a degree that does not split this model evenly."""
        for what, size in (("heads", self.heads), ("intermediate_size", self.intermediate_size)):
            if size % tensor_parallel:
                raise self._does_not_split(tensor_parallel, f"{what} = {size}, which it does not divide")
        many, few = max(self.kv_heads, tensor_parallel), min(self.kv_heads, tensor_parallel)
        if many % few:
            problem = f"kv_heads = {self.kv_heads}, and one should be a multiple of the other"
            raise self._does_not_split(tensor_parallel, problem)

    def _does_not_split(self, tensor_parallel: int, problem: str) -> ConfigError:
        message = f"tensor_parallel = {tensor_parallel}: model {self.name!r} has {problem}"
        return ConfigError(message, "tensor_parallel", tensor_parallel)

"""The KV pool on the device: every block of every layer, in either layout of DESIGN section 5.

Block 0 is the null block: the pager gives out ids from 1, and all padding points at it. Whatever the layout,
:meth:`KvPool.layers` shows it as [layers, blocks, 2, block_size, kv_heads, head_dim] (keys, then values); kernels
take the distance between blocks as a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from kvrm_gpu.backend import Backend
from kvrm_sim.model import ModelSpec

Layout: TypeAlias = Literal["layer_major", "block_major"]
NULL_BLOCK = 0

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class KvShape:
    """What one block of one layer holds."""

    layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: ModelSpec, block_size: int) -> KvShape:
        """The shape of a model's KV. Raises ValueError for a dtype that the kernels do not take."""
        if model.kv_dtype not in DTYPES:
            raise ValueError(f"model.kv_dtype = {model.kv_dtype!r}: the kernels take {', '.join(DTYPES)}")
        return cls(
            layers=model.layers,
            block_size=block_size,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            dtype=DTYPES[model.kv_dtype],
        )

    @property
    def block(self) -> tuple[int, int, int, int]:
        """The shape of one block of one layer."""
        return (2, self.block_size, self.kv_heads, self.head_dim)


class KvPool:
    """``storage`` of ``blocks`` blocks (the null block is one more), zeroed.

    layer_major: [layers, blocks + 1, *block]: runs of blocks are contiguous inside a layer. block_major: [blocks + 1,
    layers, *block]: a block is one extent over all layers.
    """

    def __init__(self, backend: Backend, shape: KvShape, blocks: int, layout: Layout = "layer_major") -> None:
        self.shape = shape
        self.layout = layout
        self.num_blocks = blocks + 1
        outer = (shape.layers, self.num_blocks) if layout == "layer_major" else (self.num_blocks, shape.layers)
        self.storage = self._allocate(backend, (*outer, *shape.block))
        self._layers = self.storage if layout == "layer_major" else self.storage.transpose(0, 1)

    def _allocate(self, backend: Backend, shape: tuple[int, ...]) -> torch.Tensor:
        return backend.zeros(shape, self.shape.dtype)

    @property
    def layers(self) -> torch.Tensor:
        """All of it, [layers, blocks, *block], whatever the layout."""
        return self._layers

    def layer(self, index: int) -> torch.Tensor:
        """One layer, [blocks, *block]."""
        return self._layers[index]

    def poison(self, blocks: torch.Tensor) -> None:
        """Fill blocks with NaN: for tests, which do so to the null block and to whatever is free."""
        self.layers[:, blocks] = float("nan")


class Staging(KvPool):
    """Where history is gathered to: stage row r holds blocks [r * width, (r + 1) * width).

    Layer scope holds one layer (``layers`` = 1), model scope all of them. There is no null block; padding is skipped.
    """

    def __init__(self, backend: Backend, shape: KvShape, rows: int, width: int, layout: Layout = "layer_major") -> None:
        super().__init__(backend, shape, rows * width - 1, layout)
        self.rows = rows
        self.width = width


class HostPool(KvPool):
    """Blocks in pinned host memory, for what leaves the device. Has a null block too, so that ids mean the same."""

    def _allocate(self, backend: Backend, shape: tuple[int, ...]) -> torch.Tensor:
        return backend.pinned(shape, self.shape.dtype)

"""Chunked prefill, kernel by kernel: a chunk of a prompt is written to the pool and attends to itself and its prefix.

Shapes vary from chunk to chunk, so none of it is captured. The prefix is gathered through the row's pages and attended
to with torch's own attention. Left out: several rows in one launch (chunks of a step run one after another).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from kvrm_gpu.backend import Backend, Stream
from kvrm_gpu.commit import PinnedRing
from kvrm_gpu.errors import PackError
from kvrm_gpu.kv_pool import KvPool
from kvrm_gpu.llama import Llama


class Prefill:
    """Runs chunks of at most ``max_tokens`` with at most ``max_pages`` pages on one stream."""

    def __init__(
        self, backend: Backend, model: Llama, pool: KvPool, stream: Stream, *, max_tokens: int, max_pages: int
    ) -> None:
        self._backend = backend
        self._model = model
        self._pool = pool
        self._stream = stream
        self._max_tokens = max_tokens
        self._max_pages = max_pages
        num_bytes = 8 * (2 * max_tokens + max_pages)
        self._ring = PinnedRing(backend, num_bytes, depth=2)
        self._packet = backend.zeros((num_bytes,), torch.uint8)

    def run(
        self, tokens: NDArray[np.int64], computed: int, pages: NDArray[np.int64], result: torch.Tensor | None = None
    ) -> None:
        """Enqueue a chunk: ``tokens`` int64 [n] at positions ``computed``, …; ``pages``: the row's blocks, int64.

        ``result`` (int64 [1], device): gets the next token, for a chunk that ends its prompt. Raises PackError when
        the pages do not hold the chunk or a page is the null block.
        """
        count, block = len(tokens), self._pool.shape.block_size
        end = computed + count
        needed = -(-end // block)
        if not 0 < count <= self._max_tokens or needed > self._max_pages:
            raise PackError(f"prefill of {count} tokens after {computed}: more than {self._max_tokens} or no tokens")
        if len(pages) < needed or int(pages[:needed].min()) <= 0:
            raise PackError(f"prefill of {count} tokens after {computed}: {needed} pages are needed, given {pages}")
        write = partial(self._write, tokens, computed, pages[:needed])
        self._ring.send(self._stream, write, self._packet)
        self._backend.run(self._stream, lambda: self._chunk(count, computed, needed, result))

    def _chunk(self, count: int, computed: int, num_pages: int, result: torch.Tensor | None) -> None:
        words = self._packet.view(torch.int64)
        tokens, slots = words[:count], words[count : 2 * count]
        pages = words[2 * count : 2 * count + num_pages]
        model = self._model
        positions = torch.arange(computed, computed + count, device=words.device)
        hidden = model.embed(tokens)
        for index, layer in enumerate(model.layers):
            query, key, value = model.project(layer, hidden, positions)
            cache = self._pool.layer(index)
            self._backend.ops.store_kv(key, value, slots, cache)
            hidden = model.finish_layer(layer, hidden, self._attend(query, cache[pages], computed))
        if result is not None:
            result.copy_(model.greedy(hidden[-1:]))

    def _attend(self, query: torch.Tensor, history: torch.Tensor, computed: int) -> torch.Tensor:
        """``query`` [n, heads, head_dim] against ``history`` [pages, 2, block_size, kv_heads, head_dim]."""
        count, heads, _ = query.shape
        end = computed + count
        keys, values = (history[:, half].flatten(0, 1)[:end].transpose(0, 1) for half in (0, 1))
        ratio = heads // keys.shape[0]
        keys, values = keys.repeat_interleave(ratio, 0), values.repeat_interleave(ratio, 0)
        at = torch.arange(end, device=query.device)
        seen = at[None, :] <= at[computed:, None]
        attended = functional.scaled_dot_product_attention(query.transpose(0, 1), keys, values, attn_mask=seen)
        return attended.transpose(0, 1)

    def _write(self, tokens: NDArray[np.int64], computed: int, pages: NDArray[np.int64], at: int) -> int:
        count, block = len(tokens), self._pool.shape.block_size
        words = self._ring.arrays[at].view(np.int64)
        positions = np.arange(computed, computed + count)
        words[:count] = tokens
        words[count : 2 * count] = pages[positions // block] * block + positions % block
        words[2 * count : 2 * count + len(pages)] = pages
        return 8 * (2 * count + len(pages))

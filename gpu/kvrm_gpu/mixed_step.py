"""One pass over everything that an eager step computes: a token of each decoding row, and the chunks of prompts.

Projections and the MLP run once over all tokens; attention runs over the decoding rows, then chunk by chunk; the LM
head only for the rows that deliver. Shapes vary, so nothing is captured. Chunks read their row's pages in place, and so
do the decoding rows of staged policies; what those store goes to staging too where it has to stay valid (model scope).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from kvrm_gpu.backend import Backend, Stream
from kvrm_gpu.commit import PinnedRing
from kvrm_gpu.errors import PackError
from kvrm_gpu.kv_pool import NULL_BLOCK, KvPool, Staging
from kvrm_gpu.llama import Llama
from kvrm_gpu.wire import WireShape

#: (query [n, heads, head_dim], one layer's cache, pages int64, entries of the pages before the chunk) -> attended, of
#: the query's shape.
ChunkAttention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens int64 [n] at positions ``computed``, …; ``pages`` int64: the row's blocks, the chunk's included.

    ``dropped_blocks``: blocks of the row's history that it has given back and that are not in ``pages``: entries lie
    by so much earlier in it than their positions say.
    """

    tokens: NDArray[np.int64]
    computed: int
    pages: NDArray[np.int64]
    #: Whether its last token's successor is wanted.
    delivers: bool
    dropped_blocks: int = 0


def torch_chunk_attention(query: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, before: int) -> torch.Tensor:
    """Causal attention of a chunk to the ``before`` entries before it and to itself, through torch."""
    count, heads, _ = query.shape
    history = cache[pages]
    keys, values = (history[:, half].flatten(0, 1)[: before + count].transpose(0, 1) for half in (0, 1))
    ratio = heads // keys.shape[0]
    at = torch.arange(before + count, device=query.device)
    attended = functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        keys.repeat_interleave(ratio, 0),
        values.repeat_interleave(ratio, 0),
        attn_mask=at[None, :] <= at[before:, None],
    )
    return attended.transpose(0, 1)


class MixedStep:
    """Runs on the resident descriptor (for the decoding rows) and a packet of its own (for the chunks)."""

    def __init__(
        self,
        backend: Backend,
        model: Llama,
        pool: KvPool,
        wire: WireShape,
        resident: torch.Tensor,
        results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        stream: Stream,
        staging: Staging | None,
        *,
        max_tokens: int,
        max_pages: int,
        chunk_attention: ChunkAttention = torch_chunk_attention,
    ) -> None:
        self._backend = backend
        self._model = model
        self._pool = pool
        self._wire = wire
        self._resident = resident
        #: Static: decoded tokens int64 [slots], the echo, tokens of the prompts that end in the step int64 [slots].
        self._decoded, self._echo, self._prefilled = results
        self._stream = stream
        self._staging = staging
        self._max_tokens = max_tokens
        #: The attention of one chunk.
        self.attend_chunk = chunk_attention
        self._fields = {name: field.tensor(resident) for name, field in wire.fields.items()}
        self._max_pages = max_pages
        words = 3 * max_tokens + max_pages
        self._packet = backend.zeros((8 * words,), torch.uint8)
        self._ring = PinnedRing(backend, self._packet, depth=2, label="chunks")

    def run(self, rows: int, chunks: Sequence[Chunk], *, reads_table: bool, context_tokens: int) -> None:
        """Enqueue the step: batch rows [0, rows) of the descriptor, 0 for none, and every chunk.

        ``context_tokens``: the longest decoding row, with its new token. Raises PackError for chunks beyond the
        capacity, and for one without tokens or whose pages do not hold it (the null block never does).
        """
        count = sum(len(chunk.tokens) for chunk in chunks)
        pages = sum(len(chunk.pages) for chunk in chunks)
        if count > self._max_tokens or pages > self._max_pages:
            room = f"there is room for {self._max_tokens} and {self._max_pages}"
            raise PackError(f"chunks of {count} tokens and {pages} pages: {room}")
        for chunk in chunks:
            self._check(chunk)
        if chunks:
            self._ring.send(self._stream, partial(self._write, chunks))
        self._backend.run(self._stream, lambda: self._body(rows, chunks, reads_table, context_tokens))

    def _check(self, chunk: Chunk) -> None:
        count = len(chunk.tokens)
        needed = -(-(chunk.computed + count) // self._pool.shape.block_size) - chunk.dropped_blocks
        if count == 0:
            raise PackError(f"a chunk of no tokens after {chunk.computed}")
        if len(chunk.pages) < needed or int(chunk.pages[:needed].min()) <= NULL_BLOCK:
            pages = chunk.pages.tolist()
            raise PackError(f"a chunk of {count} tokens after {chunk.computed}: {needed} pages are needed, not {pages}")

    def _write(self, chunks: Sequence[Chunk], at: int) -> int:
        words = self._ring.arrays[at].view(np.int64)
        block = self._pool.shape.block_size
        count = sum(len(chunk.tokens) for chunk in chunks)
        first, page = 0, 3 * count
        for chunk in chunks:
            n = len(chunk.tokens)
            positions = np.arange(chunk.computed, chunk.computed + n)
            words[first : first + n] = chunk.tokens
            words[count + first : count + first + n] = positions
            words[2 * count + first : 2 * count + first + n] = (
                chunk.pages[positions // block - chunk.dropped_blocks] * block + positions % block
            )
            words[page : page + len(chunk.pages)] = chunk.pages
            first, page = first + n, page + len(chunk.pages)
        return 8 * page

    def _body(self, rows: int, chunks: Sequence[Chunk], reads_table: bool, context_tokens: int) -> None:
        model, fields, ops = self._model, self._fields, self._backend.ops
        count = sum(len(chunk.tokens) for chunk in chunks)
        ops.apply_patches(self._resident, wire=self._wire)
        ops.check_descriptor(self._resident, self._echo, wire=self._wire)
        words = self._packet.view(torch.int64)
        tokens, positions, slots = (
            torch.cat((fields[name][:rows].long(), words[at * count : (at + 1) * count]))
            for at, name in enumerate(("tokens", "positions", "slot_mapping"))
        )
        stage_slots = self._stage_slots(rows, count)
        hidden = model.embed(tokens)
        for index, layer in enumerate(model.layers):
            query, key, value = model.project(layer, hidden, positions)
            staged = None if stage_slots is None or self._staging is None else self._staging.layer(index)
            ops.store_kv(key, value, slots, self._pool.layer(index), stage_slots, staged)
            attended = torch.empty_like(query)
            if rows:
                self._attend_rows(query[:rows], attended[:rows], index, reads_table, context_tokens)
            self._attend_chunks(query, attended, rows, chunks, index, words[3 * count :])
            hidden = model.finish_layer(layer, hidden, attended)
        self._deliver(hidden, rows, chunks)

    def _stage_slots(self, rows: int, count: int) -> torch.Tensor | None:
        """Where new tokens go in staging at model scope: int64 [rows + count], -1 for nowhere."""
        if self._staging is None or self._staging.shape.layers == 1 or rows == 0:
            return None
        first = self._fields["stage_rows"][:rows].long() * (self._staging.width * self._staging.shape.block_size)
        at = torch.where(self._fields["active"][:rows] != 0, first + self._fields["lengths"][:rows] - 1, -1)
        return torch.cat((at, at.new_full((count,), -1)))

    def _attend_rows(
        self, query: torch.Tensor, out: torch.Tensor, index: int, reads_table: bool, context_tokens: int
    ) -> None:
        rows, heads, head_dim = query.shape
        sums = query.new_empty((rows, heads, 1, head_dim), dtype=torch.float32)
        stats = query.new_empty((rows, heads, 1, 2), dtype=torch.float32)
        tables = self._fields["block_tables"][:rows]
        lengths, cache, ops = self._fields["lengths"][:rows], self._pool.layer(index), self._backend.ops
        extent = {"extent_tokens": context_tokens, "read_all": False}
        if reads_table:
            ops.paged_attention(query, cache, tables, lengths, sums, stats, **extent)
        else:
            ops.contiguous_attention(query, cache, tables[:, 0].contiguous(), lengths, sums, stats, **extent)
        ops.merge_splits(sums, stats, out)

    def _attend_chunks(
        self,
        query: torch.Tensor,
        attended: torch.Tensor,
        first: int,
        chunks: Sequence[Chunk],
        index: int,
        pages: torch.Tensor,
    ) -> None:
        page = 0
        for chunk in chunks:
            n = len(chunk.tokens)
            own = pages[page : page + len(chunk.pages)]
            before = chunk.computed - chunk.dropped_blocks * self._pool.shape.block_size
            attended[first : first + n] = self.attend_chunk(
                query[first : first + n], self._pool.layer(index), own, before
            )
            first, page = first + n, page + len(chunk.pages)

    def _deliver(self, hidden: torch.Tensor, rows: int, chunks: Sequence[Chunk]) -> None:
        """The next tokens of the decoding rows and, one after another, of the chunks that deliver."""
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks], dtype=np.int64) + (rows - 1)
        last = [int(end) for end, chunk in zip(ends, chunks, strict=True) if chunk.delivers]
        if not rows and not last:
            return
        wanted = torch.cat((hidden[:rows], *(hidden[at : at + 1] for at in last)))
        found = self._model.greedy(wanted)
        self._decoded[:rows].copy_(found[:rows])
        self._prefilled[: len(last)].copy_(found[rows:])

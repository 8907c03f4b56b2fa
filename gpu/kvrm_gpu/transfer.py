"""Moving blocks: the planner's groups (source, destination, blocks), carried out by one of three routes.

``per_copy``: one asynchronous copy a contiguous piece. ``batch``: the driver's batch copy, at most 4,096 pieces a
call. ``kernel``: one launch over equal tiles, device to device only. Spaces are pools on the device or in pinned host
memory, in either layout; every move is ordered, block by block, after what it depends on (block_order.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend, CopyPair, Stream
from kvrm_gpu.block_order import BlockOrder, StreamClock, Touches
from kvrm_gpu.commit import PinnedRing
from kvrm_gpu.errors import PackError
from kvrm_gpu.kv_pool import HostPool, KvPool
from kvrm_gpu.wire import G_BLOCKS, G_FIRST, H_BLOCKS, H_GROUPS, HEADER_WORDS

Route: TypeAlias = Literal["per_copy", "batch", "kernel"]
Groups: TypeAlias = NDArray[np.int64]


class Space:
    """A pool and the order of what touches its blocks."""

    def __init__(self, pool: KvPool, clock: StreamClock) -> None:
        self.pool = pool
        self.clock = clock
        self.order = BlockOrder(clock, pool.num_blocks)

    @property
    def on_host(self) -> bool:
        """Whether it is pinned host memory."""
        return isinstance(self.pool, HostPool)


@dataclass(frozen=True, slots=True)
class Move:
    """What one call of :meth:`TransferEngine.move` did."""

    groups: int
    blocks: int
    bytes_moved: int
    #: Contiguous pieces (copies and batch), or groups times layers (kernel).
    segments: int
    #: Calls of the driver: copies, batches, or launches.
    calls: int
    ticket: int


class TransferEngine:
    """Moves on one stream. ``group_capacity``: groups of one kernel launch; more groups take more rounds."""

    def __init__(
        self, backend: Backend, clock: StreamClock, stream: Stream, route: Route, group_capacity: int = 4096
    ) -> None:
        self.route = route
        self.stream = stream
        self._backend = backend
        self._clock = clock
        self._capacity = group_capacity
        if route == "kernel":
            table_bytes = HEADER_WORDS * 8 + group_capacity * 16
            self._table = backend.zeros((table_bytes,), torch.uint8)
            self._ring = PinnedRing(backend, self._table, depth=3, label="group table")

    def move(self, source: Space, destination: Space, groups: Groups, *, layer: int | None = None) -> Move:
        """Copy ``groups`` (int64 [n, 3]: source block, destination block, blocks), one layer of them or all.

        Raises PackError for a group out of range and for blocks that would be written twice or while they are read.
        """
        come, go = self._check(source, destination, groups)
        touches = Touches(reads=((source.order, come),), writes=((destination.order, go),))
        touches.begin(self._clock, self.stream)
        if self.route == "kernel":
            segments, calls = self._launch(source, destination, groups, layer)
        else:
            segments, calls = self._copy(source, destination, groups, layer)
        ticket = touches.end(self._clock, self.stream)
        layers = source.pool.shape.layers if layer is None else 1
        block = source.pool.layers[0, 0]
        moved = len(go) * layers * block.numel() * block.element_size()
        return Move(len(groups), len(go), moved, segments, calls, ticket)

    def _check(self, source: Space, destination: Space, groups: Groups) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if source.pool.shape != destination.pool.shape:
            raise PackError(f"groups from blocks of {source.pool.shape} to blocks of {destination.pool.shape}")
        for at, (come, go, blocks) in enumerate(groups.tolist()):
            in_range = 0 <= come <= source.pool.num_blocks - blocks and 0 <= go <= destination.pool.num_blocks - blocks
            if blocks <= 0 or not in_range:
                raise PackError(
                    f"group {at}: ({come}, {go}, {blocks}) is outside {source.pool.num_blocks} source and "
                    f"{destination.pool.num_blocks} destination blocks"
                )
        come, go = spread(groups[:, 0], groups[:, 2]), spread(groups[:, 1], groups[:, 2])
        if len(np.unique(go)) != len(go):
            raise PackError("groups: a destination block is written twice, in no order")
        if source is destination and len(np.intersect1d(come, go)):
            raise PackError("groups: a block is read and written in one move, in no order")
        return come, go

    def _copy(self, source: Space, destination: Space, groups: Groups, layer: int | None) -> tuple[int, int]:
        pairs = pieces(source.pool, destination.pool, groups, layer)
        if self.route == "batch":
            return len(pairs), self._backend.copy_batch(pairs, self.stream)
        for to, come in pairs:
            if destination.on_host:
                self._backend.download(to, come, self.stream)
            elif source.on_host:
                self._backend.upload(to, come, self.stream)
            else:
                self._backend.copy(to, come, self.stream)
        return len(pairs), len(pairs)

    def _launch(self, source: Space, destination: Space, groups: Groups, layer: int | None) -> tuple[int, int]:
        if source.on_host or destination.on_host:
            raise PackError("route 'kernel' moves within the device; to and from the host use 'batch' or 'per_copy'")
        part = slice(None) if layer is None else slice(layer, layer + 1)
        come, go = source.pool.layers[part], destination.pool.layers[part]
        header = self._table[: HEADER_WORDS * 8].view(torch.int64)
        table = self._table[HEADER_WORDS * 8 :].view(torch.int32).view(-1, 4)
        rounds = 0
        for first in range(0, len(groups), self._capacity):
            some = groups[first : first + self._capacity]
            self._ring.send(self.stream, partial(self._write_table, some))
            self._backend.run(self.stream, lambda: self._backend.ops.gather_groups(come, go, table, header))
            rounds += 1
        return len(groups) * len(come), rounds

    def _write_table(self, groups: Groups, at: int) -> int:
        return _fill_table(self._ring.arrays[at], groups)


def spread(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """first, first + 1, … of each run, one after another."""
    total = int(counts.sum())
    if total == 0:
        return np.zeros(0, np.int64)
    starts = np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return starts + np.arange(total)


def pieces(source: KvPool, destination: KvPool, groups: Groups, layer: int | None) -> list[CopyPair]:
    """The (destination, source) pieces of a move that are contiguous on both sides.

    Both layer_major: one a group and layer. Both block_major, all layers: one a group. Otherwise one a block and
    layer: nothing merges.
    """
    layers = range(source.shape.layers) if layer is None else (layer,)
    if source.layout == destination.layout == "layer_major":
        return [
            (destination.storage[at, go : go + blocks], source.storage[at, come : come + blocks])
            for come, go, blocks in groups.tolist()
            for at in layers
        ]
    if source.layout == destination.layout == "block_major" and layer is None:
        return [
            (destination.storage[go : go + blocks], source.storage[come : come + blocks])
            for come, go, blocks in groups.tolist()
        ]
    return [
        (destination.layers[at, go + block], source.layers[at, come + block])
        for come, go, blocks in groups.tolist()
        for block in range(blocks)
        for at in layers
    ]


def _fill_table(buffer: NDArray[np.uint8], groups: Groups) -> int:
    header = buffer[: HEADER_WORDS * 8].view(np.int64)
    table = buffer[HEADER_WORDS * 8 :].view(np.int32).reshape(-1, 4)
    count = len(groups)
    table[:count, :G_FIRST] = groups
    table[:count, G_FIRST] = np.cumsum(groups[:, G_BLOCKS]) - groups[:, G_BLOCKS]
    header[H_GROUPS] = count
    header[H_BLOCKS] = groups[:, G_BLOCKS].sum()
    return HEADER_WORDS * 8 + count * 16

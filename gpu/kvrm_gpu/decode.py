"""The static decode step: one new token in each row, shapes fixed, everything that varies read from the descriptor.

    check the descriptor -> embed -> per layer [project, (gather history), store, attend, merge, MLP] -> head -> argmax

Rows that do not decode are padding: length 0, the null block, token 0; what they give is ignored. The store follows
the gather, since both write the last staged block. The same body runs kernel by kernel (eager) or as a captured graph
for a (rows, context) bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from kvrm_gpu.backend import Backend, Graph, Stream
from kvrm_gpu.errors import DeviceError
from kvrm_gpu.kv_pool import KvPool, Staging
from kvrm_gpu.llama import Llama
from kvrm_gpu.wire import ECHO_WORDS, WireShape

#: What attention reads: a block table, blocks one after another from the table's first entry, or staging.
Reads: TypeAlias = Literal["table", "contiguous", "staged"]

#: Tokens of a context that one split covers, and the most splits.
SPLIT_TOKENS = 256
MAX_SPLITS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class StepShape:
    """What a captured step fixes. ``gathers``: history is gathered layer by layer inside the step."""

    rows: int
    context_tokens: int
    reads: Reads
    gathers: bool = False
    #: Read the whole context, whatever the lengths.
    reads_all: bool = False

    @property
    def splits(self) -> int:
        """Parts of the context that are attended to side by side."""
        return max(1, min(MAX_SPLITS, -(-self.context_tokens // SPLIT_TOKENS)))


class DecodeStep:
    """Static buffers of the step and its captured graphs. ``resident``: the descriptor (commit.py)."""

    def __init__(
        self,
        backend: Backend,
        model: Llama,
        pool: KvPool,
        wire: WireShape,
        resident: torch.Tensor,
        stream: Stream,
        staging: Staging | None = None,
    ) -> None:
        self._backend = backend
        self._model = model
        self._pool = pool
        self._staging = staging
        self._wire = wire
        self._resident = resident
        self._stream = stream
        self._fields = {name: field.tensor(resident) for name, field in wire.fields.items()}
        spec, slots = model.spec, wire.slots
        #: One buffer, so that one copy brings the results to the host: decoded tokens int64 [slots], the echo, and
        #: room for the tokens of the prompts that end in the step, int64 [slots].
        self.results = backend.zeros((2 * slots + ECHO_WORDS,), torch.int64)
        #: Its parts, in this order.
        self.outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = tuple(
            self.results.split([slots, ECHO_WORDS, slots])
        )
        self._tokens, self._echo, _ = self.outputs
        self._sums = backend.zeros((slots * spec.heads * MAX_SPLITS * spec.head_dim,), torch.float32)
        self._stats = backend.zeros((slots * spec.heads * MAX_SPLITS * 2,), torch.float32)
        self._attended = backend.zeros((slots, spec.heads, spec.head_dim), model.dtype)
        self._graphs: dict[StepShape, Graph] = {}

    def capture(self, shape: StepShape) -> None:
        """Capture a shape, once. The resident descriptor must be all padding, else DeviceError:
        the body runs meanwhile, and would write tokens.
        """
        if shape in self._graphs:
            return
        self._backend.finish()
        if bool(self._fields["active"].any()):
            raise DeviceError("capture: the resident descriptor has active rows, and the body would run on them")
        self._graphs[shape] = self._backend.capture(self._stream, self._body(shape), {"descriptor": self._resident})

    @property
    def captured(self) -> frozenset[StepShape]:
        """The shapes that were captured."""
        return frozenset(self._graphs)

    def replay(self, shape: StepShape) -> None:
        """Enqueue the captured step. Raises DeviceError for a shape that was not captured: never a silent eager."""
        graph = self._graphs.get(shape)
        if graph is None:
            raise DeviceError(f"no graph was captured for {shape}")
        self._backend.replay(graph, self._stream, {"descriptor": self._resident})

    def run_eager(self, shape: StepShape) -> None:
        """Enqueue the step kernel by kernel."""
        self._backend.run(self._stream, self._body(shape))

    def _body(self, shape: StepShape) -> Callable[[], None]:
        if (shape.reads == "staged" or shape.gathers) and self._staging is None:
            raise DeviceError(f"{shape} needs staging, and there is none")
        return lambda: self._step(shape)

    def _step(self, shape: StepShape) -> None:
        ops, model, rows = self._backend.ops, self._model, shape.rows
        ops.apply_patches(self._resident, wire=self._wire)
        ops.check_descriptor(self._resident, self._echo, wire=self._wire)
        positions = self._fields["positions"][:rows]
        stage_slots = self._stage_slots(shape)
        hidden = model.embed(self._fields["tokens"][:rows])
        for index, layer in enumerate(model.layers):
            query, key, value = model.project(layer, hidden, positions)
            staged = self._stage_layer(index)
            if shape.gathers and staged is not None:
                source = self._pool.layers[index : index + 1]
                ops.gather_groups(source, staged[None], self._fields["groups"], self._fields["header"])
            ops.store_kv(
                key,
                value,
                self._fields["slot_mapping"][:rows],
                self._pool.layer(index),
                stage_slots,
                None if stage_slots is None else staged,
            )
            self._attend(shape, query, index)
            hidden = model.finish_layer(layer, hidden, self._attended[:rows])
        self._tokens[:rows].copy_(model.greedy(hidden))

    def _stage_slots(self, shape: StepShape) -> torch.Tensor | None:
        """Where the new tokens go in staging: int64 [rows], -1 for padding, which must not touch row 0.

        Last of what the row reads, which is not where its position says when the row has dropped history.
        """
        if self._staging is None or shape.reads != "staged":
            return None
        first = self._fields["stage_rows"][: shape.rows].long() * (self._staging.width * self._staging.shape.block_size)
        at = first + self._fields["lengths"][: shape.rows] - 1
        return torch.where(self._fields["active"][: shape.rows] != 0, at, -1)

    def _stage_layer(self, index: int) -> torch.Tensor | None:
        """Staging of a layer: at layer scope all layers share one."""
        if self._staging is None:
            return None
        return self._staging.layer(min(index, self._staging.shape.layers - 1))

    def _attend(self, shape: StepShape, query: torch.Tensor, index: int) -> None:
        ops, rows = self._backend.ops, shape.rows
        heads, head_dim = self._model.spec.heads, self._model.spec.head_dim
        sums = self._sums[: rows * heads * shape.splits * head_dim].view(rows, heads, shape.splits, head_dim)
        stats = self._stats[: rows * heads * shape.splits * 2].view(rows, heads, shape.splits, 2)
        lengths = self._fields["lengths"][:rows]
        tables = self._fields["block_tables"][:rows]
        extent = {"extent_tokens": shape.context_tokens, "read_all": shape.reads_all}
        staged = self._stage_layer(index)
        if shape.reads == "table":
            ops.paged_attention(query, self._pool.layer(index), tables, lengths, sums, stats, **extent)
        elif shape.reads == "staged" and self._staging is not None:
            first = self._fields["stage_rows"][:rows] * self._staging.width
            ops.contiguous_attention(query, staged, first, lengths, sums, stats, **extent)
        else:
            first = tables[:, 0].contiguous()
            ops.contiguous_attention(query, self._pool.layer(index), first, lengths, sums, stats, **extent)
        ops.merge_splits(sums, stats, self._attended[:rows])

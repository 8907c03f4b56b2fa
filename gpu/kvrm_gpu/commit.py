"""Making a step's descriptor visible to the device: the pinned ring, and the upload of all of it or of what changed.

One copy from the host a step, on the compute stream and so after the step before, which read the same buffer. It is
not captured: a captured copy would freeze the host's address. A slot of the ring is rewritten only when its own
upload is done. The step echoes what it ran on (:meth:`Committer.verify`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import mul
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend, CopyPair, Event, Stream
from kvrm_gpu.errors import PackError, StaleDescriptorError
from kvrm_gpu.packing import OK, PROBLEMS, pack_groups, pack_rows, patch_tables, widest_row
from kvrm_gpu.wire import (
    E_CHECKSUM,
    E_EPOCH,
    E_MAGIC,
    ECHO_WORDS,
    H_CHECKSUM,
    MAGIC,
    WEIGHT,
    WireShape,
    aligned,
    wrap_int64,
)
from kvrm_sim.descriptor import CommitDescriptor

_HEADER_WEIGHTS = tuple((2 * at + 1) * WEIGHT for at in range(H_CHECKSUM))


class PinnedRing:
    """``depth`` pinned buffers of the size of ``destination`` (uint8 [bytes], on the device), given out in turn; at
    least one more than steps in flight. ``label``: what is uploaded, the name of the events.
    """

    def __init__(self, backend: Backend, destination: torch.Tensor, depth: int, label: str) -> None:
        if depth < 2:
            raise ValueError(f"depth = {depth}: a ring of less than 2 makes every step wait for its own upload")
        self._backend = backend
        self._destination = destination
        self._buffers = [backend.pinned(destination.shape, torch.uint8) for _ in range(depth)]
        #: The same memory as arrays, for who writes it.
        self.arrays: list[NDArray[np.uint8]] = [buffer.numpy() for buffer in self._buffers]
        self._upload_done: list[Event] = [backend.event(label) for _ in range(depth)]
        self._next = 0
        # Cutting a tensor costs as much as packing a step does: once for each size, of which there are few.
        self._parts: dict[tuple[int, int], CopyPair] = {}

    def send(self, stream: Stream, write: Callable[[int], int]) -> int:
        """Let ``write`` fill the array of a number and return its bytes in use; upload those, in whole units of the
        wire's alignment. Returns how many were uploaded.

        Waits, on the host, until the buffer's last upload is done.
        """
        at = self._next
        self._next = (at + 1) % len(self._buffers)
        self._backend.synchronize(self._upload_done[at])
        used = min(aligned(write(at)), len(self._destination))
        self._backend.upload(*self._part(at, used), stream)
        self._backend.record(self._upload_done[at], stream)
        return used

    def _part(self, at: int, used: int) -> CopyPair:
        part = self._parts.get((at, used))
        if part is None:
            part = self._parts[at, used] = self._destination[:used], self._buffers[at][:used]
        return part


@dataclass(frozen=True, slots=True)
class Commitment:
    """What was committed for one step, and what the device must echo."""

    epoch: int
    checksum: int
    uploaded_bytes: int
    #: Entries of the block tables that were sent as patches; None: the tables were sent whole.
    patches: int | None


@dataclass(slots=True)
class _Packed:
    checksum: int = 0
    patches: int | None = None


class Committer:
    """Packs descriptors and uploads them into ``resident`` (uint8 [bytes], what every captured step reads)."""

    def __init__(self, backend: Backend, wire: WireShape, stream: Stream, *, block_size: int, depth: int = 2) -> None:
        self.wire = wire
        self.stream = stream
        self.resident = backend.zeros((wire.num_bytes,), torch.uint8)
        self._block_size = block_size
        self._ring = PinnedRing(backend, self.resident, depth, "descriptor")
        self._epoch = 0
        # What the tables on the device hold once everything committed so far has arrived, and their checksum.
        self._mirror = np.zeros((wire.slots, wire.table_width), np.int32)
        self._owners = np.zeros(wire.slots, np.int64)
        self._counts = np.zeros(wire.slots, np.int64)
        self._tables_sum = 0
        self._patches = np.zeros((max(1, wire.patch_capacity), 2), np.int32)
        #: Descriptors packed, refused ones too: those must not leave their entries behind in `seen`.
        self._attempts = 0
        self._seen = np.zeros((1 << (2 * wire.slots).bit_length(), 2), np.int64)
        # Cutting a buffer into fields costs more than filling them: once a buffer, not once a step.
        self._views = [
            {name: field.view(array) for name, field in wire.fields.items()} | {"words": array.view(np.int32)}
            for array in self._ring.arrays
        ]

    def commit(
        self,
        descriptor: CommitDescriptor,
        tokens: NDArray[np.int64],
        owners: NDArray[np.int64],
        counts: NDArray[np.int64],
        *,
        delta: bool,
    ) -> Commitment:
        """Upload a step's descriptor. ``tokens`` int64 [slots]: what each row feeds in; ``owners`` and ``counts``: see
        :func:`kvrm_gpu.packing.patch_tables`.

        ``delta``: only what changed in the tables, unless that is more than the capacity for patches. Raises PackError
        and has then changed nothing on the device.
        """
        self._check_capacity(descriptor, counts)
        epoch = self._epoch + 1
        packed = _Packed()
        used = self._ring.send(
            self.stream,
            lambda at: self._write(self._views[at], descriptor, tokens, owners, counts, epoch, delta, packed),
        )
        self._epoch = epoch
        return Commitment(epoch, packed.checksum, used, packed.patches)

    def _write(
        self,
        fields: dict[str, NDArray[Any]],
        descriptor: CommitDescriptor,
        tokens: NDArray[np.int64],
        owners: NDArray[np.int64],
        counts: NDArray[np.int64],
        epoch: int,
        delta: bool,
        packed: _Packed,
    ) -> int:
        active, rows_sum = self._write_rows(fields, descriptor, tokens)
        blocks, groups_sum = self._write_groups(fields, descriptor)
        changed, tables_sum = patch_tables(
            descriptor.block_tables,
            owners,
            counts,
            self._mirror,
            self._owners,
            self._counts,
            self._patches,
            self.wire.tables_word,
        )
        self._tables_sum += tables_sum
        whole = not delta or changed > self.wire.patch_capacity
        if whole:
            fields["block_tables"][:] = self._mirror
        else:
            fields["patches"][:changed] = self._patches[:changed]
        packed.patches = None if whole else changed
        # In the order of H_MAGIC, H_EPOCH, H_ACTIVE, H_GROUPS, H_BLOCKS, H_PATCHES.
        words = (MAGIC, epoch, active, descriptor.num_groups, blocks, 0 if whole else changed)
        header_sum = sum(map(mul, words, _HEADER_WEIGHTS))
        packed.checksum = wrap_int64(header_sum + rows_sum + groups_sum + self._tables_sum)
        fields["header"][: H_CHECKSUM + 1] = (*words, packed.checksum)
        return self.wire.num_bytes if whole else self.wire.prefix_bytes(changed, descriptor.num_groups)

    def _write_rows(
        self, fields: dict[str, NDArray[Any]], descriptor: CommitDescriptor, tokens: NDArray[np.int64]
    ) -> tuple[int, int]:
        self._attempts += 1
        (first, end), _ = self.wire.checked_words
        status, row, active, total = pack_rows(
            tokens,
            descriptor.slot_mapping,
            descriptor.positions,
            descriptor.lengths,
            descriptor.stage_rows,
            descriptor.active,
            self._block_size,
            fields["tokens"],
            fields["slot_mapping"],
            fields["positions"],
            fields["lengths"],
            fields["stage_rows"],
            fields["active"],
            fields["words"],
            first,
            end,
            self._seen,
            self._attempts,
        )
        _raise(status, row)
        return active, total

    def _write_groups(self, fields: dict[str, NDArray[Any]], descriptor: CommitDescriptor) -> tuple[int, int]:
        status, group, blocks, total = pack_groups(
            descriptor.groups, descriptor.num_groups, fields["groups"], self.wire.groups_word
        )
        _raise(status, group)
        return blocks, total

    def _check_capacity(self, descriptor: CommitDescriptor, counts: NDArray[np.int64]) -> None:
        if descriptor.num_groups > self.wire.group_capacity:
            raise PackError(
                f"groups: {descriptor.num_groups} groups, the descriptor has room for {self.wire.group_capacity}"
            )
        row = widest_row(counts)
        if counts[row] > self.wire.table_width:
            raise PackError(f"counts: row {row} holds {counts[row]} blocks, a table has {self.wire.table_width}")

    def verify(self, echo: NDArray[np.int64] | torch.Tensor, commitment: Commitment) -> None:
        """Compare what a step echoed (int64 [3], on the host, after its event) with what was committed for it.

        Raises StaleDescriptorError: the step ran on an old or a torn descriptor, and its tokens are worth nothing.
        """
        seen = [int(word) for word in echo[:ECHO_WORDS]]
        wanted = {E_EPOCH: commitment.epoch, E_MAGIC: MAGIC, E_CHECKSUM: commitment.checksum}
        for word, name in ((E_MAGIC, "magic"), (E_EPOCH, "epoch"), (E_CHECKSUM, "checksum")):
            if seen[word] != wanted[word]:
                raise StaleDescriptorError(
                    f"step of epoch {commitment.epoch}: the device echoed {name} {seen[word]}, committed {wanted[word]}"
                )


def _raise(status: int, row: int) -> None:
    if status != OK:
        raise PackError(PROBLEMS[status].format(row=row))

"""Everything that events order, in one random program: commits, mixed and captured steps, results read late, history
staged by a kernel, blocks swapped to the host and back, rows that leave and whose blocks others take at once.

Steps run on one stream, swaps on a second, staging on a third, and the host is up to ``AHEAD`` steps ahead. The program
depends on the seed alone and what the host learns decides nothing, so any two backends have to end alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from kvrm_gpu.block_order import StreamClock, Touches
from kvrm_gpu.commit import Commitment, Committer
from kvrm_gpu.cpu_backend import CpuBackend
from kvrm_gpu.decode import DecodeStep, StepShape
from kvrm_gpu.errors import StaleDescriptorError
from kvrm_gpu.kv_pool import HostPool, KvPool, KvShape, Staging
from kvrm_gpu.llama import Llama
from kvrm_gpu.mixed_step import Chunk, MixedStep
from kvrm_gpu.results import ResultRing
from kvrm_gpu.transfer import Space, TransferEngine
from kvrm_gpu.wire import ECHO_WORDS, WireShape
from kvrm_sim.config import load_model
from tests.gpu.descriptors import empty_descriptor

STREAMS = ("compute", "swap", "stage")
SLOTS, WIDTH, BLOCK, BLOCKS, HOST_BLOCKS, AHEAD, OPERATIONS = 3, 3, 4, 8, 6, 3, 40
WIRE = WireShape(slots=SLOTS, table_width=WIDTH, group_capacity=1, patch_capacity=2 * WIDTH)
SPEC = load_model("tiny-llama").model_copy(
    update={"layers": 2, "hidden_size": 16, "intermediate_size": 24, "heads": 2, "kv_heads": 1, "head_dim": 8,
            "vocab_size": 199, "max_context_tokens": 32}
)  # fmt: skip
TABLE = StepShape(rows=SLOTS, context_tokens=WIDTH * BLOCK, reads="table")
STAGED = StepShape(rows=SLOTS, context_tokens=WIDTH * BLOCK, reads="staged")


@cache
def model() -> Llama:
    return Llama(SPEC, torch.device("cpu"), 5)


@dataclass
class Row:
    owner: int
    entries: int
    pages: list[int]
    staged: bool = False


class WholePath:
    """One program on one backend; :meth:`run` gives everything that can be seen of it."""

    def __init__(self, backend: CpuBackend, seed: int) -> None:
        self.random = random.Random(seed)
        self.backend = backend
        self.compute, swap, stage = (backend.stream() for _ in STREAMS)
        self.clock = StreamClock(backend)
        shape = KvShape.of(SPEC, BLOCK)
        self.pool = Space(KvPool(backend, shape, BLOCKS), self.clock)
        self.staging = Space(Staging(backend, shape, SLOTS, WIDTH), self.clock)
        self.host = Space(HostPool(backend, shape, HOST_BLOCKS, "block_major"), self.clock)
        self.swaps = [TransferEngine(backend, self.clock, swap, route) for route in ("per_copy", "batch")]
        self.stages = TransferEngine(backend, self.clock, stage, "kernel", group_capacity=1)
        self.committer = Committer(backend, WIRE, self.compute, block_size=BLOCK, depth=2)
        resident = self.committer.resident
        self.decode = DecodeStep(backend, model(), self.pool.pool, WIRE, resident, self.compute, self.staging.pool)
        self.mixed = MixedStep(
            backend, model(), self.pool.pool, WIRE, resident, self.decode.outputs, self.compute, self.staging.pool,
            max_tokens=WIDTH * BLOCK, max_pages=WIDTH,
        )  # fmt: skip
        self.results = ResultRing(backend, self.decode.results, self.compute, depth=AHEAD + 1)
        self.decode.capture(TABLE)
        self.decode.capture(STAGED)
        self.rows: dict[int, Row] = {}
        self.swapped: list[tuple[int, list[int]]] = []
        self.free, self.host_free = list(range(1, BLOCKS + 1)), list(range(1, HOST_BLOCKS + 1))
        self.owners = 0
        self.pending: list[tuple[int, Commitment, list[int]]] = []
        self.seen: list[object] = []

    def run(self) -> list[object]:
        """Delivered tokens and swapped blocks as the host reads them, then all memory at the end."""
        operations = (self.step, self.admit, self.stage, self.finish, self.swap_out, self.swap_in, self.look)
        for _ in range(OPERATIONS):
            self.random.choices(operations, weights=(5, 5, 4, 2, 2, 4, 2))[0]()
        while self.pending:
            self.take()
        self.backend.finish()
        spaces = (self.pool, self.staging, self.host)
        return [*self.seen, *(space.pool.storage.flatten().tolist() for space in spaces)]

    def admit(self) -> None:
        """A mixed step: a new row's whole prompt, beside the rows that decode."""
        slots = [slot for slot in range(SLOTS) if slot not in self.rows]
        tokens = self.random.randint(1, WIDTH * BLOCK - 2)
        needed = -(-tokens // BLOCK)
        if not slots or needed > len(self.free):
            return
        self.owners += 1
        row = Row(self.owners, 0, [self.free.pop() for _ in range(needed)])
        chunk = Chunk(self.tokens(tokens), 0, np.array(row.pages, np.int64), True)
        self.step(chunk)
        row.entries = tokens
        self.rows[slots[0]] = row

    def step(self, chunk: Chunk | None = None) -> None:
        """Every row that can takes a token."""
        live = [slot for slot, row in self.rows.items() if self.grow(row)]
        if not live and chunk is None:
            return
        commitment = self.commit(live)
        staged = chunk is None and all(self.rows[slot].staged for slot in live)
        touches = self.touches(live, chunk, staged)
        touches.begin(self.clock, self.compute)
        if chunk is not None:
            longest = max((self.rows[slot].entries for slot in live), default=0)
            self.mixed.run(max(live, default=-1) + 1, [chunk], reads_table=True, context_tokens=longest)
        else:
            self.decode.replay(STAGED if staged else TABLE)
        touches.end(self.clock, self.compute)
        for slot in live:
            self.rows[slot].staged &= staged or chunk is not None
        at = [*live, *([SLOTS + ECHO_WORDS] if chunk is not None else [])]
        self.pending.append((self.results.fetch(), commitment, at))
        if len(self.pending) > AHEAD:
            self.take()

    def grow(self, row: Row) -> bool:
        """Room for one more entry; counts it."""
        if row.entries == WIDTH * BLOCK or (row.entries == len(row.pages) * BLOCK and not self.free):
            return False
        if row.entries == len(row.pages) * BLOCK:
            row.pages.append(self.free.pop())
        row.entries += 1
        return True

    def commit(self, live: list[int]) -> Commitment:
        d = empty_descriptor(SLOTS, WIDTH, 1)
        tokens, owners, counts = (np.zeros(SLOTS, np.int64) for _ in range(3))
        for slot in live:
            row, at = self.rows[slot], self.rows[slot].entries - 1
            d.block_tables[slot, : len(row.pages)] = row.pages
            d.slot_mapping[slot] = row.pages[at // BLOCK] * BLOCK + at % BLOCK
            d.lengths[slot], d.positions[slot], d.active[slot], d.stage_rows[slot] = at + 1, at, 1, slot
            tokens[slot], owners[slot], counts[slot] = self.tokens(1)[0], row.owner, len(row.pages)
        return self.committer.commit(d, tokens, owners, counts, delta=True)

    def touches(self, live: list[int], chunk: Chunk | None, staged: bool) -> Touches:
        """What a step reads and writes; a mixed step keeps staging up to date. A prompt's blocks are only written: what
        the step reads of them it has written itself.
        """
        last = [self.rows[slot].pages[(self.rows[slot].entries - 1) // BLOCK] for slot in live]
        history = [page for slot in live for page in self.rows[slot].pages]
        prompt = [] if chunk is None else chunk.pages.tolist()
        stage = [slot * WIDTH + (self.rows[slot].entries - 1) // BLOCK for slot in live]
        staged_history = [slot * WIDTH + at for slot in live for at in range(len(self.rows[slot].pages))]
        return Touches(
            reads=((self.staging.order, array(staged_history)) if staged else (self.pool.order, array(history)),),
            writes=(
                (self.pool.order, array(last + prompt)),
                (self.staging.order, array(stage if staged or chunk is not None else [])),
            ),
        )

    def take(self) -> None:
        number, commitment, at = self.pending.pop(0)
        results = self.results.take(number)
        try:
            self.committer.verify(results[SLOTS : SLOTS + ECHO_WORDS], commitment)
        except StaleDescriptorError:
            self.seen.append("stale")
        self.seen.append(results[at].tolist())

    def stage(self, slot: int | None = None) -> None:
        """A row's history, from its scattered pages to its place in staging."""
        if self.rows:
            slot = self.random.choice(sorted(self.rows)) if slot is None else slot
            row = self.rows[slot]
            groups = [(page, slot * WIDTH + at, 1) for at, page in enumerate(row.pages)]
            self.stages.move(self.pool, self.staging, np.array(groups, np.int64))
            row.staged = True

    def finish(self, slot: int | None = None) -> None:
        """A row leaves; its blocks are the next to be taken, whoever still reads or writes them."""
        if self.rows:
            self.free += self.rows.pop(self.random.choice(sorted(self.rows)) if slot is None else slot).pages

    def swap_out(self) -> None:
        if not self.rows:
            return
        slot = self.random.choice(sorted(self.rows))
        if len(self.rows[slot].pages) > len(self.host_free):
            return
        row = self.rows.pop(slot)
        pages = [self.host_free.pop() for _ in row.pages]
        self.random.choice(self.swaps).move(self.pool, self.host, one_by_one(row.pages, pages))
        self.free += row.pages
        self.swapped.append((row.entries, pages))

    def swap_in(self) -> None:
        slots = [slot for slot in range(SLOTS) if slot not in self.rows]
        if not slots or not self.swapped or len(self.swapped[0][1]) > len(self.free):
            return
        entries, pages = self.swapped.pop(0)
        self.owners += 1
        row = Row(self.owners, entries, [self.free.pop() for _ in pages])
        self.random.choice(self.swaps).move(self.host, self.pool, one_by_one(pages, row.pages))
        self.host_free += pages
        self.rows[slots[0]] = row
        then = self.random.random()
        if then < 0.6:  # as who resumes a staged row does, before any step
            self.stage(slots[0])
        elif then < 0.8:  # cancelled while it is under way
            self.finish(slots[0])

    def look(self) -> None:
        """The host reads what was swapped out last."""
        if self.swapped:
            pages = array(self.swapped[-1][1])
            self.clock.synchronize(self.host.order.before_read(pages))
            self.seen.append(self.host.pool.layers[:, torch.from_numpy(pages)].flatten().tolist())

    def tokens(self, count: int) -> np.ndarray:
        return np.array([self.random.randrange(SPEC.vocab_size) for _ in range(count)], np.int64)


def array(blocks: list[int]) -> np.ndarray:
    return np.array(blocks, np.int64)


def one_by_one(come: list[int], go: list[int]) -> np.ndarray:
    return np.array([(source, destination, 1) for source, destination in zip(come, go, strict=True)], np.int64)


@cache
def wanted(seed: int) -> list[object]:
    """What is seen where every call is done when it returns."""
    return WholePath(CpuBackend(), seed).run()

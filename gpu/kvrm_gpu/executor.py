"""DeviceExecutor: carries out what the simulator's own core has decided, and measures it.

The core (a :class:`kvrm_sim.replica.Replica`) stops after each decision; its tables, slots and groups are executed as
they are, nothing is decided here. Tokens are real: each request's prompt is random tokens, each next token the model's
likeliest. Left out so far: piecewise graphs (mixed steps run kernel by kernel), double-buffered staging, times part
by part, and more than one step in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend
from kvrm_gpu.block_order import StreamClock
from kvrm_gpu.commit import Commitment, Committer
from kvrm_gpu.decode import DecodeStep, StepShape
from kvrm_gpu.kv_pool import KvPool, KvShape, Staging
from kvrm_gpu.llama import Llama
from kvrm_gpu.prefill import Prefill
from kvrm_gpu.results import ResultRing
from kvrm_gpu.transfer import Space, TransferEngine
from kvrm_gpu.wire import ECHO_WORDS, WireShape
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.cost import GRAPH
from kvrm_sim.descriptor import CommitDescriptor
from kvrm_sim.memory import MemoryPlan, table_width_blocks
from kvrm_sim.replica import Replica

PATCH_CAPACITY = 4096


@dataclass(frozen=True, slots=True)
class StepTime:
    """Measured: by events on the compute stream, and by the host's clock from submission to the results."""

    device_ns: int
    host_ns: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """A step in flight."""

    result: int
    commitment: Commitment | None
    #: (request row, index into the results) of every token that the step delivers.
    deliveries: tuple[tuple[int, int], ...]
    submitted_ns: int


class DeviceExecutor:
    """One replica's device: pool, staging, model, captured graphs. ``prompt`` gives a request row's tokens."""

    def __init__(
        self,
        backend: Backend,
        config: ReplicaConfig,
        plan: MemoryPlan,
        params: st.Records,
        prompt: Callable[[int, int], NDArray[np.int64]],
        *,
        delta_commit: bool = True,
    ) -> None:
        self.backend = backend
        self._policy = policy = config.policy
        self._params = params
        self._prompt = prompt
        self._delta_commit = delta_commit
        self.sequences: dict[int, list[int]] = {}
        self.stream = backend.stream()
        self.model = Llama(config.model, backend.device, config.seed)
        block_size = policy.pager.block_size_tokens
        shape = KvShape.of(config.model, block_size)
        self.pool = KvPool(backend, shape, plan.pool_blocks, policy.layout)
        width = table_width_blocks(config)
        self._model_scope = policy.staged and policy.transport.scope == "model"
        self.staging: Staging | None = None
        if policy.staged:
            staged = shape if self._model_scope else replace(shape, layers=1)
            self.staging = Staging(backend, staged, plan.slots, width, policy.layout)
        wire = WireShape(
            slots=plan.slots,
            table_width=width if policy.paged else 1,
            # At layer scope the step gathers what the descriptor lists: at most every block of the pool.
            group_capacity=plan.pool_blocks if policy.staged and not self._model_scope else 1,
            patch_capacity=PATCH_CAPACITY,
        )
        self.committer = Committer(backend, wire, self.stream, block_size=block_size)
        self.decode = DecodeStep(
            backend, self.model, self.pool, wire, self.committer.resident, self.stream, self.staging
        )
        self._results = ResultRing(backend, self.decode.results, self.stream)
        budget = max(policy.schedule.token_budget, config.limit_tokens)
        self._prefill = Prefill(
            backend, self.model, self.pool, self.stream, max_tokens=budget, max_pages=max(width, plan.pool_blocks)
        )
        self._descriptor = CommitDescriptor.for_parameters(params)
        self._events = backend.event("step_start"), backend.event("step_end")
        self._transfer = self._transfer_engine(plan) if self._model_scope else None
        # The weights were drawn on the default stream, which no other stream waits for.
        backend.finish()
        for batch in plan.batch_sizes:
            for context in plan.context_buckets_tokens:
                self.decode.capture(self._shape(batch, context, mixed=False, graph=True))

    def _transfer_engine(self, plan: MemoryPlan) -> tuple[TransferEngine, Space, Space]:
        assert self.staging is not None
        clock = StreamClock(self.backend)
        engine = TransferEngine(
            self.backend, clock, self.stream, self._policy.transport.submission, plan.group_capacities[-1]
        )
        return engine, Space(self.pool, clock), Space(self.staging, clock)

    def _shape(self, rows: int, context: int, *, mixed: bool, graph: bool) -> StepShape:
        policy = self._policy
        staged = policy.staged and not mixed
        return StepShape(
            rows=rows,
            context_tokens=context,
            reads="staged" if staged else "table" if policy.paged else "contiguous",
            gathers=staged and not self._model_scope,
            reads_all=graph and policy.read.extent == "bucket",
            # A row that is staged already stays so through mixed steps: its new token goes there too.
            stores_staged=mixed and self._model_scope,
        )

    def submit(self, replica: Replica) -> Ticket:
        """Enqueue the step that ``replica`` has just decided. Raises what commit, transfer and replay raise."""
        submitted_ns = time.perf_counter_ns()
        step = replica.steps[0]
        self.backend.record(self._events[0], self.stream)
        deliveries = self._submit_prefills(replica)
        commitment = None
        if step.decode_rows > 0:
            commitment, decoded = self._submit_decode(replica)
            deliveries = decoded + deliveries
        self.backend.record(self._events[1], self.stream)
        return Ticket(self._results.fetch(), commitment, tuple(deliveries), submitted_ns)

    def wait(self, ticket: Ticket) -> StepTime:
        """Hold until the step is done, check what it echoed, and append its tokens to their sequences.

        Raises StaleDescriptorError.
        """
        results = self._results.take(ticket.result)
        if ticket.commitment is not None:
            slots = self.committer.wire.slots
            self.committer.verify(results[slots : slots + ECHO_WORDS], ticket.commitment)
        for request, at in ticket.deliveries:
            self.sequences[request].append(int(results[at]))
        self.backend.synchronize(self._events[1])
        return StepTime(
            device_ns=self.backend.elapsed_ns(*self._events), host_ns=time.perf_counter_ns() - ticket.submitted_ns
        )

    def _sequence(self, replica: Replica, row: int) -> tuple[int, list[int]]:
        request = replica.requests[int(replica.rows[row].request)]
        name = int(request.row)
        if name not in self.sequences:
            self.sequences[name] = self._prompt(name, int(request.prompt_tokens)).tolist()
        return name, self.sequences[name]

    def _submit_prefills(self, replica: Replica) -> list[tuple[int, int]]:
        deliveries = []
        after = self.committer.wire.slots + ECHO_WORDS
        for at in range(int(replica.scalars[0].num_prefill)):
            row = int(replica.rows["prefill"][at])
            record = replica.rows[row]
            computed, planned = int(record.computed), int(record.planned)
            name, known = self._sequence(replica, row)
            ends = computed + planned == len(known)
            chunk = np.array(known[computed : computed + planned], np.int64)
            result = self.decode.prefilled[at : at + 1] if ends else None
            self._prefill.run(chunk, computed, self._pages(replica, row), result)
            if ends:
                deliveries.append((name, after + at))
        return deliveries

    def _pages(self, replica: Replica, row: int) -> NDArray[np.int64]:
        record = replica.rows[row]
        if self._policy.paged:
            return replica.table[row, : int(record.blocks)].astype(np.int64)
        return np.arange(int(record.run_start), int(record.run_start) + int(record.blocks))

    def _submit_decode(self, replica: Replica) -> tuple[Commitment, list[tuple[int, int]]]:
        step, d = replica.steps[0], self._descriptor
        d.fill(self._params, replica.scalars, replica.steps, replica.rows, replica.blocks, replica.keys, replica.table)
        if self._transfer is not None:
            engine, pool, staging = self._transfer
            engine.move(pool, staging, d.groups[: d.num_groups])
            d.num_groups = 0  # they are carried out: the step itself gathers nothing
        live = np.nonzero(d.active)[0].tolist()
        tokens, owners, counts = (np.zeros(len(d.active), np.int64) for _ in range(3))
        deliveries = []
        for slot in live:
            row = int(d.stage_rows[slot])
            name, known = self._sequence(replica, row)
            tokens[slot] = known[int(d.positions[slot])]
            owners[slot] = int(replica.rows[row].order) + 1
            counts[slot] = -(-int(d.lengths[slot]) // self.pool.shape.block_size) if self._policy.paged else 1
            deliveries.append((name, slot))
        commitment = self.committer.commit(d, tokens, owners, counts, delta=self._delta_commit)
        if step.launch_kind == GRAPH:
            self.decode.replay(self._shape(int(step.padded_rows), int(step.context_bucket), mixed=False, graph=True))
        else:
            mixed = bool(step.prefill_rows > 0)
            self.decode.run_eager(self._shape(max(live) + 1, int(d.lengths.max()), mixed=mixed, graph=False))
        return commitment, deliveries


def random_prompt(vocab_size: int, seed: int) -> Callable[[int, int], NDArray[np.int64]]:
    """Prompts by request row: the same tokens for the same row, whatever the policy."""

    def prompt(row: int, tokens: int) -> NDArray[np.int64]:
        return np.random.default_rng((seed, row)).integers(0, vocab_size, tokens)

    return prompt


def drive(
    replica: Replica, executor: DeviceExecutor, *, measured: bool, before_step: Callable[[], None] | None = None
) -> list[StepTime]:
    """Run everything that the replica was supplied with; the measured time of each step.

    ``measured``: the device's own times drive the clock (closed loop); else the predicted ones do (lockstep).
    """
    times: list[StepTime] = []
    while True:
        reason = replica.advance(st.NEVER, max_steps=1_000_000, flags=st.STOP_AT_DECISIONS)
        if reason == st.WORK:
            continue
        if reason != st.DECIDED:
            return times
        if before_step is not None:
            before_step()
        spent = executor.wait(executor.submit(replica))
        times.append(spent)
        if measured:
            step = replica.steps[0]
            step.duration_ns = max(1, spent.host_ns)
            step.end_ns = step.start_ns + step.duration_ns

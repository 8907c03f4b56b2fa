"""DeviceExecutor: the simulator's own Executor protocol, carried out on a device and measured.

The core decides (:func:`kvrm_sim.executor.drive`), every :class:`StepPlan` is executed as it is, and the measured time
goes back. A request's prompt is random tokens (prompts.py), each next token the model's likeliest, so tokens can be
compared with a plain forward; a preempted request prefills its prompt and what it has delivered again, and a request
ends at its recorded length. What moves between blocks, or to the host and back, does so before the step with which it
was decided (block_moves.py). With far history a row reads what is left of it: the first blocks as they were written,
for no summaries are computed.

A step in which only rows decode runs as a captured graph, or kernel by kernel; one with prefill chunks always runs
kernel by kernel, as one pass (mixed_step.py). Left out: piecewise graphs, double-buffered staging, `prefill = none`,
speculation, and more than one step in flight: plans that were decided ahead are executed one after another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.backend import Backend
from kvrm_gpu.block_moves import BlockMoves
from kvrm_gpu.block_order import StreamClock
from kvrm_gpu.commit import Commitment, Committer
from kvrm_gpu.decode import DecodeStep, StepShape
from kvrm_gpu.kv_pool import KvPool, KvShape, Staging
from kvrm_gpu.live_cpu import LiveCpuBackend, PartClock
from kvrm_gpu.llama import Llama
from kvrm_gpu.mixed_step import Chunk, MixedStep, torch_chunk_attention
from kvrm_gpu.ranges import name_methods, with_named_kernels, with_named_methods
from kvrm_gpu.results import ResultRing
from kvrm_gpu.transfer import Space, TransferEngine
from kvrm_gpu.wire import ECHO_WORDS, WireShape
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.cost import GRAPH
from kvrm_sim.errors import ConfigError
from kvrm_sim.executor import StepPlan, StepTiming
from kvrm_sim.memory import MemoryPlan, table_width_blocks
from kvrm_sim.moves import MOVE_COMPACT, MOVE_IN
from kvrm_sim.policy import Policy
from kvrm_sim.shapes import history_blocks, most_tokens_in_a_step

PATCH_CAPACITY = 4096
#: A row's number to the committer: its admission, then the tokens of history that it has dropped.
_DROPPED_BITS = 32
#: Whole steps are timed with this; what it counts is said in the reports.
CLOCKS: dict[str, Callable[[], int]] = {"thread_cpu_time": time.thread_time_ns, "wall": time.perf_counter_ns}


@dataclass(slots=True)
class _Flight:
    """A step in flight, and when the host reached which point of it."""

    result: int
    commitment: Commitment | None
    #: (tokens to append to, index into the results) of every token that the step gives.
    deliveries: list[tuple[list[int], int]]
    begun_ns: int
    host_ns: int = 0
    commit_ns: int = 0
    submit_ns: int = 0


#: What the simulator knows and the device does not execute: key, value, why.
NOT_EXECUTED: tuple[tuple[str, object, str], ...] = (
    ("schedule.prefill", "none", "the device computes every prompt"),
    ("launch.mixed", "piecewise", "the device has no piecewise graphs; its mixed steps run kernel by kernel (eager)"),
    ("launch.capture", "first_use", "the device captures its graphs before the run"),
    ("pager.mapping", "virtual", "the device maps no virtual memory"),
    ("transport.double_buffered", True, "the device has one staging buffer"),
)


def _refuse(policy: Policy) -> None:
    """Raise ConfigError for what the device does not execute: nothing is left out in silence."""
    for key, value, why in NOT_EXECUTED:
        part, _, name = key.partition(".")
        if getattr(getattr(policy, part), name) == value:
            raise ConfigError(f"{key} = {value!r}: {why}", key, value)
    if policy.transport.packed_tokens is not None:
        why = "the device's staging has a row for each slot"
        raise ConfigError(f"transport.packed_tokens: {why}", "transport.packed_tokens", policy.transport.packed_tokens)
    if policy.speculation is not None:
        why = "which drafts are accepted is drawn, and the device has no draft model whose tokens could be"
        raise ConfigError(f"speculation: {why}", "speculation", policy.speculation.draft_tokens)


class DeviceExecutor:
    """One replica's device: pool, staging, model, captured graphs. ``prompt`` gives a request row's tokens.

    ``delta_commit``: upload what changed in the block tables, not all of them. ``ranges``: name the parts of each step
    to profilers (ranges.py). ``sequences``: prompt and delivered tokens of each request row; ``prefills``: its chunks.
    ``parts_known``: whether attention and transport are timed apart; where not, and for the launch everywhere, their
    time is in the dense part.
    """

    def __init__(
        self,
        backend: Backend,
        config: ReplicaConfig,
        plan: MemoryPlan,
        prompt: Callable[[int, int], NDArray[np.int64]],
        *,
        model: Llama | None = None,
        delta_commit: bool = True,
        ranges: bool = False,
    ) -> None:
        policy = config.policy
        _refuse(policy)
        self.backend = backend = with_named_kernels(backend) if ranges else backend
        self.clock_name = "thread_cpu_time" if isinstance(backend, LiveCpuBackend) else "wall"
        self._clock = CLOCKS[self.clock_name]
        self._parts = backend.parts if isinstance(backend, LiveCpuBackend) else PartClock()
        self.parts_known = isinstance(backend, LiveCpuBackend)
        self.sequences: dict[int, list[int]] = {}
        #: (start, tokens, known) of every chunk, in order: with far history tokens depend on where chunks end.
        self.prefills: dict[int, list[tuple[int, int, int]]] = {}
        self._policy, self._prompt, self._delta_commit = policy, prompt, delta_commit
        #: Where steps run, one after another.
        self.stream = backend.stream()
        self._model_scope = policy.staged and policy.transport.scope == "model"
        self.model = model or Llama(config.model, backend.device, config.seed)
        if ranges:
            self.model = with_named_methods(backend, self.model)
        self._build(config, plan)
        if ranges:
            self._name_parts()
        #: What rows whose request has ended go on computing (run-ahead): their next input, and nobody's token.
        self._beyond: dict[int, list[int]] = {}
        self._owners = np.zeros(plan.slots, np.int64)
        self._admissions = 0
        self._flights: dict[int, _Flight] = {}
        self._resumed_ns = self._clock()
        # The weights were drawn on the default stream, which no other stream waits for.
        backend.finish()
        #: Nanoseconds of each capture.
        self.captures_ns: list[int] = []
        for batch in plan.batch_sizes:
            for context in plan.context_buckets_tokens:
                begun = self._clock()
                self._decode.capture(self._shape(batch, context, graph=True))
                self.captures_ns.append(self._clock() - begun)

    def _name_parts(self) -> None:
        """Put what the host does for each part of a step inside a range of that name."""
        own = {"_chunks": "host", "_commit": "host", "_transport": "transport", "_launch": "launch"}
        name_methods(self.backend, self, own)
        name_methods(self.backend, self._committer, {"commit": "commit"})
        name_methods(self.backend, self._mixed, {"attend_chunk": "attention"})

    def _build(self, config: ReplicaConfig, plan: MemoryPlan) -> None:
        backend, policy = self.backend, self._policy
        block_size = policy.pager.block_size_tokens
        shape = KvShape.of(config.model, block_size)
        self.pool = KvPool(backend, shape, plan.pool_blocks, policy.layout)
        width = table_width_blocks(config)
        staging = None
        if policy.staged:
            staged = shape if self._model_scope else replace(shape, layers=1)
            staging = Staging(backend, staged, plan.slots, history_blocks(config), policy.layout)
        # A block of the pool is in one group at most, unless rows share it.
        most_groups = plan.slots * width if policy.pager.prefix_sharing else plan.pool_blocks
        wire = WireShape(
            slots=plan.slots,
            table_width=width if policy.paged else 1,
            # At layer scope the step gathers what the descriptor lists.
            group_capacity=most_groups if policy.staged and not self._model_scope else 1,
            patch_capacity=PATCH_CAPACITY,
        )
        self._committer = Committer(backend, wire, self.stream, block_size=block_size)
        self._decode = DecodeStep(backend, self.model, self.pool, wire, self._committer.resident, self.stream, staging)
        self._results = ResultRing(backend, self._decode.results, self.stream)
        self._mixed = MixedStep(
            backend,
            self.model,
            self.pool,
            wire,
            self._committer.resident,
            self._decode.outputs,
            self.stream,
            staging,
            max_tokens=most_tokens_in_a_step(config, plan.slots),
            max_pages=plan.slots * width,
            chunk_attention=(backend.chunk_attention if isinstance(backend, LiveCpuBackend) else torch_chunk_attention),
        )
        self._build_moves(plan, staging)

    def _build_moves(self, plan: MemoryPlan, staging: Staging | None) -> None:
        """What moves blocks before a step: history to staging at model scope, and what the plan lists."""
        backend, policy, clock = self.backend, self._policy, StreamClock(self.backend)
        pool = Space(self.pool, clock)
        #: The plan's moves, where the policy has any.
        self.moves: BlockMoves | None = None
        if BlockMoves.needed_by(policy):
            self.moves = BlockMoves(backend, clock, pool, self.stream, policy.host, plan.host_blocks)
        self._history: tuple[TransferEngine, Space, Space] | None = None
        if staging is not None and self._model_scope:
            route, capacity = policy.transport.submission, plan.group_capacities[-1]
            engine = TransferEngine(backend, clock, self.stream, route, capacity)
            self._history = engine, pool, Space(staging, clock)

    def _shape(self, rows: int, context: int, *, graph: bool) -> StepShape:
        policy = self._policy
        return StepShape(
            rows=rows,
            context_tokens=context,
            reads="staged" if policy.staged else "table" if policy.paged else "contiguous",
            gathers=policy.staged and not self._model_scope,
            reads_all=graph and policy.read.extent == "bucket",
        )

    def resume(self) -> None:
        """What the host did since the last step ended (hashing a plan, say) is none of the next step's time."""
        self._resumed_ns = self._clock()

    def submit(self, plan: StepPlan) -> int:
        """Enqueue a step. Raises what commit, transfer and replay raise."""
        self._parts.reset()
        flight = _Flight(0, None, [], self._resumed_ns)
        self._renumber(plan)
        chunks = self._chunks(plan, flight)
        self._commit(plan, flight)
        self._transport(plan, flight)
        touches = None if self.moves is None else self.moves.before_step(plan)
        self._launch(plan, chunks)
        if self.moves is not None and touches is not None:
            self.moves.after_step(touches)
        flight.result = self._results.fetch()
        self._flights[plan.number] = flight
        return plan.number

    def _renumber(self, plan: StepPlan) -> None:
        """Compaction changes tables, and who comes back from the host is in no chunk: the committer has to look at
        whole tables again.
        """
        if np.isin(plan.moves[:, 0], (MOVE_COMPACT, MOVE_IN)).any():
            self._owners[:] = self._admissions + 1 + np.arange(len(self._owners))
            self._admissions += len(self._owners)

    def _chunks(self, plan: StepPlan, flight: _Flight) -> list[Chunk]:
        after = self._committer.wire.slots + ECHO_WORDS
        chunks = []
        for planned in plan.chunks:
            if planned.admitted:  # perhaps again
                self._admissions += 1
                self._owners[planned.stage_row] = self._admissions
            if planned.row not in self.sequences:
                begun = self._clock()
                self.sequences[planned.row] = self._prompt(planned.row, planned.known).tolist()
                self.prefills[planned.row] = []
                self._beyond.pop(planned.row, None)
                flight.begun_ns += self._clock() - begun  # a prompt comes with its request: no server draws it
            self.prefills[planned.row].append((planned.start, planned.tokens, planned.known))
            known = self.sequences[planned.row]
            tokens = np.array(known[planned.start : planned.start + planned.tokens], np.int64)
            chunks.append(Chunk(tokens, planned.start, planned.table, planned.gives_token, planned.dropped_blocks))
            if planned.gives_token:
                flight.deliveries.append((known, after))
                after += 1
        return chunks

    def _commit(self, plan: StepPlan, flight: _Flight) -> None:
        d = plan.descriptor
        live = np.flatnonzero(d.active).tolist()
        tokens, owners, counts = (np.zeros(len(d.active), np.int64) for _ in range(3))
        for slot, (stage_row, row) in zip(live, plan.decoding, strict=True):
            known, at = self.sequences[row], int(d.positions[slot])
            beyond = self._beyond.setdefault(row, []) if stage_row in plan.ended else []
            tokens[slot] = known[at] if at < len(known) else beyond[at - len(known)]
            owners[slot] = self._owners[stage_row] << _DROPPED_BITS
            flight.deliveries.append((beyond if stage_row in plan.ended else known, slot))
        # A row that has dropped history (whole blocks: what its position is ahead of its length) has another table.
        owners += d.positions + (d.active - d.lengths)
        counts[live] = -(-d.lengths[live] // self.pool.shape.block_size) if self._policy.paged else 1
        groups = d.num_groups
        if self._history is not None:
            d.num_groups = 0  # they are carried out before the step: it gathers nothing itself
        flight.host_ns = self._clock()
        flight.commitment = self._committer.commit(d, tokens, owners, counts, delta=self._delta_commit)
        flight.commit_ns = self._clock() - flight.host_ns
        d.num_groups = groups

    def _transport(self, plan: StepPlan, flight: _Flight) -> None:
        """Everything that is moved before the step; kernels that are timed by themselves are not timed twice."""
        d = plan.descriptor
        history = self._history if d.num_groups else None
        if self.moves is None and history is None:
            return
        begun, kernels = self._clock(), self._parts.spent_ns["transport"]
        if self.moves is not None:
            self.moves.carry_out(plan)
        if history is not None:
            engine, pool, staging = history
            engine.move(pool, staging, d.groups[: d.num_groups])
        flight.submit_ns = self._clock() - begun - (self._parts.spent_ns["transport"] - kernels)

    def _launch(self, plan: StepPlan, chunks: Sequence[Chunk]) -> None:
        d, step = plan.descriptor, plan.step
        if plan.decoding and int(step.launch_kind) == GRAPH:
            self._decode.replay(self._shape(int(step.padded_rows), int(step.context_bucket), graph=True))
            return
        rows = int(np.flatnonzero(d.active)[-1]) + 1 if plan.decoding else 0
        context = int(d.lengths.max())
        if self._policy.staged and not chunks:
            self._decode.run_eager(self._shape(rows, context, graph=False))
        else:
            self._mixed.run(rows, chunks, reads_table=self._policy.paged, context_tokens=context)

    def wait(self, ticket: int) -> StepTiming:
        """Hold until the step is done, check what it echoed, and append its tokens to their sequences.

        Raises StaleDescriptorError.
        """
        flight = self._flights.pop(ticket)
        results = self._results.take(flight.result)
        if flight.commitment is not None:
            slots = self._committer.wire.slots
            self._committer.verify(results[slots : slots + ECHO_WORDS], flight.commitment)
        for tokens, at in flight.deliveries:
            tokens.append(int(results[at]))
        spent = self._parts.spent_ns
        host = flight.host_ns - flight.begun_ns
        transport = flight.submit_ns + spent["transport"]
        apart = host + flight.commit_ns + transport + spent["attention"]
        self._resumed_ns = self._clock()
        rest = max(0, self._resumed_ns - flight.begun_ns - apart)
        by_part = {
            "host": host,
            "commit": flight.commit_ns,
            "transport": transport,
            "attention": spent["attention"],
            "dense": rest,
        }
        return StepTiming(tuple(by_part.get(part, 0) for part in st.PARTS))

    def poll_transfers(self) -> Sequence[int]:
        """None: a transfer beside the steps is done when the link's model says so, and events order the rest."""
        return ()

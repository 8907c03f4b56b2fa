"""What the reference is given and what it hands back: configuration, arrivals, requests, steps, result.

Words are those of the policy's TOML; integers are in the unit of their name (docs/semantics.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: Duration of a step from the integers of docs/semantics.md section 6, by their names there.
StepNs = Callable[[dict[str, int]], int]


class ReferenceInputError(Exception):
    """A request that the configuration refuses with a named error; the message gives its row."""


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig:
    """One replica's policy, sizes and ladders. Only valid combinations (docs/policies.md); ladders ascend."""

    # reserve
    reserve: str  # max_len pow2 declared oracle bucket paged
    buckets_tokens: tuple[int, ...] = ()  # bucket only; ends at the limit
    declared_default_tokens: int | None = None
    limit_tokens: int
    over_limit: str = "reject"  # reject truncate error
    # pager
    pool_blocks: int
    block_size_tokens: int
    placement: str  # lifo fifo lowest extent contiguous buddy
    extent_blocks: int = 16  # extent only
    release_order: str = "reverse"  # reverse sorted
    prefix_sharing: bool = False
    partial_tail: str = "recompute"  # recompute copy
    hash_block_tokens: int | None = None  # tokens of a hash block of the trace
    near_blocks: int = 0  # N, the near window; 0: far history is off
    summary_blocks: int = 0  # S
    compaction: str = "none"  # none threshold demand
    compaction_ratio: float = 0.5  # threshold: of the free blocks, how much may lie outside the longest run
    compaction_max_moves: int = 1 << 30
    # schedule
    slots: int
    prefill: str  # none chunked separate
    token_budget: int = 2048
    admission: str = "full_prompt"  # full_prompt first_chunk
    watermark_blocks: int = 0
    refill: str = "continuous"  # continuous batch
    order: str = "fcfs"  # fcfs shortest_prompt shortest_total priority
    aging_ns: int | None = None
    victim: str = "last"  # last least_computed largest lowest_priority
    draft_tokens: int = 0  # k; 0: speculation is off
    acceptance: float = 0.0  # of a draft, if all before it are right
    seed: int = 0
    # launch
    launch: str = "eager"  # eager graph
    batch_sizes: tuple[int, ...] = ()
    context_buckets_tokens: tuple[int, ...] = ()
    mixed: str = "eager"  # eager piecewise
    token_sizes: tuple[int, ...] = ()
    capture: str = "warm"  # warm first_use
    max_padding: float | None = None  # a captured batch serves no fewer than batch / max_padding rows
    # read and transport
    read_what: str  # reserved live table staged
    read_extent: str  # live bucket
    layout: str = "layer_major"  # layer_major block_major
    merge: str = "adjacent"  # none adjacent
    staging: str = "full"  # full delta
    packed_blocks: int = 0  # C, blocks that packed staging holds; 0: staging is strided
    scope: str = "layer"  # layer model
    group_capacities: tuple[int, ...] = (16384,)
    layers: int = 1
    # run-ahead
    run_ahead: int = 0  # d: a step is decided while d steps are in flight
    # host
    preempt: str = "recompute"  # recompute swap auto
    host_blocks: int = 0
    host_overlap: bool = False  # copies are transfers on the link, or else part of the step
    host_merge: str = "adjacent"  # adjacent none
    offload: bool = False  # the host keeps evicted blocks
    host_segment_ns: float = 0.0
    host_out_block_ns: float = 0.0
    host_in_block_ns: float = 0.0
    host_out_slowdown: float = 1.0  # while the other direction is busy
    host_in_slowdown: float = 1.0

    def __post_init__(self) -> None:
        paged = self.reserve == "paged"
        assert paged == (self.read_what in ("table", "staged")), "table and staged reads go with paged, and only they"
        assert paged or self.placement in ("contiguous", "buddy"), "a reservation is one run"
        assert self.read_what != "reserved" or self.read_extent == "bucket", "reserved reads cover the extent"
        assert self.prefill != "chunked" or self.token_budget >= self.slots, "a decoding row gets its token"
        assert self.admission != "first_chunk" or (self.prefill == "chunked" and paged), "no chunk to admit by"
        assert self.reserve != "bucket" or self.buckets_tokens[-1] == self.limit_tokens, "the ladder ends at the limit"
        assert self.staging != "delta" or self.scope == "model", "nothing stays valid at layer scope"
        assert self.packed_blocks >= 0, f"packed staging of {self.packed_blocks} blocks"
        if self.packed_blocks > 0:
            assert self.read_what == "staged", "nothing is packed that is not staged"
            assert self.read_extent == "live", "packed staging has no extents"
            assert self.staging == "full", "in packed staging nothing stays where it was"
        assert self.release_order == "reverse" or self.placement in ("lifo", "fifo"), "nothing to sort a release for"
        assert paged or not self.prefix_sharing, "a reservation is not shared"
        assert self.partial_tail == "recompute" or self.prefix_sharing, "no tail to copy"
        assert self.partial_tail == "recompute" or self.prefill != "none", "no prompt is computed, nothing is copied"
        assert min(self.near_blocks, self.summary_blocks) >= 0, "blocks are counted from 0"
        assert self.near_blocks > 0 or self.summary_blocks == 0, "no history to sum up beyond a window"
        if self.far_history:
            assert paged, "a reservation gives nothing back early"
            assert not self.prefix_sharing, "a summary would overwrite what others share"
            assert self.staging == "full", "the list shifts: nothing staged stays valid"
        assert self.compaction in ("none", "threshold", "demand"), f"no compaction is called {self.compaction!r}"
        assert self.compaction == "none" or self.placement != "buddy", "a buddy pool has no free run to keep together"
        assert self.compaction != "demand" or not paged, "nothing paged demands a single run"
        assert self.compaction_ratio >= 0, f"no share of the free blocks is {self.compaction_ratio}"
        assert self.compaction_max_moves > 0, "a compaction moves something"
        assert self.draft_tokens >= 0, "drafts are counted from 0"
        assert 0 <= self.acceptance <= 1, f"nothing is accepted with a chance of {self.acceptance}"
        assert self.draft_tokens == 0 or not self.far_history, "a row with far history drafts nothing"
        if self.hash_block_tokens is not None:
            sizes = (self.hash_block_tokens, self.block_size_tokens)
            assert max(sizes) % min(sizes) == 0, f"hash blocks and pager blocks of {sizes} tokens do not line up"
        assert self.capture in ("warm", "first_use"), f"no capture is called {self.capture!r}"
        assert self.max_padding is None or self.max_padding >= 1, f"a padding of {self.max_padding} serves nobody"
        assert self.batch_sizes == () or self.batch_sizes[-1] <= self.slots, "captured batches are cut at the slots"
        assert 0 <= self.run_ahead <= 2, f"a run-ahead of {self.run_ahead} steps"
        assert self.run_ahead == 0 or self.compaction == "none", "steps in flight read what a compaction would move"
        assert self.run_ahead == 0 or self.draft_tokens == 0, "what is accepted is not known while a step is in flight"
        self._check_host()
        for ladder in (self.buckets_tokens, self.batch_sizes, self.context_buckets_tokens, self.token_sizes):
            assert list(ladder) == sorted(set(ladder)), f"ladder {ladder} does not ascend"

    def _check_host(self) -> None:
        assert self.preempt in ("recompute", "swap", "auto"), f"nothing is preempted by {self.preempt!r}"
        assert self.host_merge in ("adjacent", "none"), f"no merge is called {self.host_merge!r}"
        assert self.host_blocks >= 0, f"{self.host_blocks} host blocks"
        assert min(self.host_segment_ns, self.host_out_block_ns, self.host_in_block_ns) >= 0, "a copy takes time"
        assert min(self.host_out_slowdown, self.host_in_slowdown) >= 1, "a busy link is no faster"
        if self.preempt != "recompute":
            assert self.host_blocks > 0, "nowhere to swap to"
            assert self.paged, "a reservation is not swapped"
            assert not self.far_history, "a row that has forgotten is not swapped"
        if self.offload:
            assert self.host_blocks > 0, "nowhere to keep what is evicted"
            assert self.prefix_sharing, "nothing is found again without keys"

    @property
    def paged(self) -> bool:
        """Blocks are taken as they are written."""
        return self.reserve == "paged"

    @property
    def far_history(self) -> bool:
        """Rows give blocks back early."""
        return self.near_blocks > 0

    @property
    def kept_blocks(self) -> int:
        """S + N."""
        return self.summary_blocks + self.near_blocks

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many entries."""
        return -(-tokens // self.block_size_tokens)

    def most(self, tokens: int) -> int:
        """Blocks that a row holds at most at once for so many entries."""
        if not self.far_history or self.prefill == "separate":
            return self.blocks(tokens)
        extra = self.blocks(self.token_budget) if self.prefill == "chunked" else 0
        return min(self.blocks(tokens), self.kept_blocks + extra)


@dataclass(frozen=True)
class Arrival:
    """One row of a trace."""

    row: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    declared_max_tokens: int | None = None
    priority: int = 0  # lower is more urgent
    #: Ids of the prompt's hash blocks; equal ids: equal tokens from the start of the prompt to the end of the block.
    hashes: tuple[int, ...] = ()


@dataclass(eq=False)
class Request:
    """A request from its arrival on. It is never copied, so identity is equality."""

    row: int
    arrival_ns: int
    prompt: int
    output: int  # O', what will be delivered
    reservation_tokens: int | None  # None: paged
    cut_by: str | None = None  # why O' < O: context_limit, declared_limit
    priority: int = 0
    hashes: tuple[int, ...] = ()

    turn: int | None = None  # its number in the order of arrival
    delivered: int = 0
    computed: int = 0
    #: Its prompt (after a preemption: prompt and delivered tokens) is computed.
    decoding: bool = False
    drafts: int = 0  # that it verifies in the step that is planned or in flight
    joined_in: int | None = None  # the number of the decision in which it last joined running
    blocks: list[int] = field(default_factory=list)
    dropped: int = 0  # blocks that it has given back early
    slot: int | None = None
    stage_row: int | None = None
    #: `delta` only: logical blocks whose entries are valid in its staging row; None: not staged since its admission.
    staged_blocks: set[int] | None = None
    ended: bool = False  # its last token is delivered, and its row runs on
    overrun: int = 0  # tokens that the row of an ended request made, for nobody
    host_blocks: list[int] = field(default_factory=list)  # the copy of its first blocks, once it is swapped out
    loading: list[int] = field(default_factory=list)  # host blocks that are copied to the last that it has computed
    takes_all: bool = False  # at its admission it took blocks for all that was known
    leaving: bool = False  # it waits, and its copy out has not been noticed

    outcome: str | None = None
    reason: str | None = None
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    finish_ns: int | None = None
    preemptions: int = 0
    recomputed_tokens: int = 0
    lost_tokens: int = 0  # computed at its last preemption
    hit_tokens: int | None = None  # at its first admission

    @property
    def known(self) -> int:
        """Tokens whose entries can be computed now: the prompt and what was delivered (or made in an ended row)."""
        return self.prompt + self.delivered + self.overrun


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """How one injected request ended. Absent is None."""

    row: int
    outcome: str  # completed rejected truncated unfinished
    reason: str  # trace_end over_limit unservable context_limit declared_limit stopped
    arrival_ns: int
    admitted_ns: int | None
    first_token_ns: int | None
    finish_ns: int | None
    delivered: int
    preemptions: int
    recomputed_tokens: int
    hit_tokens: int | None  # None: never admitted


@dataclass(frozen=True)
class Table:
    """A live batch row in a step: its request, its staging row, its physical blocks in logical order."""

    row: int
    stage_row: int
    blocks: tuple[int, ...]
    dropped: int = 0  # given back early, after the first S


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as planned. ``end_ns`` may lie after ``until_ns``: such a step was decided but not applied."""

    start_ns: int
    end_ns: int
    planned: tuple[tuple[int, int], ...]  # (row, tokens) in planned order
    held_up: tuple[int, ...]  # rows that run and wait for pending blocks
    plan: dict[str, int]  # the integers of section 6
    off_ladder: bool
    row_moves: int
    reserved_blocks: int
    allocated_blocks: int
    used_tokens: int
    cached_blocks: int
    pending_blocks: int  # behind a fence, or of requests that leave
    tables: dict[int, Table] | None  # by slot, every running request; only when asked for


@dataclass(frozen=True)
class TransferRow:
    """A transfer on the host link. Absent is None: still in flight, or completed and not noticed."""

    direction: str  # out in
    row: int
    blocks: int
    groups: int
    alone_ns: int
    submitted_ns: int
    completed_ns: int | None
    noticed_ns: int | None


@dataclass(frozen=True)
class Event:
    """Something that happened to a request: arrive, reject, admit, preempt, first_token, finish.

    "preempt" by swapping is followed by swap_out; "admit" of a request that was swapped by swap_in, of one that loads
    by load: when copies overlap, it is when it begins to move. To the row of an ended request: preempt_ended,
    release_ended.
    """

    time_ns: int
    kind: str
    row: int


@dataclass(frozen=True, kw_only=True)
class ReferenceResult:
    """A whole replay."""

    requests: list[RequestRow]  # by row; those that arrived by `until_ns`
    steps: list[Step]
    itl_ns: list[int]  # in order of time, within a step in planned order
    events: list[Event]
    free_blocks: int  # at the end; store and evictable blocks
    cached_blocks: int  # at the end; evictable blocks
    accepted_tokens: int  # delivered beyond one a row and step
    preemptions: int  # of the run: those of ended rows too
    swaps: int  # preemptions by swapping
    offloaded_blocks: int  # evicted on the device and kept on the host
    loaded_blocks: int  # by admissions, instead of computing them
    transfers: list[TransferRow]  # as submitted; none without overlap
    free_host_blocks: int  # at the end; store and evictable blocks
    cached_host_blocks: int  # at the end; evictable blocks

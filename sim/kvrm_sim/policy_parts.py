"""The independent parts of a policy, DESIGN section 5: each a table of its own, and all of them together."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt

from kvrm_sim.plugin_registry import broken_packages, find, found_parts, needed
from kvrm_sim.plugins import Part
from kvrm_sim.tables import MOST_COUNT, Ladder, PositiveInt, Table, guess, named_or_ladder
from kvrm_sim.words import (
    PLUGGABLE,
    Admission,
    BatchLadderName,
    Capture,
    Compaction,
    ContextLadderName,
    LaunchMode,
    Layout,
    Mapping,
    Merge,
    MixedMode,
    PageKib,
    PartialTail,
    Preempt,
    PrefillMode,
    ReadExtent,
    ReadWhat,
    Refill,
    ReleaseOrder,
    ReserveMode,
    Scope,
    Staging,
    Submission,
    TokenLadderName,
    is_built_in,
)

#: `slots = "auto"` never takes more: the usual `max_num_seqs` of serving engines.
MAX_AUTO_SLOTS = 256


def _slots(value: object) -> object:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError('should be a whole number, 1 or more, or "auto"')
    return value


def _word_or_part(kind: str) -> BeforeValidator:
    """Check a word that is built in, or the name of a user's part."""

    def check(value: object) -> object:
        words = get_args(PLUGGABLE[kind])
        if isinstance(value, str) and (value in words or find(kind, value) is not None):
            return value
        *first, last = (repr(word) for word in (*words, *(entry.part.name for entry in found_parts(kind))))
        hint = guess(value, [word.strip("'") for word in (*first, last)]) if isinstance(value, str) else ""
        raise ValueError(f"should be {', '.join(first)} or {last}{hint}{broken_packages()}")

    return BeforeValidator(check)


class Reserve(Table):
    """How much KV a request is promised at admission. ``paged``: nothing, blocks are taken as they are written."""

    section: ClassVar[str] = "reserve"

    mode: ReserveMode
    #: `bucket` only: reservation sizes; the model's limit is always the last one.
    buckets_tokens: Ladder | None = None
    #: `declared` only: for requests whose trace declares no maximum. None: such a request is an input error.
    declared_default_tokens: PositiveInt | None = None


class Launch(Table):
    """How a step reaches the device: kernel by kernel, or as a captured graph from a ladder of shapes."""

    section: ClassVar[str] = "launch"

    mode: LaunchMode
    #: Captured batch sizes. `full`: only the slots; `vllm`, `pow2`: see ladders.py. Sizes above the slots are cut.
    batch_sizes: Annotated[tuple[int, ...] | BatchLadderName, named_or_ladder("full", "vllm", "pow2")] = "full"
    #: Captured contexts. `limit`: only the model's limit; `pow2`: powers of two from 128, and the limit.
    context_buckets_tokens: Annotated[tuple[int, ...] | ContextLadderName, named_or_ladder("limit", "pow2")] = "limit"
    #: Steps with prefill tokens: kernel by kernel, or piecewise graphs (attention outside) over `token_sizes`.
    mixed: MixedMode = "eager"
    token_sizes: Annotated[tuple[int, ...] | TokenLadderName, named_or_ladder("vllm")] = "vllm"
    #: When shapes are captured: all of them before the run, or each in the first step that it serves, which waits.
    capture: Capture = "warm"
    #: A captured batch serves only steps that it pads to at most so many times their rows; None: any.
    max_padding: Annotated[StrictFloat, Field(ge=1, allow_inf_nan=False)] | None = None


class Read(Table):
    """What decode attention reads and how far."""

    section: ClassVar[str] = "read"

    what: ReadWhat
    #: `live`: the kernel reads lengths as data and stops there; `bucket`: the whole captured (or reserved) extent.
    extent: ReadExtent


class Transport(Table):
    """How scattered blocks are gathered into staging. Only with ``read.what = "staged"``."""

    section: ClassVar[str] = "transport"

    merge: Merge = "adjacent"
    staging: Staging = "full"
    scope: Scope = "layer"
    #: Capacities of the group table, ascending; a graph is captured for each at layer scope.
    group_capacities: Ladder = (16384,)
    submission: Submission = "kernel"
    #: Staging of so many tokens for all rows together, which lie in it one behind the other, instead of room for the
    #: longest context in each (None). A step whose rows do not fit reads the block table.
    packed_tokens: PositiveInt | None = None
    #: Layer scope: two buffers of one layer each, so that a gather may run beside the attention before it.
    double_buffered: StrictBool = False


class Pager(Table):
    """Physical blocks and where they are placed."""

    section: ClassVar[str] = "pager"

    block_size_tokens: PositiveInt = 16
    placement: Annotated[str, _word_or_part("placement")]
    #: `extent` only: ids are cut into extents of so many blocks, which a request prefers to fill.
    extent_blocks: PositiveInt = 16
    #: How a request's blocks come back (`lifo`, `fifo`): last logical block first, or so that the next ascend.
    release_order: ReleaseOrder = "reverse"
    #: Whole prompt blocks are shared by the trace's prefix hashes, and kept until they are evicted (LRU).
    prefix_sharing: StrictBool = False
    #: Of a prompt that is cached whole: its last block is computed again, or copied but for its last token.
    partial_tail: PartialTail = "recompute"
    #: `table`: a kernel looks each block up. `virtual`: blocks are pages of physical memory, mapped behind one another
    #: into a range of virtual addresses that each row has, so that kernels read it as contiguous.
    mapping: Mapping = "table"
    #: `virtual` only. The block's size follows from it: the tokens of one layer's keys that a page holds.
    page_kib: PageKib = 2048
    #: `virtual` only: pages are mapped while the step before runs, and add to a step only what that does not cover.
    map_ahead: StrictBool = True
    #: Move what is at the pool's tail into its holes: when too much of what is free lies outside of the largest
    #: hole, or when a contiguous reservation finds no single one.
    compaction: Compaction = "none"
    #: `threshold` only: the share of the free blocks that may lie outside of the largest free run.
    compaction_ratio: Annotated[StrictFloat, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.5
    #: Moves of one compaction at most: of blocks, or of whole reservations.
    compaction_max_moves: PositiveInt = 1024


class FarHistory(Table):
    """What a decoding row keeps of a long history: its last tokens in full, and some blocks of summaries before."""

    section: ClassVar[str] = "far_history"

    #: The near window, a multiple of the block size.
    window_tokens: PositiveInt
    #: Blocks of a row that hold the summaries; 0 forgets what is far.
    summary_blocks: Annotated[StrictInt, Field(ge=0, le=MOST_COUNT)]

    def blocks(self, block_size_tokens: int) -> int:
        """Blocks that a decoding row keeps at most."""
        return self.window_tokens // block_size_tokens + self.summary_blocks


class Host(Table):
    """A pool of blocks in host memory, and the link to it."""

    section: ClassVar[str] = "host"

    #: For each device.
    memory_gib: Annotated[StrictFloat, Field(gt=0, le=16_384, allow_inf_nan=False)]
    #: Copies run beside the steps, on a link that they share; or each is part of the step that asks for it.
    overlap: StrictBool = True
    submission: Submission = "batch"
    #: Neighbours on both sides are copied as one.
    merge: Merge = "adjacent"
    #: Evicted prefix blocks are kept there and loaded for a hit, where that costs less than computing them.
    offload: StrictBool = False


class Speculation(Table):
    """Drafts that a decoding row verifies beside its next token."""

    section: ClassVar[str] = "speculation"

    draft_tokens: PositiveInt
    #: The chance of each draft, given that those before it were accepted; drawn from `seed`.
    acceptance: Annotated[StrictFloat, Field(ge=0, le=1, allow_inf_nan=False)]
    #: What drafting takes in each step, for the whole batch. 0: looked up, not computed.
    draft_ms: Annotated[StrictFloat, Field(ge=0, le=1e6, allow_inf_nan=False)] = 0.0


class Schedule(Table):
    """Who runs in a step (docs/semantics.md section 3)."""

    section: ClassVar[str] = "schedule"

    #: Rows of the batch. `auto`: as many as memory allows, up to 256 (memory.py).
    slots: Annotated[int | Literal["auto"], BeforeValidator(_slots)] = 256
    prefill: PrefillMode
    #: Tokens in a step (`chunked`), or prompt tokens in a prefill step (`separate`).
    token_budget: PositiveInt = 2048
    #: Share of the pool that an admission leaves free; not applied to growth, nor to the first request.
    watermark: Annotated[StrictFloat, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    admission: Admission = "full_prompt"
    refill: Refill = "continuous"
    #: Who is admitted next. `shortest_total` knows the output length, as no server does: a bound.
    order: Annotated[str, _word_or_part("order")] = "fcfs"
    #: So many seconds of waiting weigh as much as one token (`shortest_*`) or one level (`priority`); None: no aging.
    aging_s: Annotated[StrictFloat, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    #: Who is preempted when a running row needs a block and none can be had.
    victim: Annotated[str, _word_or_part("victim")] = "last"
    #: What becomes of a victim's entries: computed again, moved to the host and back, or whichever costs less.
    preempt: Preempt = "recompute"
    #: Steps in flight when the next one is decided. An end is noticed as many steps late, and freed blocks wait for it.
    run_ahead: Annotated[StrictInt, Field(ge=0, le=2)] = 0


class PolicyParts(Table):
    """What a policy consists of, whether or not it makes sense together (combinations.py)."""

    name: str = Field(min_length=1)
    description: str = ""
    reserve: Reserve
    launch: Launch
    read: Read
    layout: Layout = "layer_major"
    transport: Transport = Transport()
    pager: Pager
    schedule: Schedule
    far_history: FarHistory | None = None
    host: Host | None = None
    speculation: Speculation | None = None

    @property
    def paged(self) -> bool:
        """Blocks are taken as they are written; otherwise a request holds one contiguous reservation."""
        return self.reserve.mode == "paged"

    @property
    def parts(self) -> tuple[type[Part], ...]:
        """The users' parts that it names, by kind. Raises ConfigError when one of them is no longer known."""
        words = {"placement": self.pager.placement, "victim": self.schedule.victim, "order": self.schedule.order}
        return tuple(
            needed(kind, word, get_args(PLUGGABLE[kind])) for kind, word in words.items() if not is_built_in(kind, word)
        )

    @property
    def staged(self) -> bool:
        """Attention reads a staging buffer that the transport fills."""
        return self.read.what == "staged"

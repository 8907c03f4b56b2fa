"""The reference's step plan: the integers that cost reads, literal from docs/semantics.md section 6.

Row moves and the block tables are the simulator's (reference.py); nothing here changes any state.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from tests.sim.reference_far_history import left_blocks, left_tokens
from tests.sim.reference_records import ReferenceConfig, Request

EAGER, GRAPH, PIECEWISE = 0, 1, 2

Planned = list[tuple[Request, int]]

#: What one capture serves: the launch kind, then batch, context and group capacity, or tokens; 0 where it has none.
Shape = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Group:
    """A transfer group: blocks from ``source`` on, each with its place: a row and a logical block of its history.

    Neighbours in a row are neighbours in staging; in packed staging the end of a row and the beginning of the next are
    neighbours, too.
    """

    source: int
    places: tuple[tuple[Request, int], ...]


@dataclass(frozen=True)
class Launch:
    """How a step reaches the device: ``batch`` and ``context`` of the graph, or ``tokens`` of the piecewise one.

    ``capacity`` is the graph's group capacity at layer scope of staged reads, elsewhere 0.
    """

    kind: int
    off_ladder: bool
    batch: int = 0
    context: int = 0
    capacity: int = 0
    tokens: int = 0

    @property
    def shape(self) -> Shape | None:
        """What has to be captured before this step can be served; None: it runs eagerly."""
        if self.kind == EAGER:
            return None
        return (self.kind, self.batch, self.context, self.capacity, self.tokens)


def smallest_at_least(ladder: tuple[int, ...], value: int) -> int | None:
    """The smallest entry >= value, or None beyond the ladder."""
    return min((entry for entry in ladder if entry >= value), default=None)


def overflows(config: ReferenceConfig, planned: Planned, *, is_decode: bool) -> bool:
    """Whether this step has more history than packed staging holds; a mixed step has nothing to stage."""
    if config.packed_blocks == 0 or not is_decode:
        return False
    return sum(left_blocks(config, request) for request, _ in planned) > config.packed_blocks


def transfer_groups(config: ReferenceConfig, planned: Planned, *, is_decode: bool) -> list[Group]:
    """Every group that this step moves into staging; none unless reads are staged, and the step decodes and fits.

    A row without history takes no place in packed staging: its neighbours on either side are next to each other.
    """
    groups: list[Group] = []
    if config.read_what != "staged" or not is_decode or overflows(config, planned, is_decode=is_decode):
        return groups
    for request, _ in planned:
        if config.staging == "delta" and request.staged_blocks is not None:
            continue
        history = request.blocks[: left_blocks(config, request)]
        for logical, block in enumerate(history):
            last = groups[-1] if groups and (config.packed_blocks > 0 or logical > 0) else None
            if config.merge == "adjacent" and last is not None and last.source + len(last.places) == block:
                groups[-1] = Group(last.source, (*last.places, (request, logical)))
            else:
                groups.append(Group(block, ((request, logical),)))
    return groups


def transport_integers(config: ReferenceConfig, groups: list[Group]) -> dict[str, int]:
    """Section 6, Transport."""
    moved = sum(len(group.places) for group in groups)
    requests = {request for group in groups for request, _ in group.places}
    rounds = 0
    if groups:
        rounds = 1
        if config.scope == "model":
            rounds = -(-len(groups) // max(config.group_capacities))
    if config.layout == "layer_major":
        segments = config.layers * len(groups)
    elif config.scope == "layer":
        segments = config.layers * moved
    else:
        segments = len(groups)
    return {
        "groups": len(groups),
        "moved_blocks": moved,
        "needed_tokens": sum(left_tokens(config, request) for request in requests),
        "segments": segments,
        "rounds": rounds,
    }


def choose_launch(
    config: ReferenceConfig, planned: Planned, groups: list[Group], *, is_decode: bool, live_rows: int
) -> Launch:
    """Section 6, Launch. A graph covers batch rows from 0 on, so all that are live: a row that waits keeps its own.

    What packed staging cannot hold is off the ladder without one, too.
    """
    if overflows(config, planned, is_decode=is_decode):
        return Launch(EAGER, off_ladder=True)
    if config.launch == "eager":
        return Launch(EAGER, off_ladder=False)
    if is_decode:
        batch = smallest_at_least(config.batch_sizes, live_rows)
        longest = max(request.computed + 1 + request.drafts for request, _ in planned)
        if config.far_history:
            longest = min(longest, config.kept_blocks * config.block_size_tokens)
        context = smallest_at_least(config.context_buckets_tokens, longest)
        at_layer_scope = config.read_what == "staged" and config.scope == "layer"
        capacity = smallest_at_least(config.group_capacities, len(groups)) if at_layer_scope else 0
        if batch is None or context is None or capacity is None:
            return Launch(EAGER, off_ladder=True)
        if config.max_padding is not None and batch > config.max_padding * len(planned):
            return Launch(EAGER, off_ladder=True)
        return Launch(GRAPH, off_ladder=False, batch=batch, context=context, capacity=capacity)
    if config.mixed == "eager":
        return Launch(EAGER, off_ladder=False)
    tokens = smallest_at_least(config.token_sizes, sum(n + request.drafts for request, n in planned))
    if tokens is None:
        return Launch(EAGER, off_ladder=True)
    return Launch(PIECEWISE, off_ladder=False, tokens=tokens)


def read_tokens(config: ReferenceConfig, decoding: list[Request], launch: Launch) -> int:
    """Section 6, Read: KV entries that decode attention reads."""
    if config.read_extent == "bucket":
        if launch.kind == GRAPH:
            return launch.batch * launch.context
        if config.read_what == "reserved":
            return sum(request.reservation_tokens or 0 for request in decoding)
    return sum(left_tokens(config, request) + 1 + request.drafts for request in decoding)


def captures(config: ReferenceConfig, launch: Launch, captured: Set[Shape]) -> bool:
    """Section 6, Captures: whether a step captures what serves it, when ``captured`` served steps before it."""
    return config.capture == "first_use" and launch.shape is not None and launch.shape not in captured


def plan_integers(
    config: ReferenceConfig, planned: Planned, *, live_rows: int, captured: Set[Shape], moved: dict[str, int]
) -> tuple[dict[str, int], Launch]:
    """All integers of section 6 for the planned rows, before any of it is applied.

    ``live_rows`` have a batch row, ``captured`` are the shapes that served steps before this one, and ``moved`` are the
    integers that count what was decided since then.
    """
    decoding = [request for request, _ in planned if request.decoding]
    prefilling = [(request, n) for request, n in planned if not request.decoding]
    is_decode = not prefilling
    groups = transfer_groups(config, planned, is_decode=is_decode)
    launch = choose_launch(config, planned, groups, is_decode=is_decode, live_rows=live_rows)
    rows, drafted = len(planned), sum(request.drafts for request, _ in planned)
    tokens = {
        EAGER: sum(n for _, n in planned) + drafted,
        GRAPH: launch.batch * (1 + config.draft_tokens),
        PIECEWISE: launch.tokens,
    }[launch.kind]
    plan = {
        "decode_rows": len(decoding),
        "prefill_rows": len(prefilling),
        "prefill_tokens": sum(n for _, n in prefilling),
        "prefill_read_tokens": sum(left_tokens(config, request) + n for request, n in prefilling),
        "prefill_pairs": sum(n * left_tokens(config, request) + n * (n + 1) // 2 for request, n in prefilling),
        "sampled_rows": sum(1 for request, n in planned if request.computed + n == request.known) + drafted,
        "launch_kind": launch.kind,
        "padded_rows": launch.batch if launch.kind == GRAPH else rows,
        "dense_tokens": tokens,
        "context_bucket": launch.context,
        "read_tokens": read_tokens(config, decoding, launch),
        **transport_integers(config, groups),
        "captured": int(captures(config, launch, captured)),
        "ended_rows": sum(1 for request, _ in planned if request.ended),
        "drafted_tokens": drafted,
        **moved,
    }
    return plan, launch

"""Combinations of policy parts that are refused, each with its reason (docs/semantics.md, docs/policies.md).

Two kinds: what cannot work on a device or has no meaning, and an option that the chosen mode never reads (it must
stay at its default, so that nobody studies a setting that does nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvrm_sim.policy_parts import PolicyParts
from kvrm_sim.tables import Table
from kvrm_sim.words import is_built_in

__all__ = ["refusal"]


def refusal(policy: PolicyParts) -> str | None:
    """Why the combination is refused, or None."""
    for rule in _RULES:
        for reason in rule(policy):
            return reason
    return None


def _idle(table: Table, names: tuple[str, ...], why: str) -> Iterator[str]:
    """Options of ``table`` that differ from their default although the mode never reads them."""
    fields = type(table).model_fields
    given = [
        f"{table.key(name)} = {value!r}" for name in names if (value := getattr(table, name)) != fields[name].default
    ]
    if len(given) == 1:
        yield f"{given[0]} has no effect {why}; leave it out"
    elif given:
        yield f"{', '.join(given[:-1])} and {given[-1]} have no effect {why}; leave them out"


def _reads(policy: PolicyParts) -> Iterator[str]:
    what, mode = policy.read.what, policy.reserve.mode
    if policy.pager.mapping == "virtual":
        if not policy.paged or what != "live":
            yield (
                'pager.mapping = "virtual" maps pages as they are written into one range of addresses, so it needs '
                'reserve.mode = "paged" and read.what = "live"'
            )
        if policy.pager.compaction != "none":
            yield 'pager.compaction with pager.mapping = "virtual": where a page lies makes no difference to anybody'
        if policy.far_history is not None:
            yield 'far_history with pager.mapping = "virtual": the middle of a mapped range is not given back here'
        return
    yield from _idle(policy.pager, ("page_kib", "map_ahead"), 'with pager.mapping = "table"')
    if policy.paged and what in ("reserved", "live"):
        yield (
            f'read.what = "{what}" needs a contiguous reservation, but reserve.mode = "paged" scatters blocks; '
            'read them by "table" or "staged"'
        )
    if not policy.paged and what in ("table", "staged"):
        yield (
            f'read.what = "{what}" needs reserve.mode = "paged"; with "{mode}" each request is contiguous and is '
            'read as "reserved" or "live"'
        )
    if what == "reserved" and policy.read.extent != "bucket":
        yield 'read.extent = "live" with read.what = "reserved": reserved reads cover the whole extent; use "bucket"'


def _placement(policy: PolicyParts) -> Iterator[str]:
    placement = policy.pager.placement
    if not policy.paged and placement not in ("contiguous", "buddy"):
        yield (
            f'pager.placement = "{placement}" gives single blocks, but reserve.mode = "{policy.reserve.mode}" needs '
            'one contiguous run; use "contiguous" (best fit) or "buddy"'
        )


def _pager(policy: PolicyParts) -> Iterator[str]:
    pager = policy.pager
    if pager.placement != "extent":
        yield from _idle(pager, ("extent_blocks",), f'with pager.placement = "{pager.placement}"')
    if pager.placement not in ("lifo", "fifo"):
        why = f'with pager.placement = "{pager.placement}", whose choice does not depend on the order of the releases'
        if not is_built_in("placement", pager.placement):
            why = f'with pager.placement = "{pager.placement}", a plug-in: it keeps its own order'
        yield from _idle(pager, ("release_order",), why)
    if pager.prefix_sharing and not policy.paged:
        yield (
            'pager.prefix_sharing needs reserve.mode = "paged": a block of a contiguous reservation '
            f'("{policy.reserve.mode}") cannot be another request\'s as well'
        )
    if not pager.prefix_sharing:
        yield from _idle(pager, ("partial_tail",), "without pager.prefix_sharing")
    elif policy.schedule.prefill == "none":
        yield from _idle(pager, ("partial_tail",), 'with schedule.prefill = "none", where no prompt is computed')


def _far_history(policy: PolicyParts) -> Iterator[str]:
    far = policy.far_history
    if far is None:
        return
    if not policy.paged:
        yield (
            'far_history needs reserve.mode = "paged": a contiguous reservation '
            f'("{policy.reserve.mode}") gives nothing back before its request ends'
        )
    elif far.window_tokens % policy.pager.block_size_tokens != 0:
        yield (
            f"far_history.window_tokens = {far.window_tokens} is not a multiple of pager.block_size_tokens = "
            f"{policy.pager.block_size_tokens}: blocks are dropped whole"
        )
    elif policy.pager.prefix_sharing:
        yield "far_history with pager.prefix_sharing: summaries overwrite blocks that other requests share"
    elif policy.transport.staging == "delta":
        yield (
            'far_history with transport.staging = "delta": a row\'s blocks move up whenever one is dropped, so nothing '
            "that was staged stays valid"
        )


def _order(policy: PolicyParts) -> Iterator[str]:
    schedule = policy.schedule
    if not is_built_in("order", schedule.order):
        why = f'with schedule.order = "{schedule.order}", a plug-in: its score has the arrival\'s time to age by'
        yield from _idle(schedule, ("aging_s",), why)
    if schedule.order == "fcfs":
        yield from _idle(schedule, ("aging_s",), 'with schedule.order = "fcfs", which serves by age alone')
    if not policy.paged:
        why = "with a contiguous reservation, which is never preempted"
        yield from _idle(schedule, ("victim",), why)


def _reserve(policy: PolicyParts) -> Iterator[str]:
    reserve = policy.reserve
    if reserve.mode == "bucket" and reserve.buckets_tokens is None:
        yield 'reserve.mode = "bucket" needs reserve.buckets_tokens, the ladder of reservation sizes'
    why = f'with reserve.mode = "{reserve.mode}"'
    if reserve.mode != "bucket":
        yield from _idle(reserve, ("buckets_tokens",), why)
    if reserve.mode != "declared":
        yield from _idle(reserve, ("declared_default_tokens",), why)


def _launch(policy: PolicyParts) -> Iterator[str]:
    launch, schedule = policy.launch, policy.schedule
    if launch.mode == "eager":
        ladders = ("batch_sizes", "context_buckets_tokens", "mixed", "token_sizes", "capture", "max_padding")
        yield from _idle(launch, ladders, 'with launch.mode = "eager", which captures nothing')
    if launch.mixed == "eager":
        yield from _idle(launch, ("token_sizes",), 'with launch.mixed = "eager"')
    if schedule.prefill == "none":
        yield from _idle(launch, ("mixed",), 'with schedule.prefill = "none", where every step decodes')


def _transport(policy: PolicyParts) -> Iterator[str]:
    transport = policy.transport
    if not policy.staged:
        yield from _idle(
            transport,
            tuple(type(transport).model_fields),
            f'with read.what = "{policy.read.what}", which moves nothing',
        )
        return
    yield from _packed(policy)
    if transport.scope == "layer":
        if transport.staging == "delta":
            yield (
                'transport.staging = "delta" needs scope = "model": at layer scope each layer overwrites the '
                "staging of the one before, so nothing stays valid for the next step"
            )
        if policy.launch.mode == "graph" and transport.submission != "kernel":
            yield (
                f'transport.submission = "{transport.submission}" at layer scope needs the host between layers, and '
                'no host call can happen inside a captured graph; use submission = "kernel", scope = "model", or '
                'launch.mode = "eager"'
            )
    elif transport.double_buffered:
        yield 'transport.double_buffered has no effect with scope = "model": the staging holds every layer'


def _packed(policy: PolicyParts) -> Iterator[str]:
    packed, block = policy.transport.packed_tokens, policy.pager.block_size_tokens
    if packed is None:
        return
    if policy.transport.staging == "delta":
        yield (
            'transport.packed_tokens with staging = "delta": rows move up when one ahead of them grows or leaves, so '
            "nothing that was staged stays where it was"
        )
    if policy.read.extent == "bucket":
        yield (
            'transport.packed_tokens with read.extent = "bucket": a row ends where the next one begins, and a kernel '
            'that reads on to the captured extent reads other rows; use "live"'
        )
    if packed < block:
        yield f"transport.packed_tokens = {packed} is less than one block (pager.block_size_tokens = {block})"


def _schedule(policy: PolicyParts) -> Iterator[str]:
    schedule = policy.schedule
    if schedule.prefill == "none":
        yield from _idle(schedule, ("token_budget",), 'with schedule.prefill = "none"')
    if schedule.prefill == "chunked" and isinstance(schedule.slots, int) and schedule.token_budget < schedule.slots:
        yield (
            f"schedule.token_budget = {schedule.token_budget} is less than schedule.slots = {schedule.slots}: a "
            "decoding row would not get its token in every step"
        )
    if schedule.admission == "first_chunk":
        if schedule.prefill != "chunked":
            yield f'schedule.admission = "first_chunk" needs prefill = "chunked"; "{schedule.prefill}" has no chunks'
        elif not policy.paged:
            yield 'schedule.admission = "first_chunk" has no effect with a contiguous reservation, which is taken whole'


def _compaction(policy: PolicyParts) -> Iterator[str]:
    pager = policy.pager
    if pager.compaction == "none":
        keys = ("compaction_ratio", "compaction_max_moves")
        yield from _idle(pager, keys, 'with pager.compaction = "none"')
    elif pager.placement == "buddy":
        yield (
            f'pager.compaction = "{pager.compaction}" with pager.placement = "buddy": a buddy has its place, and holes '
            "close by merging; use another placement"
        )
    elif pager.compaction == "demand":
        yield from _idle(pager, ("compaction_ratio",), 'with pager.compaction = "demand"')
        if policy.paged:
            yield (
                'pager.compaction = "demand" has no effect with reserve.mode = "paged": single blocks always fit; '
                'use "threshold"'
            )


def _of_a_user(policy: PolicyParts) -> Iterator[str]:
    if is_built_in("placement", policy.pager.placement):
        return
    if policy.host is not None:
        yield (
            f'host with pager.placement = "{policy.pager.placement}", a plug-in: the host\'s pool is placed by '
            "the same functions"
        )
    if policy.pager.compaction != "none":
        yield (
            f'pager.compaction with pager.placement = "{policy.pager.placement}", a plug-in: compaction fills the free '
            "store of the built-in placements"
        )


def _in_flight(policy: PolicyParts) -> Iterator[str]:
    if policy.schedule.run_ahead > 0 and policy.pager.compaction != "none":
        yield (
            f'pager.compaction = "{policy.pager.compaction}" with schedule.run_ahead: the steps in flight still '
            "read the blocks from which it moves"
        )


def _host(policy: PolicyParts) -> Iterator[str]:
    preempt, host = policy.schedule.preempt, policy.host
    if preempt != "recompute":
        if not policy.paged:
            yield (
                f'schedule.preempt = "{preempt}" has no effect with a contiguous reservation '
                f'("{policy.reserve.mode}"), which is never preempted'
            )
        if host is None:
            yield f'schedule.preempt = "{preempt}" needs a host pool: set host.memory_gib'
        if policy.far_history is not None:
            yield f'schedule.preempt = "{preempt}" with far_history: its summaries are not moved; use "recompute"'
    if host is None:
        return
    if preempt == "recompute" and not host.offload:
        yield 'host has no effect with schedule.preempt = "recompute" and host.offload = false; set one of them'
    if host.offload and not policy.pager.prefix_sharing:
        yield "host.offload keeps evicted prefix blocks, so it needs pager.prefix_sharing = true"
    if host.offload and policy.schedule.prefill == "none":
        yield 'host.offload has no effect with schedule.prefill = "none", where a prompt costs nothing'


def _speculation(policy: PolicyParts) -> Iterator[str]:
    if policy.speculation is None:
        return
    if policy.schedule.run_ahead > 0:
        yield "speculation with schedule.run_ahead: the next step's drafts depend on what this one accepts"
    if policy.far_history is not None:
        yield "speculation with far_history: a window that moves by several tokens is not modelled"


_RULES: tuple[Callable[[PolicyParts], Iterator[str]], ...] = (
    _reads,
    _placement,
    _pager,
    _reserve,
    _launch,
    _transport,
    _schedule,
    _order,
    _far_history,
    _compaction,
    _of_a_user,
    _in_flight,
    _host,
    _speculation,
)

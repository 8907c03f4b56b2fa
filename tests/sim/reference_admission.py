"""The reference's admissions: what one would be now, and whether it fits; literal from docs/semantics.md section 3.

Nothing here changes any state; who admits is reference_scheduler.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.reference_host import Host
from tests.sim.reference_prefix import NO_HIT, Hit, Pager
from tests.sim.reference_records import ReferenceConfig, Request
from tests.sim.reference_runs import RunStore

#: The budget of `prefill = none`, and of the steps of `separate`.
INFINITE_TOKENS = 1 << 60


@dataclass(frozen=True)
class Entry:
    """What the admission of a request would be now."""

    hit: Hit
    load: tuple[int, ...]  # host blocks, to the row's own blocks after those that it hit
    computed: int
    tokens: int  # n
    want: int  # blocks
    swapped: bool  # it comes in from the host
    moves: bool  # it is not in this step: it joins when its copy has been noticed
    takes_all: bool  # blocks for all that is known


def entry_of(config: ReferenceConfig, pager: Pager, host: Host, r: Request, left: int) -> Entry:
    """What an admission of ``r`` would be, with ``left`` tokens of the budget."""
    overlap = config.host_overlap
    if r.host_blocks:
        whole = config.blocks(r.known)
        return Entry(NO_HIT, (), r.computed, 1, whole, swapped=True, moves=overlap, takes_all=True)
    hit = pager.find(r)
    load = host.find_load(r, pager.keys(r), len(hit.blocks))
    computed = hit.computed + len(load) * config.block_size_tokens
    if config.prefill == "none":
        computed = r.known - 1
    n = min(r.known - computed, left)
    moves = overlap and load != ()
    takes_all = moves or config.admission == "full_prompt"
    if r.reservation_tokens is not None:
        want = _runs(pager).run_blocks(config.blocks(r.reservation_tokens))
    else:
        want = config.most(r.known) if takes_all else config.blocks(computed + n)
    return Entry(hit, load, computed, n, want, swapped=False, moves=moves, takes_all=takes_all)


def enough_free(pager: Pager, entry: Entry, margin: int) -> bool:
    """Whether as many blocks as an admission wants are free, wherever they are."""
    return entry.want - len(entry.hit.blocks) <= pager.free() - entry.hit.evictable - margin


def has_run(config: ReferenceConfig, pager: Pager, want: int) -> bool:
    """Whether one run of ``want`` blocks is free, found by looking at every free id.

    A run of a buddy store has to start at a multiple of its length.
    """
    free = set(pager.store.free_ids())
    step = want if config.placement == "buddy" else 1
    starts = range(1, config.pool_blocks + 1, step)
    return any(all(start + offset in free for offset in range(want)) for start in starts)


def _runs(pager: Pager) -> RunStore:
    assert isinstance(pager.store, RunStore)
    return pager.store

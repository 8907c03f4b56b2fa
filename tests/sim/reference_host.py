"""The reference's host: its pool, and what is copied to it and from it; literal from docs/semantics.md section 3.

A copy is done before the step that is planned next, or is a transfer on the link (`overlap`); who moves then is in
``moving``, and in ``ready`` once it has come in and may join. Which requests move, and what they hold on the device,
is the scheduler's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from tests.sim.reference_link import IN, OUT, Link
from tests.sim.reference_pool import PoolExhaustedError
from tests.sim.reference_records import ReferenceConfig, Request
from tests.sim.reference_runs import ContiguousStore

#: Whether moving a row out and in costs no more than computing it again: from its computed tokens, the runs of its
#: first blocks on the device, and those blocks.
SwapIsCheaper = Callable[[int, int, int], bool]


def groups_of(config: ReferenceConfig, sources: Sequence[int], targets: Sequence[int]) -> int:
    """Groups of a copy: neighbours whose ids follow each other on both sides are one, unless nothing is merged."""
    pairs = list(zip(sources, targets, strict=True))
    if config.host_merge == "none":
        return len(pairs)
    breaks = [one for one, after in pairwise(pairs) if after != (one[0] + 1, one[1] + 1)]
    return len(breaks) + (pairs != [])


def runs_of(blocks: Sequence[int]) -> int:
    """Maximal runs of consecutive ids in logical order."""
    breaks = [one for one, after in pairwise(blocks) if after != one + 1]
    return len(breaks) + (len(blocks) > 0)


class HostPool:
    """The host's blocks: free, or a copy of a request that was swapped out. Ids from 1, placed like `contiguous`."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.store = ContiguousStore(blocks)
        if blocks == 0:
            self.store.extents = []

    def free(self) -> int:
        """Blocks that a copy can be given."""
        return self.store.free()

    def take(self, count: int) -> list[int]:
        """``count`` blocks, as growth of a request that holds none."""
        if count > self.free():
            raise PoolExhaustedError(f"{count} host blocks asked for, {self.free()} are free")
        return self.store.grow(None, count)

    def release(self, blocks: list[int]) -> None:
        """Blocks of a copy that has come in."""
        self.store.release(blocks)

    def check(self) -> None:
        """Assert what the pool promises about its free blocks."""
        self.store.check()


class Host:
    """The pool, the link, who moves, and the counts of section 6."""

    def __init__(self, config: ReferenceConfig, swap_is_cheaper: SwapIsCheaper) -> None:
        self.config = config
        self.swap_is_cheaper = swap_is_cheaper
        self.pool = HostPool(config.host_blocks)
        self.link = Link(config)
        self.moving: dict[int, Request] = {}  # by the number of the transfer: leaving, or coming in
        self.ready: list[Request] = []  # in the order in which they were noticed
        self.swaps = 0
        self.counts = self._no_counts()

    def may_swap(self, r: Request) -> bool:
        """Whether a victim is swapped out; else it is computed again."""
        if self.config.preempt == "recompute" or not r.decoding or r.ended:
            return False
        blocks = self.config.blocks(r.computed)
        assert blocks > 0, f"row {r.row} decodes and has computed nothing"
        if blocks > self.pool.free():
            return False
        return self.config.preempt == "swap" or self.swap_is_cheaper(r.computed, runs_of(r.blocks[:blocks]), blocks)

    def send_out(self, r: Request, now_ns: int) -> None:
        """Copy a row's entries out. With overlap it is leaving until the copy is noticed."""
        count = self.config.blocks(r.computed)
        r.host_blocks = self.pool.take(count)
        self.swaps += 1
        self._copy(OUT, r, r.blocks[:count], r.host_blocks, now_ns, overlap=self.config.host_overlap)
        r.leaving = self.config.host_overlap

    def bring_in(self, r: Request, now_ns: int) -> None:
        """Copy a swapped row's entries to its first blocks. With overlap it moves until the copy is noticed."""
        count = len(r.host_blocks)
        assert count == self.config.blocks(r.computed) <= len(r.blocks), f"row {r.row} comes in to {r.blocks}"
        self._copy(IN, r, r.host_blocks, r.blocks[:count], now_ns, overlap=self.config.host_overlap)
        if not self.config.host_overlap:
            self.came_in(r)

    def came_in(self, r: Request) -> None:
        """The copy is done: the host's blocks are given back."""
        self.pool.release(r.host_blocks)
        r.host_blocks = []

    def held_rows(self) -> list[Request]:
        """Who holds device blocks and a stage row without running."""
        return [*self.moving.values(), *self.ready]

    def notice(self, horizon_ns: int, now_ns: int) -> list[tuple[str, Request]]:
        """The direction and the request of each transfer that is noticed now; they do not move any more."""
        transfers = self.link.notice(horizon_ns, now_ns)
        return [(transfer.direction, self.moving.pop(transfer.number)) for transfer in transfers]

    def take_counts(self) -> dict[str, int]:
        """What was copied since the previous planned step; the counts begin anew."""
        counts, self.counts = self.counts, self._no_counts()
        return counts

    def _copy(
        self, direction: str, r: Request, sources: list[int], targets: list[int], now_ns: int, *, overlap: bool
    ) -> None:
        groups = groups_of(self.config, sources, targets)
        self.counts[f"host_{direction}_blocks"] += len(sources)
        self.counts[f"host_{direction}_groups"] += groups
        if overlap:
            transfer = self.link.submit(direction, r.row, groups=groups, blocks=len(sources), now_ns=now_ns)
            self.moving[transfer.number] = r

    @staticmethod
    def _no_counts() -> dict[str, int]:
        return dict.fromkeys(("host_out_blocks", "host_out_groups", "host_in_blocks", "host_in_groups"), 0)

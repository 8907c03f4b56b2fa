"""The reference's host: what is copied to it and from it; literal from docs/semantics.md sections 3 and 5.

A copy is done before the step that is planned next, or is a transfer on the link (`overlap`); who moves then is in
``moving``, and in ``ready`` once it has come in and may join. Which requests move, and what they hold on the device,
is the scheduler's. The host's blocks are in reference_host_pool.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from tests.sim.reference_host_pool import HostPool
from tests.sim.reference_link import IN, OUT, Link
from tests.sim.reference_records import ReferenceConfig, Request

#: Whether loading blocks costs no more than computing them: from the tokens before them, theirs, and the blocks.
LoadIsCheaper = Callable[[int, int, int], bool]

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


class Host:
    """The pool, the link, who moves, and the counts of section 6."""

    def __init__(self, config: ReferenceConfig, swap_is_cheaper: SwapIsCheaper, load_is_cheaper: LoadIsCheaper) -> None:
        self.config = config
        self.swap_is_cheaper = swap_is_cheaper
        self.load_is_cheaper = load_is_cheaper
        self.pool = HostPool(config.host_blocks)
        self.link = Link(config)
        self.moving: dict[int, Request] = {}  # by the number of the transfer: leaving, or coming in
        self.ready: list[Request] = []  # in the order in which they were noticed
        self.swaps = self.loaded_blocks = self.offloaded_blocks = 0
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

    def came_in(self, r: Request) -> None:
        """The copy is done: of a swapped request the host's blocks are given back, what was loaded may be evicted."""
        self.pool.release(r.host_blocks)
        self.pool.let_go(r.loading)
        r.host_blocks, r.loading = [], []

    def keep(self, evicted: list[tuple[int, int]]) -> None:
        """Offload: the blocks that one taking has evicted, and their keys. The copies are part of the step."""
        kept = self.pool.keep(sorted(evicted))
        self.offloaded_blocks += len(kept)
        self._count("offload", [block for block, _ in kept], [host_block for _, host_block in kept])

    def find_load(self, r: Request, keys: list[int], start: int) -> tuple[int, ...]:
        """Host blocks of the keys that follow the first ``start`` blocks of a row, if they are to be loaded."""
        config = self.config
        if not config.offload or config.prefill == "none":
            return ()
        size = config.block_size_tokens
        found: list[int] = []
        for key in keys[start : max(start, (r.known - 1) // size)]:
            if key not in self.pool.cached:
                break
            found.append(self.pool.cached[key])
        if not found or not self.load_is_cheaper(start * size, len(found) * size, len(found)):
            return ()
        return tuple(found)

    def load(self, r: Request, load: tuple[int, ...], now_ns: int) -> None:
        """Copy held host blocks to a row's own, the last of those that it has computed."""
        end = r.computed // self.config.block_size_tokens
        r.loading = list(load)
        self.loaded_blocks += len(load)
        targets = r.blocks[end - len(load) : end]
        self._copy(IN, r, r.loading, targets, now_ns, overlap=self.config.host_overlap)

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
        groups = self._count(f"host_{direction}", sources, targets)
        if overlap:
            transfer = self.link.submit(direction, r.row, groups=groups, blocks=len(sources), now_ns=now_ns)
            self.moving[transfer.number] = r

    def _count(self, what: str, sources: list[int], targets: list[int]) -> int:
        groups = groups_of(self.config, sources, targets)
        self.counts[f"{what}_blocks"] += len(sources)
        self.counts[f"{what}_groups"] += groups
        return groups

    @staticmethod
    def _no_counts() -> dict[str, int]:
        return {f"{what}_{of}": 0 for what in ("host_out", "host_in", "offload") for of in ("blocks", "groups")}

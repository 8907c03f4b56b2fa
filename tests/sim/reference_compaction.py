"""The reference's compaction: when blocks move together, which ones and where to, and what is free afterwards.

Literal from docs/semantics.md section 5, "Compaction". What the copies cost is left out, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.sim.reference_contents import Contents
from tests.sim.reference_prefix import Pager
from tests.sim.reference_records import ReferenceConfig, Request


@dataclass(frozen=True)
class Move:
    """One group: ``blocks`` blocks from ``source`` on are copied to the free ones from ``target`` on."""

    source: int
    target: int
    blocks: int


class Compaction:
    """The compactions of one replica. ``blocks`` and ``groups`` were moved since the previous planned step."""

    def __init__(self, config: ReferenceConfig, pager: Pager, contents: Contents) -> None:
        self.config = config
        self.pager = pager
        self.contents = contents
        self.came = 0  # blocks that had come to the store at the last check
        self.blocks = 0
        self.groups = 0

    def check(self, running: Sequence[Request], ready: Sequence[Request], moving: Sequence[Request]) -> None:
        """`threshold`, at the beginning of a decision. Moves by compaction are no blocks that come to the store.

        What a transfer reads or writes (``moving``) stays where it is, whoever else holds it.
        """
        store = self.pager.store
        if self.config.compaction != "threshold" or not running or store.came == self.came:
            return
        self.came = store.came
        free = store.free_ids()
        if len(free) - longest_run(free) > self.config.compaction_ratio * len(free):
            self._compact([*running, *ready], {block for r in moving for block in r.blocks})

    def on_demand(self, running: Sequence[Request]) -> bool:
        """An admission finds no single run although enough is free: whether anything has moved for it."""
        assert not self.config.paged, "nothing paged needs a single run"
        return self.config.compaction != "none" and self._compact(running, set())

    def integers(self) -> dict[str, int]:
        """Section 6: what has moved since the previous planned step. A step is being planned: they begin anew."""
        moved = {"compacted_blocks": self.blocks, "compaction_groups": self.groups}
        self.blocks = self.groups = 0
        return moved

    def _compact(self, rows: Sequence[Request], fixed: set[int]) -> bool:
        """Move what can move, of ``rows`` and of what nobody holds; whether anything did."""
        pager, most = self.pager, self.config.compaction_max_moves
        free = sorted(pager.store.free_ids())
        movable = {block for r in rows for block in r.blocks} - fixed | set(pager.evictable)
        if self.config.paged:
            moves = block_moves(movable, free, most)
        else:
            moves = reservation_moves([r.blocks for r in rows], free, most)
        if not moves:
            return False
        where = {move.source + i: move.target + i for move in moves for i in range(move.blocks)}
        check_moves(where, free, movable)
        for r in rows:
            r.blocks = [where.get(block, block) for block in r.blocks]
        pager.holders = {where.get(block, block): holders for block, holders in pager.holders.items()}
        pager.cached = {key: where.get(block, block) for key, block in pager.cached.items()}
        pager.evictable = [where.get(block, block) for block in pager.evictable]
        self.contents.move(where)
        free = sorted((set(free) - set(where.values())) | set(where))
        pager.store.open_with(free)
        if self.config.paged and len(where) < most:
            check_packed({where.get(block, block) for block in movable}, free)
        self.blocks += len(where)
        self.groups += len(moves)
        return True


def longest_run(ids: Iterable[int]) -> int:
    """The longest run of consecutive ids; 0 of none."""
    longest = length = 0
    before = None
    for block in sorted(ids):
        length = length + 1 if before == block - 1 else 1
        longest = max(longest, length)
        before = block
    return longest


def block_moves(movable: set[int], free: list[int], most: int) -> list[Move]:
    """Single blocks: the highest movable ones fill the lowest free ones, in ascending order on both sides."""
    pairs = zip(sorted(movable, reverse=True), sorted(free), strict=False)
    m = min(sum(target < source for source, target in pairs), most)
    moves: list[Move] = []
    if m == 0:
        return moves
    for source, target in zip(sorted(movable)[-m:], sorted(free)[:m], strict=True):
        last = moves[-1] if moves else None
        if last is not None and (last.source + last.blocks, last.target + last.blocks) == (source, target):
            moves[-1] = Move(last.source, last.target, last.blocks + 1)
        else:
            moves.append(Move(source, target, 1))
    return moves


def reservation_moves(runs: list[list[int]], free: list[int], most: int) -> list[Move]:
    """Reservations, from the highest start down: each to the lowest free run below its start that holds it whole."""
    now_free = set(free)
    moves: list[Move] = []
    for run in sorted(runs, key=lambda run: run[0], reverse=True):
        if len(moves) == most:
            break
        below = [start for start in range(1, run[0]) if now_free.issuperset(range(start, start + len(run)))]
        if below:
            now_free -= set(range(below[0], below[0] + len(run)))
            now_free |= set(run)
            moves.append(Move(run[0], below[0], len(run)))
    return moves


def check_moves(where: dict[int, int], free: list[int], movable: set[int]) -> None:
    """Everything that moves goes down, to a free block of its own; no copy reads what another one writes."""
    assert set(where) <= movable, f"{sorted(set(where) - movable)} move and nobody has them"
    assert set(where.values()) <= set(free), f"{sorted(set(where.values()) - set(free))} are written and not free"
    assert len(set(where.values())) == len(where), f"two blocks move to one: {where}"
    assert not set(where) & set(where.values()), f"copies depend on each other: {where}"
    assert all(target < source for source, target in where.items()), f"a block moves up: {where}"


def check_packed(movable: set[int], free: list[int]) -> None:
    """After a compaction of single blocks without a limit nothing movable lies above a free block."""
    assert not free or not movable or max(movable) < min(free), f"{max(movable)} is above the free {min(free)}"

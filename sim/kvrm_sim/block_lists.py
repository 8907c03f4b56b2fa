"""Doubly linked lists over block records: ``next`` and ``previous`` are block ids, 0 is none. Whoever has a list keeps
its ends; a block is in one list at most.

The free extents of a size, or buddies of an order (pool.py); extents that are wholly free (pool.py); evictable blocks
by their last use (prefix.py); the chain of a request's blocks on the host (offload.py).
"""

from __future__ import annotations

from kvrm_sim.compiled import kernel
from kvrm_sim.state import Records


@kernel
def link_first(blocks: Records, first: int, at: int) -> None:
    """Put a block in front of a list that begins with `first`; 0: it was empty."""
    blocks[at].next = first
    blocks[at].previous = 0
    if first != 0:
        blocks[first].previous = at


@kernel
def link_last(blocks: Records, last: int, at: int) -> None:
    """Put a block behind a list that ends with `last`; 0: it was empty."""
    blocks[at].previous = last
    blocks[at].next = 0
    if last != 0:
        blocks[last].next = at


@kernel
def unlink(blocks: Records, at: int) -> tuple[int, int]:
    """Take a block out of its list; the ones before and after it, 0 where it was an end."""
    before, after = blocks[at].previous, blocks[at].next
    if before != 0:
        blocks[before].next = after
    if after != 0:
        blocks[after].previous = before
    return before, after


@kernel
def replace(blocks: Records, at: int, by: int) -> tuple[int, int]:
    """Put a block into the place that another one has; the ones before and after it, 0 where it is an end."""
    before, after = blocks[at].previous, blocks[at].next
    blocks[by].previous = before
    blocks[by].next = after
    if before != 0:
        blocks[before].next = by
    if after != 0:
        blocks[after].previous = by
    return before, after

"""The reference's speculation: drafts of a row, which are accepted, and what is given back afterwards.

Literal from docs/semantics.md section 3, "Speculation". How long drafting takes, and what is drafted, are left out.
"""

from __future__ import annotations

from tests.sim.reference_prefix import Pager
from tests.sim.reference_records import ReferenceConfig, Request

#: Arithmetic is modulo 2^64.
MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
OF_THE_SEED = 0xD1342543DE82EF95


def drafts_of(config: ReferenceConfig, r: Request, number: int) -> int:
    """k_r of a running row: as many as asked for, within its limit or its reservation.

    0 for a row that prefills, or that joined in decision ``number``, the one that is taken.
    """
    if not r.decoding or r.joined_in == number:
        return 0
    end = r.reservation_tokens
    if end is None:
        end = min(config.limit_tokens, config.pool_blocks * config.block_size_tokens)
    return max(0, min(config.draft_tokens, end - r.known))


def is_accepted(config: ReferenceConfig, row: int, delivered: int, draft: int) -> bool:
    """Whether a draft (from 1) of a step before which so many tokens were delivered is right, the others apart."""
    z = config.seed * OF_THE_SEED + row * 0xBF58476D1CE4E5B9 + delivered * 0x94D049BB133111EB + draft * STEP
    x = z & MASK
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    x ^= x >> 31
    return (x >> 11) * 2.0**-53 < config.acceptance


def accepted_tokens(config: ReferenceConfig, r: Request) -> int:
    """Tokens that a row delivers beyond its one: drafts before the first wrong one, within what it is to deliver."""
    if r.drafts == 0:
        return 0
    j = 0
    while j < r.drafts and is_accepted(config, r.row, r.delivered, j + 1):
        j += 1
    return min(j, r.output - r.delivered - 1)


def give_back(config: ReferenceConfig, pager: Pager, r: Request) -> int:
    """A decoding row keeps what its entries need; the rest goes one by one, last first. Returns the blocks."""
    count = 0
    while r.reservation_tokens is None and len(r.blocks) > config.blocks(r.computed):
        block = r.blocks.pop()
        assert pager.holders.pop(block) == {r}, f"row {r.row} gives back block {block}, which it shares"
        assert pager.key_of(block) is None, f"row {r.row} gives back block {block}, which has a key"
        pager.store.release_one(block)
        count += 1
    return count

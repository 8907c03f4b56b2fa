"""The reference's far history: what of a row is left, and its own checks, literal from docs/semantics.md section 5.

Without far history nothing is ever dropped, and all of this is what the other sections say. Who drops when is in
reference_scheduler.py (growth, admission) and reference.py (the end of a step).
Left out: what attention loses, and what writing a summary costs.
"""

from __future__ import annotations

from tests.sim.reference_records import ReferenceConfig, Request


def left_tokens(config: ReferenceConfig, r: Request) -> int:
    """Computed entries that are left: what a row reads, moves and uses."""
    return r.computed - r.dropped * config.block_size_tokens


def left_blocks(config: ReferenceConfig, r: Request) -> int:
    """Blocks that hold what is left; the row may have taken more ahead."""
    return config.blocks(r.computed) - r.dropped


def growth_blocks(config: ReferenceConfig, r: Request, n: int) -> int:
    """Blocks that a paged row lacks for ``n`` more tokens; below 0 by what it has taken ahead."""
    return config.blocks(r.computed + n) - r.dropped - len(r.blocks)


def logical_blocks(config: ReferenceConfig, r: Request) -> list[int]:
    """The logical block of each block that a row holds: the gap comes after the first S."""
    return [place if place < config.summary_blocks else place + r.dropped for place in range(len(r.blocks))]


def entries(config: ReferenceConfig, r: Request) -> dict[int, int]:
    """Computed entries in each block that a row holds, by its id."""
    size = config.block_size_tokens
    return {
        block: min(size, max(0, r.computed - logical * size))
        for block, logical in zip(r.blocks, logical_blocks(config, r), strict=True)
    }


def check_kept(config: ReferenceConfig, r: Request, *, may_wait: bool) -> None:
    """A running paged row has dropped what the page says and no more, and what is left adds up block by block.

    A decoding row that waits for its next block has dropped one for it already.
    """
    ever = len(r.blocks) + r.dropped
    where = f"row {r.row}, {r.computed} of {r.known} computed, holds {r.blocks} and dropped {r.dropped}"
    assert config.blocks(r.computed) <= ever <= config.blocks(r.known + r.drafts), where
    assert sum(entries(config, r).values()) == left_tokens(config, r), where
    if not config.far_history:
        assert r.dropped == 0, where
        return
    assert len(r.blocks) <= config.most(r.known), where
    if r.decoding:
        ahead = r.dropped - max(0, ever - config.kept_blocks)
        assert ahead == 0 or (may_wait and ahead == 1), where
        assert len(r.blocks) == min(ever, config.kept_blocks) - ahead, where
    else:
        assert r.dropped == max(0, config.blocks(r.computed) - config.kept_blocks), where


def check_planned(config: ReferenceConfig, r: Request, n: int) -> None:
    """A planned paged row holds what its entries need, and ahead of them only what a full-prompt admission takes.

    It writes to the logical blocks of its new entries, so never to a summary.
    """
    size = config.block_size_tokens
    ever = config.blocks(r.computed + n + r.drafts)
    if not r.decoding and r.takes_all:
        ever = max(ever, config.most(r.known))
    assert len(r.blocks) == ever - r.dropped, f"row {r.row} holds {r.blocks}, {ever} - {r.dropped} blocks are due"
    written = range(r.computed // size, config.blocks(r.computed + n))
    places = logical_blocks(config, r)[written.start - r.dropped : written.stop - r.dropped]
    assert places == list(written), f"row {r.row} writes to logical blocks {places}, not {list(written)}"
    assert r.dropped == 0 or written.start - r.dropped >= config.summary_blocks, f"row {r.row} writes to a summary"

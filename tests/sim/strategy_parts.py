"""Parts that are added to a random policy: what each one draws, and what else has to change for it.

Each takes a generator and a valid policy, and returns a valid policy that has the part.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.reference_records import ReferenceConfig

#: All but `buddy`, which is not compacted.
PAGED_PLACEMENTS = ("lifo", "fifo", "lowest", "extent", "contiguous")


def may_forget(config: ReferenceConfig) -> bool:
    """Whether far history can be added."""
    return config.paged and not config.prefix_sharing and config.staging == "full"


def with_far_history(rng: random.Random, config: ReferenceConfig) -> ReferenceConfig:
    """A near window, with summary blocks or without; often in a pool that one request would not fit in without.

    Half of the ladders of contexts end where rows stop to grow.
    """
    near_blocks, summary_blocks = rng.choice((1, 2, rng.randint(1, 6))), rng.randint(0, 3)
    kept_blocks = near_blocks + summary_blocks
    pool_blocks, limit = config.pool_blocks, config.limit_tokens
    if rng.random() < 0.5:  # rows stay small: so few blocks that one has to go all the same
        pool_blocks = rng.randint(max(4, kept_blocks), 4 + 2 * kept_blocks)
    if rng.random() < 0.7:
        limit = max(limit, min(rng.randint(1, 4) * pool_blocks * config.block_size_tokens, 400))
    contexts = config.context_buckets_tokens
    if contexts and rng.random() < 0.5:
        longest = min(limit, kept_blocks * config.block_size_tokens)
        contexts = (*(c for c in contexts if c < longest), longest)
    return replace(
        config,
        near_blocks=near_blocks,
        summary_blocks=summary_blocks,
        pool_blocks=pool_blocks,
        limit_tokens=limit,
        watermark_blocks=min(config.watermark_blocks, pool_blocks // 4),
        context_buckets_tokens=contexts,
    )


def with_run_ahead(rng: random.Random, config: ReferenceConfig) -> ReferenceConfig:
    """One step in flight or two."""
    return replace(config, run_ahead=rng.randint(1, 2))


def may_move(config: ReferenceConfig, *, offload: bool) -> bool:
    """Whether swapping can be added, or offload: there is somebody to swap, there are prefixes to find."""
    return config.paged and config.slots > 2 and (config.prefix_sharing or not offload)


def may_have(
    config: ReferenceConfig, *, far_history: bool, host: bool, offload: bool, max_padding: bool, packed: bool
) -> bool:
    """Whether all these parts can be added; any other can always be, to what goes with it."""
    return (
        (may_forget(config) or not far_history)
        and (may_move(config, offload=offload) or not host)
        and (config.launch == "graph" or not max_padding)
        and (config.read_what == "staged" or not packed)
    )


def with_host(
    rng: random.Random, config: ReferenceConfig, *, tick_ns: int, swap: bool, offload: bool
) -> ReferenceConfig:
    """Swapping or offload or both, over a link that moves a block in a fraction of a step or in many.

    Mostly in a small pool. The host holds from one block to more than ever comes.
    """
    pool_blocks, limit, size = config.pool_blocks, config.limit_tokens, config.block_size_tokens
    if rng.random() < 0.85:  # a request has most of it, or one of several
        pool_blocks = rng.randint(4, max(6, 48 // size))
        limit = max(2, pool_blocks * size // rng.choice((1, 1, 2)) + rng.randint(-1, 3))
    contexts = config.context_buckets_tokens
    if contexts:
        contexts = (*(c for c in contexts if c < limit), limit)
    block_ns = rng.choice((0, rng.uniform(0, tick_ns), rng.uniform(0, 10 * tick_ns), tick_ns, 2 * tick_ns))
    return replace(
        config,
        pool_blocks=pool_blocks,
        limit_tokens=limit,
        context_buckets_tokens=contexts,
        watermark_blocks=min(config.watermark_blocks, pool_blocks // 4),
        preempt=rng.choice(("swap", "swap", "auto")) if swap else "recompute",
        host_blocks=rng.choice((rng.randint(1, pool_blocks), rng.randint(1, 2 * pool_blocks), 4 * pool_blocks)),
        host_overlap=rng.random() < 0.6,
        host_merge=rng.choice(("adjacent", "adjacent", "none")),
        offload=offload,
        host_segment_ns=rng.choice((0.0, float(tick_ns), rng.uniform(0, tick_ns))),
        host_out_block_ns=float(block_ns),
        host_in_block_ns=float(rng.choice((block_ns, rng.uniform(0, 4 * tick_ns)))),
        host_out_slowdown=rng.choice((1.0, rng.uniform(1, 3))),
        host_in_slowdown=rng.choice((1.0, 2.0, rng.uniform(1, 3))),
    )


def with_compaction(rng: random.Random, config: ReferenceConfig) -> ReferenceConfig:
    """Mostly low thresholds, and on demand where there are reservations; half of them with few moves at once.

    Placements that cannot be compacted become others, and reservations are mostly of many sizes in a pool of several.
    """
    changes: dict[str, object] = {}
    if config.placement == "buddy":
        changes["placement"] = rng.choice(PAGED_PLACEMENTS) if config.paged else "contiguous"
        changes["extent_blocks"] = rng.randint(1, 8)
    if not config.paged and rng.random() < 0.8:
        changes |= _of_many_sizes(rng, config)
    return replace(
        config,
        compaction="threshold" if config.paged else rng.choice(("threshold", "demand")),
        compaction_ratio=rng.choice((0.0, 0.0, 0.1, 0.25, rng.random())),
        compaction_max_moves=rng.choice((1, rng.randint(1, 6), 1 << 30, 1 << 30)),
        **changes,  # type: ignore[arg-type]  # fields by name
    )


def _of_many_sizes(rng: random.Random, config: ReferenceConfig) -> dict[str, object]:
    """Reservations that leave holes: not all as long as the limit, in a pool of a few that are, and enough slots."""
    slots = max(config.slots, rng.randint(4, 12))
    block_size = rng.choice((1, min(2, config.block_size_tokens), config.block_size_tokens))
    pool_blocks = max(4, -(-config.limit_tokens // block_size) * rng.randint(3, 6) // 3)
    return {
        "reserve": rng.choice(("oracle", "pow2")) if config.reserve == "max_len" else config.reserve,
        "pool_blocks": pool_blocks,
        "block_size_tokens": block_size,
        "watermark_blocks": min(config.watermark_blocks, pool_blocks // 4),
        "slots": slots,
        "token_budget": max(config.token_budget, slots),
    }


def with_speculation(rng: random.Random, config: ReferenceConfig) -> ReferenceConfig:
    """One to eight drafts, which are never, sometimes, mostly or always right; half the piecewise ladders make room."""
    drafts = rng.choice((1, 2, 3, rng.randint(1, 8)))
    tokens = config.token_sizes
    if rng.random() < 0.5:
        tokens = tuple(size * (1 + drafts) for size in tokens)
    return replace(
        config,
        draft_tokens=drafts,
        acceptance=rng.choice((0.0, 0.5, 0.8, 1.0, rng.random())),
        seed=rng.choice((0, rng.randint(0, 2**31), 2**63 - 1)),
        token_sizes=tokens,
    )


def with_max_padding(rng: random.Random, config: ReferenceConfig) -> ReferenceConfig:
    """A bound on the padding of captured batches, often one that leaves a row or two."""
    return replace(config, max_padding=rng.choice((1.0, 9 / 8, 4 / 3, 1.5, 2.0)))


def with_packed(rng: random.Random, config: ReferenceConfig) -> ReferenceConfig:
    """Staging that holds a few blocks, or some of the pool's: histories fit in it until rows grow or come.

    Mostly with merging, which goes across rows.
    """
    some = rng.randint(max(1, config.pool_blocks // 8), max(1, 3 * config.pool_blocks // 4))
    few = rng.randint(1, 8)
    return replace(
        config,
        packed_blocks=rng.choice((few, some, some)),
        read_extent="live",
        staging="full",
        merge=rng.choice(("none", "adjacent", "adjacent")),
    )

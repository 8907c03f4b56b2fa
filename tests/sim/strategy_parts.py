"""Parts that a random policy may have besides: far history, swapping, offload (strategies.py draws the rest)."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.reference_records import ReferenceConfig


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


def may_move(config: ReferenceConfig, *, offload: bool) -> bool:
    """Whether swapping can be added, or offload: there is somebody to swap, there are prefixes to find."""
    return config.paged and config.slots > 2 and (config.prefix_sharing or not offload)


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

"""Random small traces for a policy; their times are mostly multiples of a tick."""

from __future__ import annotations

import random

from tests.sim.prompt_tree import PromptTree
from tests.sim.reference_records import Arrival, ReferenceConfig


def random_trace(rng: random.Random, config: ReferenceConfig, rows: int, *, tick_ns: int) -> list[Arrival]:
    """``rows`` requests, arrivals ascending from 0. Every row can be read by ``config`` (no input errors)."""
    burst_ns = tick_ns * rng.choice((0, 1, 1, 4, 20))
    time_ns = 0
    prompts = PromptTree(rng, config.hash_block_tokens or config.block_size_tokens, config.block_size_tokens)
    arrivals = []
    for row in range(rows):
        if row > 0:
            time_ns += rng.choice((0, 0, tick_ns, burst_ns, rng.randint(0, 2 * burst_ns), 10 * burst_ns))
        arrivals.append(_arrival(rng, config, prompts, row, time_ns))
    return arrivals


def _arrival(rng: random.Random, config: ReferenceConfig, prompts: PromptTree, row: int, time_ns: int) -> Arrival:
    capacity = config.limit_tokens
    if config.most(capacity) > config.pool_blocks:
        capacity = min(capacity, config.pool_blocks * config.block_size_tokens)
    total = rng.randint(2, max(2, capacity // rng.choice((1, 2, 4))))
    if rng.random() < 0.06:
        total = capacity + rng.randint(1, capacity)  # over the limit or unservable, now and then
    longest = rng.choice((1, 4, 16, 60, 120))
    if config.far_history and rng.random() < 0.6:  # begins inside what it keeps and grows beyond
        total = rng.randint(2, max(2, min(capacity, 3 * config.kept_blocks * config.block_size_tokens)))
        longest = total
    output = rng.randint(max(1, min(total - 1, longest) // 2), max(1, min(total - 1, longest)))
    prompt = _near_a_boundary(rng, max(1, total - output), config.block_size_tokens)
    tokens = None
    if config.prefix_sharing:
        tokens = prompts.draw(prompt, at_most=max(prompt, capacity - output))
        prompt = len(tokens)
    if config.over_limit == "error" and config.reserve != "declared":
        prompt = min(prompt, max(1, config.limit_tokens - output))
        output = min(output, config.limit_tokens - prompt)
    hashes = ()
    if tokens is not None and rng.random() < 0.9:
        hashes = prompts.hashes(tokens[:prompt])
    return Arrival(row, time_ns, prompt, output, _declared(rng, config, output), rng.randint(0, 3), hashes)


def _near_a_boundary(rng: random.Random, tokens: int, block_size: int) -> int:
    if rng.random() < 0.5:
        return tokens
    return max(1, tokens // block_size * block_size + rng.choice((-1, 0, 1)))


def _declared(rng: random.Random, config: ReferenceConfig, output: int) -> int | None:
    """A declared maximum: absent, below, at or above what is delivered, or far beyond the limit."""
    must = config.reserve == "declared" and config.declared_default_tokens is None
    if not must and rng.random() < 0.4:
        return None
    return max(1, output + rng.choice((-1, 0, 0, 1, 7, 2 * config.limit_tokens)))

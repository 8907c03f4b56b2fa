"""Ladders of captured shapes: batch sizes, context buckets, token counts; what they cover and what they pad.

Every ladder is ascending and cut at what can occur. Nothing is added to a ladder behind the user's back, except that
``pow2`` contexts and reservation buckets end at the model's limit; sizes above the last entry run off the ladder and
are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

#: vLLM's capture sizes: 1, 2, 4, then every 8 to 256, then every 16 to 512.
VLLM_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))

#: The least context of the ``pow2`` ladder: smaller ones save nothing that can be measured.
LEAST_CONTEXT_TOKENS = 128


def powers_of_two(least: int, greatest: int) -> tuple[int, ...]:
    """Powers of two from the first at or above ``least`` to the last at or below ``greatest``."""
    sizes, size = [], 1
    while size <= greatest:
        if size >= least:
            sizes.append(size)
        size *= 2
    return tuple(sizes)


def batch_ladder(spec: Sequence[int] | str, slots: int) -> tuple[int, ...]:
    """Captured batch sizes. ``full``: only ``slots``; ``vllm``, ``pow2`` or given sizes: those up to ``slots``."""
    if spec == "full":
        return (slots,)
    if spec == "pow2":
        return powers_of_two(1, slots)
    return tuple(size for size in _named(spec) if size <= slots)


def token_ladder(spec: Sequence[int] | str, most_tokens: int) -> tuple[int, ...]:
    """Captured token counts of piecewise graphs, those up to the most tokens of a step."""
    return tuple(size for size in _named(spec) if size <= most_tokens)


def context_ladder(spec: Sequence[int] | str, limit_tokens: int) -> tuple[int, ...]:
    """Captured contexts. ``limit``: only the limit; ``pow2``: 128, 256, … and the limit; given: those up to it."""
    if spec == "limit":
        return (limit_tokens,)
    if spec == "pow2":
        return with_limit(powers_of_two(LEAST_CONTEXT_TOKENS, limit_tokens), limit_tokens)
    return tuple(bucket for bucket in _named(spec) if bucket <= limit_tokens)


def with_limit(buckets: Sequence[int], limit_tokens: int) -> tuple[int, ...]:
    """The buckets below the limit, then the limit itself: every request that is admitted has a bucket."""
    return (*(bucket for bucket in buckets if bucket < limit_tokens), limit_tokens)


def uncovered(ladder: Sequence[int], greatest: int) -> tuple[int, ...]:
    """Sizes from 1 to ``greatest`` that no entry covers, ascending; they run off the ladder."""
    last = ladder[-1] if ladder else 0
    return tuple(range(last + 1, greatest + 1))


def worst_padding(ladder: Sequence[int], above: int = 0) -> tuple[int, int, float]:
    """The worst (live, padded, padded / live - 1) among sizes above ``above`` that the ladder covers."""
    steps = [(low + 1, high) for low, high in zip((0, *ladder), ladder, strict=False) if low >= above]
    live, padded = max(steps, key=lambda step: step[1] / step[0])
    return live, padded, padded / live - 1.0


def _named(spec: Sequence[int] | str) -> Sequence[int]:
    if isinstance(spec, str):
        assert spec == "vllm", f"no ladder is called {spec!r}"
        return VLLM_SIZES
    return spec


def never_pads(ladder: Sequence[int], max_padding: float) -> bool:
    """Whether sizes lie between the entries, and not even the nearest one below an entry may be padded to it."""
    padded = [size for below, size in pairwise((0, *ladder)) if size - below > 1]
    return bool(padded) and all(size > max_padding * (size - 1) for size in padded)

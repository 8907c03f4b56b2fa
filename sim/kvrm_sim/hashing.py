"""Draws that depend on nothing but their numbers: 64-bit mixing, the same compiled and interpreted."""

from __future__ import annotations

from kvrm_sim.compiled import identity_when_compiled, kernel

_SEED = 0xD1342543DE82EF95 - (1 << 64)
_GOLDEN, _SECOND, _THIRD = (
    0x9E3779B97F4A7C15 - (1 << 64),
    0xBF58476D1CE4E5B9 - (1 << 64),
    0x94D049BB133111EB - (1 << 64),
)
_WORD = 1 << 64


@identity_when_compiled
def wrapped(value: int) -> int:
    """A value modulo 2^64, as a signed word. Compiled arithmetic wraps by itself."""
    return (int(value) + (_WORD >> 1)) % _WORD - (_WORD >> 1)


@kernel
def mixed(seed: int, row: int, delivered: int) -> int:
    """Where the draws of a row's step begin."""
    return wrapped(wrapped(seed * _SEED) + wrapped(row * _SECOND) + wrapped(delivered * _THIRD))


@kernel
def draw(seed: int, at: int) -> float:
    """The at-th draw from [0, 1) of a seed."""
    x = wrapped(seed + wrapped((at + 1) * _GOLDEN))
    x = wrapped((x ^ ((x >> 30) & ((1 << 34) - 1))) * _SECOND)
    x = wrapped((x ^ ((x >> 27) & ((1 << 37) - 1))) * _THIRD)
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return float((x >> 11) & ((1 << 53) - 1)) * 2.0**-53

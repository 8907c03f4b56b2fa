"""Beginnings that prompts share: a tree of texts, one chosen on each level, the popular ones more often (Zipf's law).

A level is, say, the system prompts of a service, the next one the documents that are asked about under each of them.
Tokens are shared as far as the path is; a hash block is of the deepest text that it holds tokens of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from kvrm_traces.synth.lengths import Ints, Lengths

#: Texts of a tree, all levels together.
MOST_TEXTS = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """``count`` texts below each text of the level above; the k-th is chosen in proportion to ``k ** -zipf``."""

    count: int
    zipf: float
    tokens: Lengths


def texts(levels: Sequence[Level]) -> int:
    """How many texts a tree of these levels has."""
    return sum(math.prod(level.count for level in levels[: deep + 1]) for deep in range(len(levels)))


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A level's texts, by number: where each ends in the prompt, and the ids of the whole blocks that are its own."""

    end_tokens: Ints
    first_id: Ints
    blocks: Ints


class PrefixTree:
    """The texts of a generator, drawn; a path is named by the number of its last text. Without levels all paths are
    one, and empty.
    """

    def __init__(self, levels: Sequence[Level], block_tokens: int, rng: np.random.Generator) -> None:
        """At most MOST_TEXTS texts; `block_tokens`: of a hash block."""
        self._levels = levels
        self._upto = [np.cumsum(np.arange(1, level.count + 1) ** -level.zipf) for level in levels]
        self._drawn: list[_Drawn] = []
        self._next_id = 0
        end_tokens = np.zeros(1, np.int64)
        for level in levels:
            begin_tokens = np.repeat(end_tokens, level.count)
            end_tokens = begin_tokens + level.tokens.draw(rng, begin_tokens.size)
            blocks = end_tokens // block_tokens - begin_tokens // block_tokens
            upto = self._next_id + np.cumsum(blocks)
            self._drawn.append(_Drawn(end_tokens, upto - blocks, blocks))
            self._next_id = int(upto[-1])
        self._end_tokens = end_tokens

    @property
    def ids(self) -> int:
        """Blocks of all texts: their ids are 0 to this."""
        return self._next_id

    def draw(self, rng: np.random.Generator, rows: int) -> Ints:
        """So many independent paths."""
        paths = np.zeros(rows, np.int64)
        for level, upto in zip(self._levels, self._upto, strict=True):
            choice = np.searchsorted(upto, rng.random(rows) * upto[-1], side="right")
            paths = paths * level.count + np.minimum(choice, level.count - 1)
        return paths

    def tokens(self, paths: Ints) -> Ints:
        """Shared tokens at the beginning of these paths' prompts."""
        found: Ints = self._end_tokens[paths]
        return found

    def id_ranges(self, paths: Ints) -> tuple[Ints, Ints]:
        """(first ids, counts of ids), each int64 of shape (paths, levels): the whole blocks that are shared."""
        first = np.empty((paths.size, len(self._levels)), np.int64)
        count = np.empty_like(first)
        for deep in range(len(self._levels) - 1, -1, -1):
            first[:, deep], count[:, deep] = self._drawn[deep].first_id[paths], self._drawn[deep].blocks[paths]
            paths = paths // self._levels[deep].count
        return first, count

"""Which keys each token sees with far history, and what the model says to that: written apart from kvrm_gpu, from
docs/semantics.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvrm_gpu.llama import Llama
from kvrm_sim.executor import StepPlan
from kvrm_sim.policy_parts import FarHistory
from tests.gpu.plain_llama import logits

BLOCK = 4


@dataclass
class Life:
    """One admission: the keys (positions) of each of its queries so far, and the blocks that it still has."""

    far: FarHistory
    blocks: list[int] = field(default_factory=list)
    keys: list[set[int]] = field(default_factory=list)
    #: Tokens that it delivered: their index in the sequence.
    delivered: list[int] = field(default_factory=list)

    def _compute(self, tokens: int) -> None:
        """Queries at the next positions: each sees every entry of its blocks up to itself."""
        first = len(self.keys)
        end = first + tokens
        begun = -(-first // BLOCK)
        self.blocks += range(begun, -(-end // BLOCK))
        held = {block * BLOCK + offset for block in self.blocks for offset in range(BLOCK)}
        self.keys += [{key for key in held if key <= query} for query in range(first, end)]

    def prefill(self, tokens: int, known: int) -> None:
        """A chunk; what is between the first and the last blocks goes at the end of its step."""
        self._compute(tokens)
        while len(self.blocks) > self.far.blocks(BLOCK):
            del self.blocks[self.far.summary_blocks]
        if len(self.keys) == known:
            self.delivered.append(known)

    def decode(self) -> None:
        """One token; a row that is to take a block drops one first."""
        if len(self.keys) % BLOCK == 0 and len(self.blocks) >= self.far.blocks(BLOCK):
            del self.blocks[self.far.summary_blocks]
        self._compute(1)
        self.delivered.append(len(self.keys))


class FarOracle:
    """Follows the plans of a run: ``lives`` of each request, one an admission."""

    def __init__(self, far: FarHistory) -> None:
        self.far = far
        self.lives: dict[int, list[Life]] = {}

    def watch(self, plan: StepPlan) -> None:
        for _, row in plan.decoding:
            self.lives[row][-1].decode()
        for chunk in plan.chunks:
            if chunk.admitted:
                self.lives.setdefault(chunk.row, []).append(Life(self.far))
            self.lives[chunk.row][-1].prefill(chunk.tokens, chunk.known)

    def behind(self, model: Llama, row: int, sequence: Sequence[int]) -> tuple[float, float]:
        """By how much delivered tokens are behind the likeliest at most: of this row as it should be; of a model that
        sees everything.
        """
        ours = plain = 0.0
        for life in self.lives[row]:
            if life.delivered:
                tokens = list(sequence[: len(life.keys)])
                given = torch.tensor([sequence[at] for at in life.delivered])
                queries = torch.tensor(life.delivered) - 1
                ours = max(ours, _behind(logits(model, tokens, mask_of(life.keys))[queries], given))
                plain = max(plain, _behind(logits(model, tokens)[queries], given))
        return ours, plain


def mask_of(keys: Sequence[set[int]]) -> torch.Tensor:
    """float64 [tokens, tokens]: 0 where a query sees a key, -inf elsewhere."""
    mask = torch.full((len(keys), len(keys)), float("-inf"), dtype=torch.float64)
    for query, seen in enumerate(keys):
        mask[query, sorted(seen)] = 0.0
    return mask


def _behind(found: torch.Tensor, given: torch.Tensor) -> float:
    return float((found.amax(-1) - found.gather(1, given[:, None])[:, 0]).max())

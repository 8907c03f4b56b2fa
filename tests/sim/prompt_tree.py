"""Random prompts that share prefixes, and the ids of their hash blocks."""

from __future__ import annotations

import random


class PromptTree:
    """Prompts of several conversations: each is new, or continues, shares a part of, or repeats an earlier one.

    A prompt is the list of its tokens. An id stands for a hash block and all that comes before it; ids are dense, from
    0. The last hash block may be partial; it has its own id, which a longer block never has.
    """

    def __init__(self, rng: random.Random, hash_tokens: int, block_size_tokens: int) -> None:
        self.rng = rng
        self.hash_tokens = hash_tokens
        self.block_size_tokens = block_size_tokens
        self.prompts: list[list[int]] = []
        self.next_token = 0
        self.ids: dict[tuple[int | None, tuple[int, ...]], int] = {}

    def draw(self, tokens: int, *, at_most: int) -> list[int]:
        """A prompt of about ``tokens`` tokens: one that continues or repeats another has at most ``at_most``."""
        prompt = self._draw(tokens, at_most)
        self.prompts.append(prompt)
        return prompt

    def hashes(self, prompt: list[int]) -> tuple[int, ...]:
        """The ids of a prompt's hash blocks."""
        found: list[int] = []
        for start in range(0, len(prompt), self.hash_tokens):
            content = tuple(prompt[start : start + self.hash_tokens])
            block = (found[-1] if found else None, content)
            found.append(self.ids.setdefault(block, len(self.ids)))
        return tuple(found)

    def _draw(self, tokens: int, at_most: int) -> list[int]:
        rng = self.rng
        kind = rng.choice(("new", "part", "continue", "continue", "repeat"))
        if kind == "new" or not self.prompts:
            return self._fresh(tokens)
        earlier = rng.choice(self.prompts)
        if kind == "repeat" and len(earlier) <= at_most:
            return list(earlier)
        room = at_most - len(earlier)
        if kind == "continue" and room > 0:
            return earlier + self._fresh(rng.randint(1, min(room, 4 * self.block_size_tokens)))
        shared = rng.randint(1, min(tokens, len(earlier)))
        if rng.random() < 0.5:  # whole blocks, and now and then nothing else: then all of the prompt may be cached
            shared = max(1, shared // self.block_size_tokens * self.block_size_tokens)
            tokens = rng.choice((shared, tokens))
        return earlier[:shared] + self._fresh(tokens - shared)

    def _fresh(self, tokens: int) -> list[int]:
        first, self.next_token = self.next_token, self.next_token + tokens
        return list(range(first, self.next_token))

"""Parts of users for the tests: built-in ones once more, and some that go wrong."""

from __future__ import annotations

from typing import ClassVar

from kvrm_sim.plugins import Order, Placement, Pool, RunningRow, Victim, WaitingRequest


class Stack(Placement):
    """``lifo``."""

    name = "stack"

    @staticmethod
    def memory_words(blocks: int) -> int:
        return blocks

    @staticmethod
    def open(pool: Pool) -> None:
        for depth in range(pool.blocks):
            pool.memory[depth] = pool.blocks - depth

    @staticmethod
    def take(pool: Pool, last: int) -> int:
        return pool.memory[pool.free_blocks - 1]

    @staticmethod
    def release(pool: Pool, block: int) -> None:
        pool.memory[pool.free_blocks - 1] = block


class LowestFirst(Placement):
    """``lowest``, with the id below which nothing is free as its memory."""

    name = "lowest-first"

    @staticmethod
    def memory_words(blocks: int) -> int:
        return 1

    @staticmethod
    def take(pool: Pool, last: int) -> int:
        block = pool.memory[0] + 1
        while pool.free[block] == 0:
            block += 1
        pool.memory[0] = block
        return block

    @staticmethod
    def release(pool: Pool, block: int) -> None:
        pool.memory[0] = min(pool.memory[0], block - 1)


class Beside(Placement):
    """The block behind the request's last one, else the highest that is free."""

    name = "beside"

    @staticmethod
    def take(pool: Pool, last: int) -> int:
        if last > 0 and pool.free[last + 1]:
            return last + 1
        block = pool.blocks
        while pool.free[block] == 0:
            block -= 1
        return block


class Largest(Victim):
    """``largest``."""

    name = "most-blocks"

    @staticmethod
    def weight(row: RunningRow) -> int:
        return row.blocks


class LeastComputed(Victim):
    """``least_computed``."""

    name = "least-work"

    @staticmethod
    def weight(row: RunningRow) -> int:
        return -row.computed_tokens


class ShortPrompts(Order):
    """``shortest_prompt``."""

    name = "short-prompts"

    @staticmethod
    def score(request: WaitingRequest) -> int:
        return request.prompt_tokens


class ShortTotals(Order):
    """``shortest_total``."""

    name = "short-totals"

    @staticmethod
    def score(request: WaitingRequest) -> int:
        return request.prompt_tokens + request.output_tokens


class CompiledStack(Stack):
    name = "compiled-stack"
    compiled = True


class CompiledLargest(Largest):
    name = "compiled-most-blocks"
    compiled = True


class CompiledShortTotals(ShortTotals):
    name = "compiled-short-totals"
    compiled = True


class Wrong(Placement):
    """Gives what its tests ask for."""

    name = "wrong"
    answer: ClassVar[object] = 0

    @staticmethod
    def take(pool: Pool, last: int) -> int:
        return Wrong.answer  # type: ignore[return-value]  # that is the point


class Heavy(Victim):
    name = "heavy"

    @staticmethod
    def weight(row: RunningRow) -> int:
        return row.blocks / 2  # type: ignore[return-value]  # that is the point


class Raises(Order):
    name = "raises"

    @staticmethod
    def score(request: WaitingRequest) -> int:
        return 100 // (request.prompt_tokens - request.prompt_tokens)

"""Policy parts that a user writes: what to subclass, and the records that a part is handed (docs/plugins.md).

    from kvrm.plugins import Placement

    class HighestFirst(Placement):
        name = "highest"

        @staticmethod
        def take(pool, last):
            ...

A part is a class of functions without an instance: it decides from what it is handed, and keeps nothing but a
placement's ``memory``. The same inputs have to give the same answer. How parts are found: plugin_registry.py; how the
core runs with them: plugin_core.py. A router: router_part.py.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvrm_sim.errors import PluginError

__all__ = ["Order", "Part", "Placement", "Pool", "RunningRow", "Victim", "WaitingRequest"]


class Pool(NamedTuple):
    """The pool that a placement is handed."""

    #: int32, indexed by block id: 1 where the block is free. Ids run from 1 to ``blocks``; 0 and blocks + 1 are never
    #: free, so that a neighbour may be looked at. Read only.
    free: NDArray[np.int32]
    #: Blocks of the pool.
    blocks: int
    #: How many of them are free now.
    free_blocks: int
    #: The placement's own int64 array, ``memory_words(blocks)`` long, zero at the start.
    memory: NDArray[np.int64]


class RunningRow(NamedTuple):
    """A running request, as a victim's weight sees it."""

    #: KV entries written, which a preemption loses.
    computed_tokens: int
    #: Blocks that it holds.
    blocks: int
    prompt_tokens: int
    #: Output tokens delivered so far.
    delivered_tokens: int
    #: Of the trace; 0 where it has none.
    priority: int
    #: How often it has been preempted.
    preemptions: int
    arrival_ns: int


class WaitingRequest(NamedTuple):
    """A request that arrives, as an order's score sees it."""

    prompt_tokens: int
    #: How long its output will be, which no server knows: a score that reads it is a bound.
    output_tokens: int
    #: Of the trace; 0 where it has none.
    priority: int
    arrival_ns: int


class Part:
    """What all kinds of parts have in common. Subclass one of the kinds below."""

    #: The word that a configuration calls the part by: lower-case letters, digits, ``-`` and ``_``.
    name: ClassVar[str]
    #: The functions are in the subset that numba compiles, and nothing they do allocates: the core is then compiled
    #: with them. Otherwise it runs as plain Python, about a thousand times slower.
    compiled: ClassVar[bool] = False

    #: Set by the kinds: what they are called, and the key that takes their name (None: an option of its own).
    kind: ClassVar[str]
    key: ClassVar[str | None] = None
    #: Set by the kinds: the functions that the core calls, with the number of their parameters.
    functions: ClassVar[dict[str, int]]


class Placement(Part):
    """Which free block is given out next: ``pager.placement``."""

    kind = "placement"
    key = "pager.placement"
    functions: ClassVar[dict[str, int]] = {"take": 2, "release": 2, "open": 1}

    @staticmethod
    def memory_words(blocks: int) -> int:  # noqa: ARG004  # a subclass reads it
        """How long ``memory`` is for a pool of so many blocks. Runs as plain Python, once."""
        return 0

    @classmethod
    def new_memory(cls, blocks: int) -> NDArray[np.int64]:
        """The array for a pool of so many blocks. Raises PluginError for a length that is none."""
        words: object = cls.memory_words(blocks)
        if isinstance(words, bool) or not isinstance(words, (int, np.integer)) or words < 0:
            raise PluginError(
                f"{part_name(cls)}: memory_words returned {words!r}: it should return an integer from 0 up"
            )
        return np.zeros(int(words), np.int64)

    @staticmethod
    def open(pool: Pool) -> None:
        """All blocks are free: set up ``memory``."""

    @staticmethod
    def take(pool: Pool, last: int) -> int:
        """The id of a free block, for a request whose last block is ``last`` (0: it has none). At least one is free;
        the one returned is marked as held right after.
        """
        raise NotImplementedError

    @staticmethod
    def release(pool: Pool, block: int) -> None:
        """A block came back; it is marked as free already. A request's blocks come back last one first."""


class Victim(Part):
    """Which running request is preempted when a block is needed and none can be had: ``schedule.victim``."""

    kind = "victim"
    key = "schedule.victim"
    functions: ClassVar[dict[str, int]] = {"weight": 1}

    @staticmethod
    def weight(row: RunningRow) -> int:
        """The running row of the greatest weight goes first; of equals the one admitted last."""
        raise NotImplementedError


class Order(Part):
    """Who is admitted next: ``schedule.order``."""

    kind = "order"
    key = "schedule.order"
    functions: ClassVar[dict[str, int]] = {"score": 1}

    @staticmethod
    def score(request: WaitingRequest) -> int:
        """The waiting request of the least score is admitted first; of equals the one that came first. Asked once, as
        the request arrives; a preempted request keeps its score.
        """
        raise NotImplementedError


def part_name(part: type[Part]) -> str:
    """How messages call a part: ``placement 'highest'``."""
    return f"{part.kind} {part.name!r}"

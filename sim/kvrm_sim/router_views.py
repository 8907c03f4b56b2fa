"""What a router sees: of an arrival what a gateway could know, of a replica exact integers (docs/cluster.md)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvrm_sim.feed import NO_IDS
from kvrm_sim.load import cached_tokens, work_ahead
from kvrm_sim.replica import Replica


class RoutedRequest(NamedTuple):
    """What a router sees of an arrival. ``row`` counts arrivals from 0. ``session``: an integer from 0, or None.

    ``ids`` int64: its prompt's hash blocks are the ``num_ids`` from ``ids_at`` on.
    """

    row: int
    prompt_tokens: int
    session: int | None = None
    ids: NDArray[np.int64] = NO_IDS
    ids_at: int = 0
    num_ids: int = 0


class ReplicaView:
    """What a router may read of a replica, as of the time to which it has been advanced."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        # One-element views: a record's attribute costs a microsecond, and routers ask at each arrival.
        scalars = replica.scalars
        self._waiting, self._running = scalars["num_waiting"], scalars["num_running"]
        self._unseen = scalars["num_unseen"]
        self._decoding = scalars["num_decode"]
        self._free, self._evictable = scalars["free_blocks"], scalars["evictable"]
        self.pool_blocks = int(replica.parameters.record[0].pool_blocks)
        self.block_size_tokens = int(replica.parameters.record[0].block_size)

    @property
    def waiting(self) -> int:
        """Requests that wait for admission, preempted ones too."""
        return int(self._waiting[0] + self._unseen[0])

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return int(self._running[0])

    @property
    def requests(self) -> int:
        """Requests here that are not finished."""
        return int(self._waiting[0] + self._unseen[0]) + int(self._running[0])

    @property
    def decoding_rows(self) -> int:
        """Running requests whose prompt has been computed."""
        return int(self._decoding[0])

    @property
    def available_blocks(self) -> int:
        """Blocks that can be given out: free, or kept only for a hit."""
        return int(self._free[0]) + int(self._evictable[0])

    @property
    def held_blocks(self) -> int:
        """Blocks that running requests hold, shared ones once."""
        return self.pool_blocks - self.available_blocks

    def work_ahead(self) -> tuple[int, int]:
        """(prompt tokens still to be computed, blocks that the waiting will take); one pass over the requests here."""
        r = self._replica
        tokens, blocks = work_ahead(r.parameters.record, r.scalars, r.requests, r.rows)
        return int(tokens), int(blocks)

    def cached_prompt_tokens(self, request: RoutedRequest) -> int:
        """Tokens of its prompt that an admission now would find cached; 0 where nothing is shared."""
        r = self._replica
        if request.num_ids == 0 or not r.parameters.shares:
            return 0
        prompt, count = request.prompt_tokens, request.num_ids
        return int(cached_tokens(r.parameters.record, r.keys, request.ids, request.ids_at, count, prompt))

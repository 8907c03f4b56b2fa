"""A router that a user writes (docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from kvrm_sim.plugins import Part

if TYPE_CHECKING:  # the simulator's core comes with it, and lists of names do without
    from kvrm_sim.router_views import ReplicaView, RoutedRequest


class Router(Part):
    """Which replica of a cluster takes an arrival: ``--router``. An object of it serves one run, so it may remember."""

    kind = "router"
    functions: ClassVar[dict[str, int]] = {"choose": 4}

    #: Every choice follows from the request's ``row`` and ``prompt_tokens``: replicas need not be advanced before it.
    stateless: ClassVar[bool] = False

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView], now_ns: int, /) -> int:
        """The index of the replica that takes a request that arrives now (docs/cluster.md)."""
        raise NotImplementedError

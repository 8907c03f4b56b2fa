"""Routers: which replica of a cluster takes an arrival (docs/cluster.md).

A router sees what a gateway could know of a request (not how long its output will be) and documented integers of each
replica, all of them exact and as of the arrival's time. It is deterministic; of equals the replica with the lowest
index is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from kvrm_sim.errors import ConfigError, PluginError
from kvrm_sim.plugin_registry import needed
from kvrm_sim.plugins import Part, part_name
from kvrm_sim.router_part import Router as RouterPart
from kvrm_sim.router_views import ReplicaView, RoutedRequest

#: How many blocks that are held weigh as much as one block that is to be prefilled.
PREFIX_WEIGHT = 1.0


class Router(Protocol):
    """Chooses a replica for each arrival. One object serves one run."""

    @property
    def stateless(self) -> bool:
        """Every choice follows from the request's row alone: replicas need not be advanced before it."""

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView], now_ns: int, /) -> int:
        """The index of the replica that takes the request, which arrives now. Replicas have been advanced to now."""


class RoundRobin:
    """Each replica in turn."""

    stateless: ClassVar[bool] = True

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView], _now_ns: int, /) -> int:
        return request.row % len(replicas)


class LeastLoaded:
    """The fewest requests, waiting and running."""

    stateless: ClassVar[bool] = False

    def choose(self, _request: RoutedRequest, replicas: Sequence[ReplicaView], _now_ns: int, /) -> int:
        loads = [replica.requests for replica in replicas]
        return loads.index(min(loads))


class LeastTokens:
    """The fewest prompt tokens still to be computed; of equals the fewest requests."""

    stateless: ClassVar[bool] = False

    def choose(self, _request: RoutedRequest, replicas: Sequence[ReplicaView], _now_ns: int, /) -> int:
        loads = [(replica.work_ahead()[0], replica.requests) for replica in replicas]
        return loads.index(min(loads))


class LeastKv:
    """The fewest KV blocks, held and wanted by those who wait."""

    stateless: ClassVar[bool] = False

    def choose(self, _request: RoutedRequest, replicas: Sequence[ReplicaView], _now_ns: int, /) -> int:
        loads = [replica.held_blocks + replica.work_ahead()[1] for replica in replicas]
        return loads.index(min(loads))


class PrefixAware:
    """The least cost in blocks: `weight` x those to be prefilled, this prompt's uncached ones among them, + those held.

    The rule of NVIDIA Dynamo's KV router at temperature 0; its overlap weight is `weight`.
    """

    stateless: ClassVar[bool] = False

    def __init__(self, weight: float = PREFIX_WEIGHT) -> None:
        self.weight = weight

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView], _now_ns: int, /) -> int:
        costs = [self._cost(request, replica) for replica in replicas]
        return costs.index(min(costs))

    def _cost(self, request: RoutedRequest, replica: ReplicaView) -> float:
        tokens, wanted = replica.work_ahead()
        tokens += request.prompt_tokens - replica.cached_prompt_tokens(request)
        return self.weight * (tokens / replica.block_size_tokens) + (replica.held_blocks + wanted)


class SessionSticky:
    """The replica that took the session's first request, which went to the least loaded one.

    A request without a session is one of its own. Memory grows with the number of sessions.
    """

    stateless: ClassVar[bool] = False

    def __init__(self) -> None:
        self._first = LeastLoaded()
        self._homes: dict[int, int] = {}

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView], now_ns: int, /) -> int:
        home = None if request.session is None else self._homes.get(request.session)
        if home is None:
            home = self._first.choose(request, replicas, now_ns)
            if request.session is not None:
                self._homes[request.session] = home
        return home


class WatchedRouter:
    """A user's router: what it raises or chooses is looked at."""

    def __init__(self, part: type[RouterPart]) -> None:
        self._who = part_name(part)
        self.stateless = part.stateless
        try:
            self._router = part()
        except Exception as error:
            raise PluginError(f"{self._who}: making one raised {type(error).__name__}: {error}") from error

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView], now_ns: int, /) -> int:
        try:
            chosen: object = self._router.choose(request, replicas, now_ns)
        except Exception as error:
            raise PluginError(f"{self._who}: choose raised {type(error).__name__}: {error}") from error
        if isinstance(chosen, bool) or not isinstance(chosen, (int, np.integer)) or not 0 <= chosen < len(replicas):
            raise PluginError(
                f"{self._who}: choose returned {chosen!r} for request {request.row}: it should return the index of a "
                f"replica, 0 to {len(replicas) - 1}"
            )
        return int(chosen)


_ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "least-tokens": LeastTokens,
    "least-kv": LeastKv,
    "prefix-aware": PrefixAware,
    "session-sticky": SessionSticky,
}


def router_parts(name: str) -> tuple[type[Part], ...]:
    """The user's part that a router's name stands for; none for one of ours."""
    return () if name in _ROUTERS else (needed("router", name, tuple(_ROUTERS)),)


def make_router(name: str, prefix_weight: float | None = None) -> Router:
    """A router by name, a plug-in's too, for one run.

    ``prefix_weight``: of ``prefix-aware`` only; default ``PREFIX_WEIGHT``.
    Raises ConfigError for an unknown name, and for a weight that is not finite and at least 0 or that nothing reads.
    """
    if name not in _ROUTERS:
        part = needed("router", name, tuple(_ROUTERS))
        assert issubclass(part, RouterPart), "a part of this kind"
        made: Callable[[], Router] = partial(WatchedRouter, part)
    else:
        made = _ROUTERS[name]
    if prefix_weight is None:
        return made()
    if name != "prefix-aware":
        raise ConfigError(f"prefix_weight = {prefix_weight}: router {name!r} has no weight; 'prefix-aware' has one")
    if not (np.isfinite(prefix_weight) and prefix_weight >= 0):
        raise ConfigError(f"prefix_weight = {prefix_weight}: should be a finite number of at least 0")
    return PrefixAware(prefix_weight)

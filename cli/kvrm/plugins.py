"""Write a policy part of your own: subclass one of these and give it a name (docs/plugins.md).

from kvrm.plugins import Placement
"""

from __future__ import annotations

from kvrm_sim.plugin_registry import PartSource, register, using
from kvrm_sim.plugins import Order, Placement, Pool, RunningRow, Victim, WaitingRequest
from kvrm_sim.router_part import Router

__all__ = [
    "Order",
    "PartSource",
    "Placement",
    "Pool",
    "Router",
    "RunningRow",
    "Victim",
    "WaitingRequest",
    "register",
    "using",
]

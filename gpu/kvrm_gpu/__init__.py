"""The simulator's pager and transfers on a real device. Needs the extra ``gpu`` (torch, and triton on Linux)."""

from __future__ import annotations

import importlib.util

from kvrm_sim.errors import KvrmError


class MissingExtraError(KvrmError):
    """An optional dependency is absent; the message names the extra that brings it."""


def require_torch() -> None:
    """Raise :class:`MissingExtraError` when torch is not installed; cheap, since torch is not imported."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch is not installed: `pip install 'kvrm[gpu]'` brings what the device needs")

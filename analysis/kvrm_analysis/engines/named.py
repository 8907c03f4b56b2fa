"""Engines by name."""

from __future__ import annotations

from kvrm_analysis.engines.engine_local import LocalEngine
from kvrm_analysis.engines.engine_ray import RayEngine
from kvrm_analysis.engines.engines import Engine
from kvrm_sim.errors import InputError


def make_engine(name: str = "local", *, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by name: ``local``, ``workers`` processes of this machine (None: one a core), or ``ray``, the cluster
    at ``address`` (None: one of ``workers`` processes, on this machine). Raises InputError.
    """
    if name == "ray":
        return RayEngine(workers, address=address)
    if name != "local":
        raise InputError(f"engine = {name!r}: should be 'local' or 'ray'")
    if address is not None:
        raise InputError(f"address = {address!r}: only engine 'ray' has one")
    return LocalEngine(workers)


def engine_of(engine: str | Engine, *, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine as it is, or by its name (:func:`make_engine`)."""
    return make_engine(engine, workers=workers, address=address) if isinstance(engine, str) else engine

"""The record of runtime numbers that the compiled core reads, and the ladders beside it.

A policy is data: the core dispatches on these integers, so one binary serves every policy. derivation.py fills it
from a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvrm_sim.pager import PAGED
from kvrm_sim.plugins import Part
from kvrm_sim.state import PARAMS, Records

_LADDERS = ("buckets", "batch_sizes", "contexts", "token_sizes", "capacities")


@dataclass(frozen=True, slots=True)
class CoreParameters:
    """``record``: PARAMS[1]; ``ladders``: int64, the ascending ladders one after another; ``parts``: those of users."""

    record: Records
    ladders: NDArray[np.int64]
    parts: tuple[type[Part], ...] = ()

    @property
    def paged(self) -> bool:
        """Blocks are taken as they are written; otherwise a request holds one contiguous run."""
        return bool(self.record[0].reserve == PAGED)

    @property
    def shares(self) -> bool:
        """Blocks are shared by the trace's prefix hashes, so arrivals have to come with them."""
        return bool(self.record[0].sharing)


def core_parameters(
    values: Mapping[str, int | float], ladders: Mapping[str, Sequence[int]], parts: tuple[type[Part], ...] = ()
) -> CoreParameters:
    """Put numbers by name into the record; ladders by name (buckets, batch_sizes, contexts, token_sizes, capacities).

    Every name must be a field of PARAMS: a misspelt one is a KeyError, not a zero.
    """
    record = np.zeros(1, PARAMS)
    flat: list[int] = []
    for name in _LADDERS:
        entries = list(ladders.get(name, ()))
        record[f"{name}_at"] = len(flat)
        record[f"num_{name}"] = len(entries)
        flat += entries
    derived = {*(f"{name}_at" for name in _LADDERS), *(f"num_{name}" for name in _LADDERS)}
    names = set(record.dtype.names or ()) - derived
    for name, value in values.items():
        if name not in names:
            raise KeyError(f"PARAMS has no field {name!r}")
        record[name] = value
    return CoreParameters(record=record, ladders=np.array(flat or [0], np.int64), parts=parts)

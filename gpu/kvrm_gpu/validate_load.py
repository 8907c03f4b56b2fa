"""The load of a validation: a trace's requests at a length scale, arriving at a share of what a policy can serve.

Where prefixes are shared, the trace's hashes go with them: hash blocks are divided as lengths are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.measure_steps import quiet_sinks
from kvrm_gpu.profile_scale import Scale
from kvrm_gpu.prompts import hashed_prompt, random_prompt
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.derivation import parameters_of
from kvrm_sim.errors import InputError
from kvrm_sim.feed import arrival_chunks
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.replica import Replica
from kvrm_traces import Trace


@dataclass(frozen=True, slots=True)
class Load:
    """``arrivals``: ARRIVALS [n], spaced as the trace spaces them. ``ids`` int64: the prefix hashes that their
    ``ids_at`` count in, each of ``hash_block_tokens`` tokens; None: no hashes.
    """

    arrivals: st.Records
    ids: NDArray[np.int64]
    hash_block_tokens: int | None

    @classmethod
    def of(cls, trace: Trace, scale: Scale, rows: int, *, with_ids: bool = False) -> Load:
        """The first ``rows`` requests, prompts and outputs divided by the scale's divisor and cut at its limit.

        At least one token of each; a prompt leaves room for one token. ``with_ids``: with prefix hashes, if the trace
        has them. Raises InputError for fewer than 2 requests, and for hash blocks that the divisor does not divide.
        """
        block = trace.info.hash_block_tokens if with_ids else None
        if block is not None and block % scale.length_divisor:
            raise InputError(
                f"{trace.info.name}: hash blocks of {block} tokens cannot be divided by {scale.length_divisor}, as "
                f"scale {scale.name!r} divides lengths: pager.prefix_sharing needs another scale or trace"
            )
        chunks = list(arrival_chunks(trace.limit(rows), with_ids=block is not None))
        if sum(len(chunk.arrivals) for chunk in chunks) < 2:
            raise InputError(f"{trace.info.name}: fewer than 2 requests, and a load needs a gap between them")
        records = np.concatenate([chunk.arrivals for chunk in chunks])
        # Each chunk's hashes are counted from 0.
        records["ids_at"] = np.cumsum(records["num_ids"]) - records["num_ids"]
        prompt, output = (-(-records[name] // scale.length_divisor) for name in ("prompt_tokens", "output_tokens"))
        records["prompt_tokens"] = np.clip(prompt, 1, scale.limit_tokens - 1)
        longest = scale.limit_tokens - records["prompt_tokens"]
        records["output_tokens"] = np.minimum(np.maximum(output, 1), longest)
        records["declared_max_tokens"] = st.NONE
        ids = np.concatenate([chunk.ids for chunk in chunks])
        return cls(records, ids, None if block is None else block // scale.length_divisor)

    def prompts(self, vocab_size: int, seed: int) -> Callable[[int, int], NDArray[np.int64]]:
        """Prompts by request row, equal where hashes are."""
        if self.hash_block_tokens is None:
            return random_prompt(vocab_size, seed)
        return hashed_prompt(vocab_size, seed, self.arrivals, self.ids, self.hash_block_tokens)

    def replica(self, config: ReplicaConfig, plan: MemoryPlan) -> Replica:
        """A replica that has all of it before it."""
        parameters = parameters_of(config, plan, span_ns=None, hash_block_tokens=self.hash_block_tokens, log_moves=True)
        replica = Replica(parameters, quiet_sinks())
        replica.supply(self.arrivals, known_until_ns=st.NEVER, ids=self.ids)
        return replica

    def at_rate(self, requests_per_s: float) -> Load:
        """The same gaps, stretched so that requests arrive at this mean rate."""
        records = self.arrivals.copy()
        span_ns = int(records["arrival_ns"][-1] - records["arrival_ns"][0])
        wanted_ns = (len(records) - 1) / requests_per_s * 1e9
        start = records["arrival_ns"][0]
        records["arrival_ns"] = np.rint((records["arrival_ns"] - start) * (wanted_ns / max(1, span_ns)))
        return replace(self, arrivals=records)

    def together(self) -> Load:
        """Every request at time 0."""
        records = self.arrivals.copy()
        records["arrival_ns"] = 0
        return replace(self, arrivals=records)


def saturation_per_s(load: Load, config: ReplicaConfig, plan: MemoryPlan) -> float:
    """Requests a second that the simulator serves when all are there from the start."""
    replica = load.together().replica(config, plan)
    while replica.advance(st.NEVER, max_steps=1 << 30) == st.WORK:
        pass
    return len(load.arrivals) / replica.now_ns * 1e9

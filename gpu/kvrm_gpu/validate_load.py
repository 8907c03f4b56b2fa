"""The load of a validation: a trace's requests at a length scale, arriving at a share of what a policy can serve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvrm_gpu.measure_steps import quiet_sinks
from kvrm_gpu.profile_scale import Scale
from kvrm_sim import state as st
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.derivation import parameters_of
from kvrm_sim.errors import InputError
from kvrm_sim.memory import MemoryPlan
from kvrm_sim.replica import Replica
from kvrm_traces import Trace
from kvrm_traces.arrow import int64_values


@dataclass(frozen=True, slots=True)
class Load:
    """``arrivals``: ARRIVALS [n], spaced as the trace spaces them. Times are changed by :meth:`at_rate` only."""

    arrivals: st.Records

    @classmethod
    def of(cls, trace: Trace, scale: Scale, rows: int) -> Load:
        """The first ``rows`` requests, prompts and outputs divided by the scale's divisor and cut at its limit.

        At least one token of each; a prompt leaves room for one token. Raises InputError for fewer than 2 requests.
        """
        columns: dict[str, list[NDArray[np.int64]]] = {"arrival_ns": [], "prompt_tokens": [], "output_tokens": []}
        for batch in trace.limit(rows).batches(columns=list(columns)):
            for name, parts in columns.items():
                parts.append(int64_values(batch.column(name)))
        if sum(len(part) for part in columns["arrival_ns"]) < 2:
            raise InputError(f"{trace.info.name}: fewer than 2 requests, and a load needs a gap between them")
        arrival, prompt, output = (np.concatenate(parts) for parts in columns.values())
        records = np.zeros(len(arrival), st.ARRIVALS)
        records["row"] = np.arange(len(arrival))
        records["arrival_ns"] = arrival
        records["prompt_tokens"] = np.clip(-(-prompt // scale.length_divisor), 1, scale.limit_tokens - 1)
        longest = scale.limit_tokens - records["prompt_tokens"]
        records["output_tokens"] = np.minimum(np.maximum(-(-output // scale.length_divisor), 1), longest)
        records["declared_max_tokens"] = st.NONE
        return cls(records)

    def at_rate(self, requests_per_s: float) -> st.Records:
        """The same gaps, stretched so that requests arrive at this mean rate."""
        records = self.arrivals.copy()
        span_ns = int(records["arrival_ns"][-1] - records["arrival_ns"][0])
        wanted_ns = (len(records) - 1) / requests_per_s * 1e9
        start = records["arrival_ns"][0]
        records["arrival_ns"] = np.rint((records["arrival_ns"] - start) * (wanted_ns / max(1, span_ns)))
        return records

    def together(self) -> st.Records:
        """Every request at time 0."""
        records = self.arrivals.copy()
        records["arrival_ns"] = 0
        return records


def saturation_per_s(load: Load, config: ReplicaConfig, plan: MemoryPlan) -> float:
    """Requests a second that the simulator serves when all are there from the start."""
    replica = Replica(parameters_of(config, plan, span_ns=None), quiet_sinks())
    replica.supply(load.together(), known_until_ns=st.NEVER)
    while replica.advance(st.NEVER, max_steps=1 << 30) == st.WORK:
        pass
    return len(load.arrivals) / replica.now_ns * 1e9

"""What a replica has counted by its end, and the same added up over several: all that a summary reads of a run.

Counts, histograms and time-weighted sums add up exactly, so means and percentiles over several replicas are those of
all their requests. The peak of a sum is not had from the peaks of its parts: added up stands the greatest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.replica import Replica

_GREATEST = (
    "now_ns", "last_arrival_ns", "last_finish_ns",
    # Not of the sum, which is unknown: a caveat asks whether any pool filled.
    "peak_running", "peak_waiting", "peak_reserved_blocks", "peak_allocated_blocks", "peak_used_tokens",
    "peak_cached_blocks",
)  # fmt: skip
_ADDED = (
    *(total for _, total in st.SUMS),
    "injected", "completed", "rejected", "truncated", "unfinished", "steady_tokens", "steady_finishes", "preemptions",
    "recomputed_tokens", "evicted_blocks", "swaps", "loaded_blocks", "unnoticed_ns",
    "acc_reserved", "acc_allocated", "acc_used", "acc_cached", "acc_running", "acc_waiting",
)  # fmt: skip


@dataclass(frozen=True)
class Totals:
    """``params`` PARAMS [1]; ``scalars`` SCALARS [1]; ``tallies`` TALLY [NUM_HISTOGRAMS]; ``histograms`` int64
    [NUM_HISTOGRAMS, BUCKETS]; ``waiting_tenths`` float64 [10], waiting requests x ns in each tenth of the arrivals.
    """

    params: st.Records
    scalars: st.Records
    tallies: st.Records
    histograms: NDArray[np.int64]
    waiting_tenths: NDArray[np.float64]

    @classmethod
    def of(cls, replica: Replica) -> Totals:
        """Of a replica that is closed."""
        a = replica.arrays
        return cls(replica.parameters.record, replica.scalars, a.tallies, a.histograms, a.waiting_tenths)

    @property
    def end_ns(self) -> int:
        """The last finish; of a run that was stopped with requests in flight, the time of its last step."""
        s = self.scalars[0]
        return int(s.now_ns if s.unfinished else s.last_finish_ns)

    @property
    def span_ns(self) -> int:
        """From the first arrival to the end."""
        return max(0, self.end_ns - int(self.scalars[0].first_arrival_ns))


def added(parts: Sequence[Totals]) -> Totals:
    """The totals of several replicas together, at least one; the parameters are the first one's."""
    return Totals(
        params=parts[0].params,
        scalars=_added_scalars([part.scalars for part in parts]),
        tallies=_added_tallies([part.tallies for part in parts]),
        histograms=np.sum([part.histograms for part in parts], axis=0),
        waiting_tenths=np.sum([part.waiting_tenths for part in parts], axis=0),
    )


def _added_scalars(parts: Sequence[st.Records]) -> st.Records:
    """Totals added, last times; the first arrival of those that had one."""
    merged = np.zeros(1, st.SCALARS)
    every = np.concatenate(parts)
    for name in _ADDED:
        merged[name] = every[name].sum()
    for name in _GREATEST:
        merged[name] = every[name].max()
    served = every[every["injected"] > 0]
    if len(served):
        merged["first_arrival_ns"] = served["first_arrival_ns"].min()
    return merged


def _added_tallies(parts: Sequence[st.Records]) -> st.Records:
    merged = np.zeros(st.NUM_HISTOGRAMS, st.TALLY)
    for which in range(st.NUM_HISTOGRAMS):
        found = [part[which] for part in parts if part[which].n]
        if found:
            merged[which] = (
                sum(int(t.n) for t in found),
                min(int(t.least) for t in found),
                max(int(t.greatest) for t in found),
                sum(float(t.total) for t in found),
            )
    return merged

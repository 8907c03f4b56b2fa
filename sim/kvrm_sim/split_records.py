"""A request that is prefilled on one replica and decoded on another: its two records become one.

Arrival, queue and first token are of the prefill side; preemptions add up; the finish is of the decode side. The gap
between the first two tokens holds the transfer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvrm_sim import state as st
from kvrm_sim.cluster_records import ended_ns
from kvrm_sim.columns import SPLIT, with_fields
from kvrm_sim.compiled import outlined
from kvrm_sim.meters import BUCKETS, tally
from kvrm_sim.state import Ints, Records

_DTYPE = with_fields(st.OUT, SPLIT)


@dataclass
class Kept:
    """The OUT records of one side, with their replica."""

    parts: list[st.Records] = field(default_factory=list)

    def requests(self, records: st.Records) -> None:
        """Keep a copy."""
        self.parts.append(records.copy())

    def by_row(self) -> st.Records:
        """All of them, in the order of the trace."""
        if not self.parts:
            return np.zeros(0, with_fields(st.OUT))
        every = np.concatenate(self.parts)
        return every[np.argsort(every["row"])]


@dataclass
class Outputs:
    """Of each request of the trace, int64: tokens recorded, tokens to be delivered (0: refused at arrival)."""

    recorded: NDArray[np.int64]
    delivered: NDArray[np.int64]


@dataclass
class Transfers:
    """Of each row, int64, NONE where nothing was moved (yet): its decode replica, what it took, its groups."""

    decode_replica: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    groups: NDArray[np.int64]

    @classmethod
    def none(cls, rows: int) -> Transfers:
        """Nothing moved."""
        return cls(*(np.full(rows, st.NONE, np.int64) for _ in range(3)))


def merged_requests(prefill: st.Records, decode: st.Records, outputs: Outputs, transfers: Transfers) -> st.Records:
    """OUT records with ``SPLIT``, in the order in which the requests ended; both sides' are ordered by row."""
    merged = np.zeros(len(prefill), _DTYPE)
    for name in (*(st.OUT.names or ()), "replica"):
        merged[name] = prefill[name]
    row = merged["row"]
    merged["output_tokens"] = outputs.recorded[row]
    for name, values in (
        ("decode_replica", transfers.decode_replica),
        ("transfer_ns", transfers.duration_ns),
        ("transfer_groups", transfers.groups),
    ):
        merged[name] = values[row]
    prefilled = merged["outcome"] == st.COMPLETED
    _set_unfinished(merged, prefilled & (outputs.delivered[row] > 1))
    _add_decode(merged, np.searchsorted(row, decode["row"]), decode)
    cut = (merged["outcome"] == st.COMPLETED) & (outputs.delivered[row] < outputs.recorded[row])
    merged["outcome"][cut] = st.TRUNCATED
    merged["reason"][cut] = st.R_CONTEXT_LIMIT
    return merged[np.lexsort((merged["row"], ended_ns(merged)))]


def _set_unfinished(merged: st.Records, which: NDArray[np.bool_]) -> None:
    """Prefilled and not done: unless the decode side says otherwise, the run was stopped before its transfer ended."""
    merged["outcome"][which] = st.UNFINISHED
    merged["reason"][which] = st.R_STOPPED
    merged["finish_ns"][which] = st.NONE


def _add_decode(merged: st.Records, at: NDArray[np.int64], decode: st.Records) -> None:
    for name in ("outcome", "reason", "finish_ns"):
        merged[name][at] = decode[name]
    for name in ("delivered", "preemptions", "recomputed_tokens"):
        merged[name][at] += decode[name]


@outlined
def _tally_all(tallies: Records, which: int, histogram: Ints, values: Ints) -> None:
    for value in values:
        tally(tallies[which], histogram, value, 1)


def tally_requests(
    merged: st.Records, prefill: st.Records, decode: st.Records, tallies: st.Records, histograms: NDArray[np.int64]
) -> None:
    """Count what only both sides know: E2E, TPOT, normalised latency, and the gap that holds the transfer.

    TALLY [NUM_HISTOGRAMS] and int64 [NUM_HISTOGRAMS, BUCKETS] are changed in place.
    """
    done = merged[(merged["outcome"] == st.COMPLETED) | (merged["outcome"] == st.TRUNCATED)]
    e2e, delivered = done["finish_ns"] - done["arrival_ns"], done["delivered"]
    several = delivered > 1
    began = decode[decode["first_token_ns"] != st.NONE]
    first = prefill["first_token_ns"][np.searchsorted(prefill["row"], began["row"])]
    decoding = (done["finish_ns"] - done["first_token_ns"])[several]
    for which, values in (
        (st.H_E2E, e2e),
        (st.H_NORMALIZED, e2e // np.maximum(delivered, 1)),
        (st.H_TPOT_EXCLUSIVE, decoding // (delivered[several] - 1)),
        (st.H_TPOT_INCLUSIVE, (e2e // np.maximum(delivered, 1))[several]),
        (st.H_ITL, began["first_token_ns"] - first),
    ):
        assert histograms.shape[1] == BUCKETS
        _tally_all(tallies, which, histograms[which], np.ascontiguousarray(values, np.int64))

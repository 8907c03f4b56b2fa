"""The RUN object of a run whose prompts and decodes are on different replicas (docs/cluster.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvrm_sim import state as st
from kvrm_sim.cluster_summary import Served, summarize_several
from kvrm_sim.config import ReplicaConfig
from kvrm_sim.ended import About
from kvrm_sim.split_records import tally_requests
from kvrm_sim.totals import Totals, added

#: Times that only one side's histograms tell right: on the decode side a request "arrives" when its KV does.
_OF_PREFILL = (st.H_TTFT, st.H_QUEUE)
#: Times of whole requests: neither side's.
_OF_BOTH = (st.H_E2E, st.H_NORMALIZED, st.H_TPOT_EXCLUSIVE, st.H_TPOT_INCLUSIVE)


@dataclass(frozen=True)
class Side:
    """Ended replicas of one kind, and their OUT records by row."""

    served: Sequence[Served]
    requests: st.Records

    @property
    def totals(self) -> Totals:
        """All of them together."""
        return added([one.totals for one in self.served])


def summarize_split(
    prefill: Side, decode: Side, merged: st.Records, described: Mapping[str, Any], about: About
) -> dict[str, Any]:
    """The RUN object over both sides. ``merged``: OUT records with ``SPLIT``. Raises InvariantError when requests are
    not conserved.
    """
    again = int(decode.totals.scalars[0].preemptions)
    preempted = f"decode_preempted: {again:,} preemptions on decode replicas; their KV came back at no cost"
    run = summarize_several(
        {"prefill": prefill.served, "decode": decode.served},
        described,
        about,
        totals=_totals(prefill, decode, merged),
        warnings=[preempted] if again else [],
    )
    cluster = run["cluster"]
    cluster["kv_transfer"] = _kv_transfer(merged, about.config)
    cluster["per_replica"] = cluster.pop("per_replica")  # the long table stays last
    return run


def _totals(prefill: Side, decode: Side, merged: st.Records) -> Totals:
    """Both sides together, with each request once: its times as a whole, and what became of it in the end."""
    prompts, decodes = prefill.totals, decode.totals
    both = added([one.totals for side in (prefill, decode) for one in side.served])
    tallies, histograms = decodes.tallies, decodes.histograms
    for which in _OF_PREFILL:
        tallies[which], histograms[which] = prompts.tallies[which], prompts.histograms[which]
    for which in _OF_BOTH:
        tallies[which] = np.zeros((), st.TALLY)
        histograms[which] = 0
    tally_requests(merged, prefill.requests, decode.requests, tallies, histograms)
    _count_once(both.scalars, prompts, merged)
    return replace(both, tallies=tallies, histograms=histograms)


def _count_once(scalars: st.Records, prompts: Totals, merged: st.Records) -> None:
    """Set in SCALARS [1] what both sides have counted of the same request."""
    params = prompts.params[0]
    for name in ("injected", "first_arrival_ns", "last_arrival_ns"):
        scalars[name] = prompts.scalars[name]
    for code, name in enumerate(st.OUTCOMES):
        scalars[name] = int((merged["outcome"] == code).sum())
    finish = merged["finish_ns"][(merged["outcome"] == st.COMPLETED) | (merged["outcome"] == st.TRUNCATED)]
    inside = (finish >= params.steady_from_ns) & (finish <= params.steady_until_ns)
    scalars["steady_finishes"] = int(inside.sum())
    scalars["last_finish_ns"] = int(finish.max(initial=0))


def _kv_transfer(merged: st.Records, config: ReplicaConfig) -> dict[str, Any]:
    """Ended moves between replicas: how many, what they carried, and how long from the first token to the last byte."""
    moved = merged[merged["transfer_ns"] != st.NONE]
    took = moved["transfer_ns"]
    return {
        "n": len(moved),
        "groups": int(moved["transfer_groups"].sum()),
        "bytes_moved": int(moved["prompt_tokens"].sum()) * config.rank_kv_bytes_per_token,
        "mean_s": float(took.mean()) / 1e9 if len(took) else None,
        "max_s": int(took.max()) / 1e9 if len(took) else None,
    }

"""`trace fit`: a generator that resembles a trace, and how well it does, by two-sample distances.

Arrivals: see :mod:`kvrm_traces.synth.fitting_process`. Lengths: the trace's own quantiles. A trace with conversations
becomes conversations (:mod:`kvrm_traces.synth.fitting_talk`), whose beginnings arrive so. What is left out: lengths are
drawn independently of one another and of the arrivals, and no prefix is shared between conversations.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from kvrm_traces.arrow import int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.schema import REQUIRED, requests
from kvrm_traces.synth.builtin import generated
from kvrm_traces.synth.fitting_process import Process, arrivals_of, fitted_process, statistics
from kvrm_traces.synth.fitting_talk import Talk, talk_of
from kvrm_traces.synth.lengths import Ints
from kvrm_traces.synth.preset import parse_preset
from kvrm_traces.trace import Trace

#: Probabilities at which a length's quantiles are kept.
PROBABILITIES = (
    0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7,
    0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99, 0.995, 0.999, 1,
)  # fmt: skip

#: Requests that are compared, of the trace and of the generator; and the fewest that can be fitted.
COMPARED = 200_000
FEWEST = 100
#: Tokens a block of a generated conversation's hashes, where the trace has none.
_BLOCK_TOKENS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distance:
    """Largest difference between two empirical distribution functions (Kolmogorov and Smirnov). ``chance``: what two
    samples of one distribution exceed once in twenty times.
    """

    distance: float
    chance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """``toml``: the generator, as ``trace synth`` takes it. ``distances``: of gaps, prompt_tokens, output_tokens and
    arrivals a second; of conversations also turns, messages and think_ms. ``measured``, ``generated``: rate, CV of
    gaps, Fano factors of both. ``correlation``: between the ranks of prompt and output of the trace; of lengths that
    are drawn alone, the generator loses it. ``conversations``: how many were found, None where it was fitted request by
    request.
    """

    toml: str
    process: str
    rows: int
    conversations: int | None
    distances: dict[str, Distance]
    measured: dict[str, float | None]
    generated: dict[str, float | None]
    correlation: float

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return dataclasses.asdict(self)

    def to_text(self) -> str:
        """A table for a terminal."""
        talks = self.conversations
        lines = [
            f"process         {self.process}{'' if talks is None else ', of conversations'}",
            f"requests        {self.rows}{'' if talks is None else f' in {talks} conversations'}",
            "",
            f"{'':16}{'trace':>12}{'generator':>12}",
        ]
        for name, value in self.measured.items():
            ours = self.generated[name]
            lines.append(
                f"{name:16}" + "".join("-".rjust(12) if one is None else f"{one:12.4g}" for one in (value, ours))
            )
        lines += ["", f"{'distance':16}{'KS':>12}{'by chance':>12}"]
        lines += [f"{name:16}{one.distance:12.4f}{one.chance:12.4f}" for name, one in self.distances.items()]
        left = "the generator has none" if talks is None else "no prefix is shared between conversations"
        lines += ["", f"rank correlation of prompt and output {self.correlation:+.3f} ({left})"]
        return "\n".join(lines)


def fit_trace(trace: Trace, *, seed: int = 0) -> Fit:
    """Fit a generator to a trace and compare the two; `seed`: of the generator's sample.

    One pass for arrivals, one over the first 200,000 requests, and one for conversations, whose memory grows with the
    trace. Raises TraceError for fewer than 100 requests, or a trace that is all at one instant.
    """
    info = trace.info
    talk = talk_of(trace)
    begins = trace if talk is None else talk.begins
    if info.rows < FEWEST or begins.info.rate_per_s is None:
        raise TraceError(
            f"{info.source}: has {requests(info.rows)} over {info.span_s:g} s; {FEWEST} or more can be fitted"
        )
    sample = _sample(trace.limit(COMPARED))
    process = fitted_process(begins, seed)
    text = _toml(trace, process, sample, talk)
    preset = parse_preset(info.name, text, "the fitted generator")
    rows = COMPARED if talk is None else min(COMPARED, info.rows)
    made = generated(preset, rows, seed, "generator", "fitted")
    theirs = _sample(made.limit(sample["prompt_tokens"].size))
    if talk is not None:
        sample |= _talk_sample(talk)
        their_talk = talk_of(made)
        theirs |= {} if their_talk is None else _talk_sample(their_talk)
    return Fit(
        toml=text,
        process=process.name,
        rows=info.rows,
        conversations=None if talk is None else talk.turns.size,
        distances={name: _distance(sample[name], theirs[name]) for name in sample if name in theirs},
        measured=statistics(arrivals_of(trace), info.span_ns),
        generated=statistics(arrivals_of(made), made.info.span_ns),
        correlation=_rank_correlation(sample["prompt_tokens"], sample["output_tokens"]),
    )


def _toml(trace: Trace, process: Process, sample: dict[str, Ints], talk: Talk | None) -> str:
    about = {
        "description": f"Like {trace.info.name}",
        "source": f"fitted to {trace.info.name}, sha256 {trace.info.sha256[:16]}"
        + (f" ({trace.transforms})" if trace.transforms else ""),
        "rows": min(trace.info.rows, 2**31 - 1),
    }
    tables: dict[str, Any] = {"arrivals": process.table}
    tables["prompt_tokens"] = _quantiles(sample["prompt_tokens"] if talk is None else talk.messages)
    tables["output_tokens"] = _quantiles(sample["output_tokens"])
    if talk is not None:
        firsts = np.concatenate(
            [int64_values(batch.column(0)) for batch in talk.begins.batches(columns=["prompt_tokens"])]
        )
        tables["sessions"] = {
            "answer_ms_per_token": float(f"{talk.answer_ms_per_token:.6g}"),
            "most_context_tokens": max(3, int((sample["prompt_tokens"] + sample["output_tokens"]).max())),
            "hash_block_tokens": trace.info.hash_block_tokens or _BLOCK_TOKENS,
            "first_prompt_tokens": _quantiles(firsts),
            "turns": _quantiles(talk.turns, "turns"),
            "think_ms": _quantiles(talk.think_ms, "ms"),
        }
    return tomli_w.dumps({**about, **tables})


def _quantiles(values: Ints, unit: str = "tokens") -> dict[str, Any]:
    """As a table of a generator's file."""
    rounded = np.rint(np.quantile(values, PROBABILITIES)).astype(int).tolist()
    return {"distribution": "quantiles", "probabilities": list(PROBABILITIES), unit: rounded}


def _sample(trace: Trace) -> dict[str, Ints]:
    columns: dict[str, list[Ints]] = {name: [] for name in REQUIRED}
    for batch in trace.batches(columns=REQUIRED):
        for name in REQUIRED:
            columns[name].append(int64_values(batch.column(name)))
    arrival_ns, prompt, output = (np.concatenate(columns[name]) for name in REQUIRED)
    second = np.bincount(arrival_ns // 10**9) if arrival_ns[-1] // 10**9 <= 10**8 else np.empty(0, np.int64)
    found = {"gaps": np.diff(arrival_ns), "prompt_tokens": prompt, "output_tokens": output}
    return found | ({"arrivals_a_s": second} if second.size else {})


def _talk_sample(talk: Talk) -> dict[str, Ints]:
    return {"turns": talk.turns, "message_tokens": talk.messages, "think_ms": talk.think_ms}


def _distance(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> Distance:
    ours, theirs = np.sort(ours), np.sort(theirs)
    at = np.concatenate((ours, theirs))
    below = [np.searchsorted(values, at, side="right") / values.size for values in (ours, theirs)]
    chance = 1.36 * math.sqrt((ours.size + theirs.size) / (ours.size * theirs.size))
    return Distance(distance=float(np.abs(below[0] - below[1]).max()), chance=chance)


def _rank_correlation(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> float:
    """Spearman's, ties by their mean rank; 0 where one of them is constant."""
    ranks = []
    for values in (ours, theirs):
        _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[which])
    if any(rank.min() == rank.max() for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])

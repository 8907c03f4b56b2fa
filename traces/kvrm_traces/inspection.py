"""`trace inspect`: what a trace asks of a server, in the numbers by which traces are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from kvrm_traces.arrow import int64_values
from kvrm_traces.burstiness import FANO_WINDOWS_S, Gaps, RateProfile, WindowCounts
from kvrm_traces.consistency import HashChecker, HashConsistency
from kvrm_traces.duplicates import Duplicates
from kvrm_traces.errors import TraceError
from kvrm_traces.limits import LimitCounter, OverLimit
from kvrm_traces.reuse import MOST_TOUCHES, PrefixReuse, hashed_blocks, prefix_reuse
from kvrm_traces.schema import TraceInfo
from kvrm_traces.sessions import Sessions, SessionStats
from kvrm_traces.steady import Stretch, ramp_before, steady_stretch
from kvrm_traces.tokens import Histogram, TokenCounter, TokenStats
from kvrm_traces.trace import Trace

#: Rows read at once: large enough that a batch costs little more than its rows.
_BATCH_ROWS = 1 << 17


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongestGap:
    """The longest time without an arrival, and when it began."""

    gap_s: float
    from_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceReport:
    """Statistics of one trace. ``fano`` by window in seconds; what the trace is too short to tell, or has no column
    for, is None.

    ``zero_rows``: rows of the source that were rejected for a count below 1, by column. ``duplicates``: rows that
    repeat an earlier one in every column. ``over_limit``: against the context limit that was given. ``rates_per_s``: in
    24 equal parts of the span. ``steady``, ``ramp``: windows proposed (:mod:`kvrm_traces.steady`). ``histograms``: of
    gaps in seconds (``gap_s``), ``prompt_tokens``, ``output_tokens``, and ``turns`` where there are sessions.
    """

    info: TraceInfo
    rate_per_s: float | None
    gap_cv: float | None
    longest_gap: LongestGap | None
    fano: dict[int, float | None]
    prompt_tokens: TokenStats
    output_tokens: TokenStats
    zero_rows: dict[str, int]
    duplicates: int
    over_limit: OverLimit | None
    rates_per_s: tuple[float, ...]
    steady: Stretch | None
    ramp: Stretch | None
    hash_consistency: HashConsistency | None
    prefix_reuse: PrefixReuse | None
    sessions: SessionStats | None
    histograms: dict[str, Histogram]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON values; absent is None."""
        fields = dataclasses.asdict(self)
        fields["fano"] = {f"{window_s}s": value for window_s, value in self.fano.items()}
        reuse = fields["prefix_reuse"]
        if reuse is not None:
            for curve in ("lru_blocks", "belady_blocks"):
                reuse[curve] = {f"{percent}%": rate for percent, rate in reuse[curve].items()}
        return fields | {"span_s": self.info.span_s}

    def to_text(self) -> str:
        """A table for a terminal, no wider than 100 columns of numbers."""
        from kvrm_traces.inspection_text import report_text

        return report_text(self)


class _Pass:
    """Everything that one pass over the rows tells."""

    def __init__(self, info: TraceInfo, limit_tokens: int | None) -> None:
        self._info = info
        self.gaps, self.profile = Gaps(), RateProfile(info.span_ns)
        self.windows = {window_s: WindowCounts(window_s * 10**9, info.span_ns) for window_s in FANO_WINDOWS_S}
        self.prompt, self.output = TokenCounter(), TokenCounter()
        self.duplicates = Duplicates()
        self.over_limit = None if limit_tokens is None else LimitCounter(limit_tokens)
        self.hashes = None if info.hash_block_tokens is None else HashChecker()
        self.sessions = Sessions() if "session_id" in info.columns else None

    def see(self, batch: pa.RecordBatch) -> None:
        arrival_ns, prompt, output = (
            int64_values(batch.column(name)) for name in ("arrival_ns", "prompt_tokens", "output_tokens")
        )
        on_arrivals: list[Callable[[npt.NDArray[Any]], None]] = [self.gaps.see, self.profile.see]
        for see in (*on_arrivals, *(counts.see for counts in self.windows.values())):
            see(arrival_ns)
        self.prompt.see(prompt)
        self.output.see(output)
        self.duplicates.see(batch)
        if self.over_limit is not None:
            self.over_limit.see(prompt, output)
        if self.hashes is not None and self._info.hash_block_tokens is not None:
            self.hashes.see(*hashed_blocks(batch, self._info.hash_block_tokens))
        if self.sessions is not None:
            self.sessions.see(batch)

    def histograms(self) -> dict[str, Histogram]:
        """By column."""
        found = {"gap_s": self.gaps.histogram_s()}
        found |= {"prompt_tokens": self.prompt.histogram(), "output_tokens": self.output.histogram()}
        if self.sessions is not None and self.sessions.stats() is not None:
            found["turns"] = self.sessions.turns()
        return found


def inspect_trace(trace: Trace, *, limit_tokens: int | None = None, most_touches: int = MOST_TOUCHES) -> TraceReport:
    """Read the whole trace, in flat memory, and measure it. ``limit_tokens``: a model's context, prompt and output.
    ``most_touches``: of prefix blocks, that the curves of reuse are drawn from: they take longest by far.

    Memory grows with what only a whole trace tells: different prefix hashes, and conversations. Raises TraceError for a
    limit below 1, or a row that turns out to be no request.
    """
    if limit_tokens is not None and limit_tokens < 1:
        raise TraceError(f"limit_tokens {limit_tokens}: must be a context of 1 token or more")
    info = trace.info
    seen = _Pass(info, limit_tokens)
    for batch in trace.batches(_BATCH_ROWS):
        seen.see(batch)
    profile = seen.profile
    steady = steady_stretch(profile.counts, profile.part_s) if info.span_ns else None
    return TraceReport(
        info=info,
        rate_per_s=info.rate_per_s,
        gap_cv=seen.gaps.cv(),
        longest_gap=_longest(seen.gaps),
        fano={window_s: counts.fano() for window_s, counts in seen.windows.items()},
        prompt_tokens=seen.prompt.stats(),
        output_tokens=seen.output.stats(),
        zero_rows=_zero_rows(info),
        duplicates=seen.duplicates.count(),
        over_limit=None if seen.over_limit is None else seen.over_limit.found(),
        rates_per_s=profile.rates_per_s(),
        steady=steady,
        ramp=ramp_before(steady, profile.counts, profile.part_s),
        hash_consistency=None if seen.hashes is None else seen.hashes.found(),
        prefix_reuse=prefix_reuse(trace, most_touches),
        sessions=None if seen.sessions is None else seen.sessions.stats(),
        histograms=seen.histograms(),
    )


def _longest(gaps: Gaps) -> LongestGap | None:
    if gaps.longest_ns == 0:
        return None
    return LongestGap(gap_s=gaps.longest_ns / 1e9, from_s=gaps.longest_from_ns / 1e9)


def _zero_rows(info: TraceInfo) -> dict[str, int]:
    """A count below 1 is the reason of its own column (cleaning.py)."""
    return {
        name: info.rejected[f"{name} below 1"]
        for name in ("prompt_tokens", "output_tokens")
        if f"{name} below 1" in info.rejected
    }

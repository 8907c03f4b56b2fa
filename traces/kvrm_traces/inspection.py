"""`trace inspect`: what a trace asks of a server, in the numbers by which traces are compared."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvrm_traces.arrow import int64_values
from kvrm_traces.burstiness import FANO_WINDOWS_S, Gaps, RateProfile, WindowCounts
from kvrm_traces.reuse import PrefixReuse, prefix_reuse
from kvrm_traces.schema import TraceInfo
from kvrm_traces.tokens import TokenCounter, TokenStats
from kvrm_traces.trace import Trace

_BARS = "▁▂▃▄▅▆▇█"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceReport:
    """Statistics of one trace. ``fano`` by window in seconds; what the trace is too short to tell is None."""

    info: TraceInfo
    rate_per_s: float | None
    gap_cv: float | None
    fano: dict[int, float | None]
    prompt_tokens: TokenStats
    output_tokens: TokenStats
    rates_per_s: tuple[float, ...]
    prefix_reuse: PrefixReuse | None

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
        rejected = ", ".join(f"{count} {reason}" for reason, count in self.info.rejected.items()) or "none"
        fano = " / ".join(_number(value, 3) for value in self.fano.values())
        windows = " / ".join(str(window_s) for window_s in self.fano)
        lines = [
            f"trace           {self.info.name} ({self.info.format}, arrivals in {self.info.unit})",
            f"sha256          {self.info.sha256}",
            f"requests        {self.info.rows}",
            f"rejected rows   {rejected}",
            f"ties            {self.info.ties}",
            f"span            {self.info.span_s:.1f} s",
            f"rate            {_number(self.rate_per_s, 3)} requests/s",
            f"CV of gaps      {_number(self.gap_cv)}",
            f"Fano            {fano}  (windows of {windows} s)",
            f"rate over time  {_bars(self.rates_per_s)}  (peak {max(self.rates_per_s):.3g} requests/s)",
            "",
            f"{'tokens':14}" + "".join(f"{title:>11}" for title in ("mean", "p50", "p90", "p99", "max")),
            _row("prompt", self.prompt_tokens),
            _row("output", self.output_tokens),
        ]
        return "\n".join(lines + ([] if self.prefix_reuse is None else ["", *_reuse_lines(self.prefix_reuse)]))


def inspect_trace(trace: Trace) -> TraceReport:
    """Read the whole trace, in flat memory, and measure it."""
    info = trace.info
    gaps, profile = Gaps(), RateProfile(info.span_ns)
    windows = {window_s: WindowCounts(window_s * 10**9, info.span_ns) for window_s in FANO_WINDOWS_S}
    prompt, output = TokenCounter(), TokenCounter()
    for batch in trace.batches(columns=("arrival_ns", "prompt_tokens", "output_tokens")):
        arrival_ns = int64_values(batch.column(0))
        gaps.see(arrival_ns)
        profile.see(arrival_ns)
        for counts in windows.values():
            counts.see(arrival_ns)
        prompt.see(int64_values(batch.column(1)))
        output.see(int64_values(batch.column(2)))
    return TraceReport(
        info=info,
        rate_per_s=info.rate_per_s,
        gap_cv=gaps.cv(),
        fano={window_s: counts.fano() for window_s, counts in windows.items()},
        prompt_tokens=prompt.stats(),
        output_tokens=output.stats(),
        rates_per_s=profile.rates_per_s(),
        prefix_reuse=prefix_reuse(trace),
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _row(title: str, stats: TokenStats) -> str:
    return f"{title:14}{stats.mean:11.1f}{stats.p50:11.1f}{stats.p90:11.1f}{stats.p99:11.1f}{stats.max:11d}"


def _bars(values: tuple[float, ...]) -> str:
    peak = max(values) or 1.0
    return "".join(_BARS[min(int(value / peak * len(_BARS)), len(_BARS) - 1)] for value in values)


def _reuse_lines(reuse: PrefixReuse) -> list[str]:
    lru, best = (
        ", ".join(f"{percent}% {rate:.4f}" for percent, rate in rates.items())
        for rates in (reuse.lru_blocks, reuse.belady_blocks)
    )
    return [
        f"prefix reuse    {reuse.infinite_blocks:.4f} of blocks, {reuse.infinite_tokens:.4f} of tokens "
        f"(cache without end; {reuse.unique_blocks} different blocks of {reuse.block_tokens} tokens)",
        f"  LRU cache     {lru} of blocks (capacity in % of the different blocks)",
        f"  at best       {best} (Belady: the future is known)",
    ]

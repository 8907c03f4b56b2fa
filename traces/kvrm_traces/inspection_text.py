"""The report of an inspection in words: a table for a terminal, and names with texts for a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from kvrm_traces.consistency import HashConsistency
from kvrm_traces.limits import OverLimit
from kvrm_traces.reuse import PrefixReuse
from kvrm_traces.schema import TraceInfo
from kvrm_traces.sessions import SessionStats
from kvrm_traces.steady import Stretch
from kvrm_traces.tokens import TokenStats
from kvrm_traces.turns import CUMULATIVE_SHARE, may_be_deltas

if TYPE_CHECKING:
    from kvrm_traces.inspection import TraceReport

_BARS = "▁▂▃▄▅▆▇█"


#: A name and what is known under it.
Fact: TypeAlias = tuple[str, str]


def report_text(report: TraceReport) -> str:
    """Lines of a word and what is known; what was not asked for, or has no column, has none."""
    lines = [
        *_lines(_of_rows(report)),
        "",
        f"{'tokens':14}" + "".join(f"{title:>11}" for title in ("mean", "p50", "p90", "p99", "max")),
        _row("prompt", report.prompt_tokens),
        _row("output", report.output_tokens),
    ]
    if report.sessions is not None:
        (first, *others) = _lines(_of_sessions(report.sessions, report.info))
        lines += ["", first, _row("turns", report.sessions.turns), *others]
    if report.hash_consistency is not None:
        lines += ["", *_lines(_of_hashes(report.hash_consistency))]
    if report.prefix_reuse is not None:
        lines += _lines(_of_reuse(report.prefix_reuse))
    return "\n".join(lines)


def report_facts(report: TraceReport) -> list[Fact]:
    """The same as names and texts, for a page: tokens and turns in words where the text has a table."""
    found = list(_of_rows(report))
    found += [("prompt tokens", _words(report.prompt_tokens)), ("output tokens", _words(report.output_tokens))]
    if report.sessions is not None:
        (first, *others) = _of_sessions(report.sessions, report.info)
        found += [first, ("turns", _words(report.sessions.turns)), *others]
    if report.hash_consistency is not None:
        found += _of_hashes(report.hash_consistency)
    if report.prefix_reuse is not None:
        found += _of_reuse(report.prefix_reuse)
    return [(name.strip(), text) for name, text in found]


def _lines(facts: Iterable[Fact]) -> list[str]:
    return [f"{name:16}{text}" for name, text in facts]


def _of_rows(report: TraceReport) -> Iterator[Fact]:
    info = report.info
    fano = " / ".join(_number(value, 3) for value in report.fano.values())
    windows = " / ".join(str(window_s) for window_s in report.fano)
    yield "trace", f"{info.name} ({info.format}, arrivals in {info.unit})"
    yield "sha256", info.sha256
    yield "requests", str(info.rows)
    yield "rejected rows", ", ".join(f"{count} {reason}" for reason, count in info.rejected.items()) or "none"
    yield "duplicate rows", str(report.duplicates or "none")
    yield from _of_limit(report.over_limit)
    yield "order", order_words(info)
    yield "ties", f"{info.ties}{_tick(info)}"
    yield "span", f"{info.span_s:.1f} s"
    yield "rate", f"{_number(report.rate_per_s, 3)} requests/s"
    yield "CV of gaps", _number(report.gap_cv)
    yield "Fano", f"{fano}  (windows of {windows} s)"
    yield from _of_gap(report)
    yield "rate over time", f"{_bars(report.rates_per_s)}  (peak {max(report.rates_per_s):.3g} requests/s)"
    if report.ramp is not None:
        yield "ramp", ramp_words(report.ramp)
    yield "steady window", steady_words(report)


def order_words(info: TraceInfo) -> str:
    """Whether the source was in order, and what it is when it was not."""
    if info.descents == 0:
        return "by arrival"
    if info.streams > 1:
        return (
            f"{info.streams} streams, one after another; sorted ({info.descents} requests earlier than the one before)"
        )
    return (
        f"out of order: {info.descents} requests earlier than the one before, by up to "
        f"{info.most_back_ns / 1e9:.6g} s; sorted"
    )


def _tick(info: TraceInfo) -> str:
    return "" if info.resolution_ns is None else f"  (the clock ticks in {info.resolution_ns / 1e9:g} s)"


def _of_limit(over: OverLimit | None) -> Iterator[Fact]:
    if over is not None:
        yield (
            "over the limit",
            f"{over.rows} requests have more than {over.limit_tokens} tokens, {over.prompt_rows} of "
            f"them in the prompt alone ({over.output_tokens_beyond} output tokens beyond it in the others)",
        )


def _of_gap(report: TraceReport) -> Iterator[Fact]:
    if report.longest_gap is not None:
        share = report.longest_gap.gap_s / report.info.span_s
        yield (
            "longest gap",
            f"{report.longest_gap.gap_s:.6g} s from {report.longest_gap.from_s:.6g} s on "
            f"({100 * share:.1f}% of the span)",
        )


def ramp_words(ramp: Stretch) -> str:
    """The quiet head of a trace."""
    return f"{ramp.rate_per_s:.4g} requests/s in {ramp.option} s"


def steady_words(report: TraceReport) -> str:
    """What to replay for a steady load."""
    if report.steady is None:
        return "none: no stretch keeps its rate"
    if report.steady.option == "0:":
        return "the whole trace keeps its rate"
    return f"--window {report.steady.option} ({report.steady.rate_per_s:.4g} requests/s)"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _row(title: str, stats: TokenStats) -> str:
    # A space stays between values that are wider than their column.
    return f"{title:14} {stats.mean:10.1f} {stats.p50:10.1f} {stats.p90:10.1f} {stats.p99:10.1f} {stats.max:10d}"


def _words(stats: TokenStats) -> str:
    p50, p90, p99 = (f"{value:,.1f}".removesuffix(".0") for value in (stats.p50, stats.p90, stats.p99))
    return f"mean {stats.mean:,.1f}, p50 {p50}, p90 {p90}, p99 {p99}, max {stats.max:,}; {stats.total:,} in all"


def _bars(values: tuple[float, ...]) -> str:
    peak = max(values) or 1.0
    return "".join(_BARS[min(int(value / peak * len(_BARS)), len(_BARS) - 1)] for value in values)


def _of_sessions(sessions: SessionStats, info: TraceInfo) -> Iterator[Fact]:
    unknown = f", {sessions.unknown_parents} continue one that is not here" if sessions.unknown_parents else ""
    yield (
        "sessions",
        f"{sessions.sessions} with {sessions.requests} requests, {sessions.follow_ups} of them follow-ups{unknown}",
    )
    gap = sessions.turn_gap_ms
    if gap is not None:
        yield (
            "turn to turn",
            f"{gap.mean / 1e3:.1f} s on average, p50 {gap.p50 / 1e3:.1f} s, p90 {gap.p90 / 1e3:.1f} s "
            "(arrival to arrival)",
        )
    if sessions.cumulative_share is not None:
        yield "cumulative", f"{100 * sessions.cumulative_share:.1f}% of follow-ups repeat the whole conversation"
        if sessions.cumulative_share < CUMULATIVE_SHARE and may_be_deltas(info):
            yield "deltas", "its turns look like what each adds: --turns delta puts prompts together"


def _of_hashes(hashes: HashConsistency) -> Iterator[Fact]:
    wrong = []
    if hashes.other_prefix:
        wrong.append(f"{hashes.other_prefix} behind another prefix than the first time")
    if hashes.other_fill:
        wrong.append(f"{hashes.other_fill} with another number of tokens in the block")
    without = f", {hashes.rows_without} requests without" if hashes.rows_without else ""
    found = ", ".join(wrong) or "one id, one prefix, throughout"
    yield "prefix hashes", f"{hashes.touched_blocks} ids{without}; {found}"


def _of_reuse(reuse: PrefixReuse) -> Iterator[Fact]:
    lru, best = (
        ", ".join(f"{percent}% {rate:.4f}" for percent, rate in rates.items())
        for rates in (reuse.lru_blocks, reuse.belady_blocks)
    )
    yield (
        "prefix reuse",
        f"{reuse.infinite_blocks:.4f} of blocks, {reuse.infinite_tokens:.4f} of tokens "
        f"(cache without end; {reuse.unique_blocks} different blocks of {reuse.block_tokens} tokens)",
    )
    sample = "" if reuse.curve_share == 1 else f", from a sample of {100 * reuse.curve_share:.3g}% of them"
    yield "  LRU cache", f"{lru} of blocks (capacity in % of the different blocks{sample})"
    yield "  at best", f"{best} (Belady: the future is known)"

"""A request's life for a terminal, and as JSON."""

from __future__ import annotations

from typing import Any

from kvrm_analysis.lives import DECODE, PREFILL, Life, Other, Phase, Wait, shares

#: Phases that are printed one by one; in between the shortest ones are put together.
MOST_PHASES = 24


def render(life: Life) -> str:
    """What happened, how long, part by part, and because of whom."""
    r = life.request
    total = int(r["finish_ns"] or 0) - int(r["arrival_ns"] or 0)
    sizes = f"{r['prompt_tokens']} prompt tokens, {r['delivered_tokens']} tokens delivered"
    lines = [
        f"request {r['row']} of {life.run}: {sizes} ({r['outcome']}, {r['reason']}), {r['preemptions']} preemptions",
        f"arrived at {_clock(int(r['arrival_ns'] or 0))}, {_time(total)} to its last token; {_ranks(life)}",
        "",
        "its time",
    ]
    lines += [f"  {kind:8}  {_time(took):>11}  {_percent(took, total)}" for kind, took in shares(life.phases).items()]
    lines += ["", "its life", *_phases(life), "", *_parts(life, total)]
    for wait in life.waits:
        lines += ["", *_wait(wait, life)]
    return "\n".join([*lines, *_decode(life)])


def _ranks(life: Life) -> str:
    names = {"e2e": "E2E", "ttft": "TTFT", "queue": "queue time", "tpot": "TPOT"}
    known = [(names[word], rank) for word, rank in life.ranks.items() if rank is not None]
    return "slower than " + ", ".join(f"{100 * rank:.4g}% in {name}" for name, rank in known)


def _phases(life: Life) -> list[str]:
    shown = life.phases
    lines = []
    if len(shown) > MOST_PHASES:
        long = sorted(sorted(range(len(shown)), key=lambda at: -shown[at].duration_ns)[:MOST_PHASES])
        rest = sum(phase.duration_ns for at, phase in enumerate(shown) if at not in long)
        lines.append(f"  (the longest {MOST_PHASES} of {len(shown)} phases; the others take {_time(rest)} together)")
        shown = tuple(shown[at] for at in long)
    return [f"  {_clock(phase.start_ns):>12}  {phase.kind:8}  {_time(phase.duration_ns):>11}{_what(phase)}"
            for phase in shown] + lines  # fmt: skip


def _what(phase: Phase) -> str:
    steps = f"  {phase.steps:,} step{'s' if phase.steps != 1 else ''}"
    if phase.kind == PREFILL:
        return f"{steps}, {phase.tokens:,} tokens computed"
    if phase.kind == DECODE:
        return f"{steps}, {phase.tokens:,} token{'s' if phase.tokens != 1 else ''}"
    return f"{steps} of others" if phase.steps else ""


def _parts(life: Life, total: int) -> list[str]:
    """Where the time of its steps went."""
    served = [phase for phase in life.phases if phase.kind in (PREFILL, DECODE)]
    names = list(dict.fromkeys(name for phase in served for name in phase.parts_ns))
    sums = {
        name: [sum(p.parts_ns.get(name, 0) for p in served if p.kind == kind) for kind in (PREFILL, DECODE)]
        for name in names
    }
    lines = [f"its steps, by what each part adds   {PREFILL:>11}  {DECODE:>11}"]
    lines += [
        f"  {name:34}{_time(of_prefill):>11}  {_time(of_decode):>11}  {_percent(of_prefill + of_decode, total)}"
        for name, (of_prefill, of_decode) in sums.items()
        if of_prefill + of_decode
    ]
    between = sum(phase.duration_ns - sum(phase.parts_ns.values()) for phase in served)
    if between:
        lines.append(f"  {'between steps':34}{'':11}  {_time(between):>11}  {_percent(between, total)}")
    return lines


def _wait(wait: Wait, life: Life) -> list[str]:
    why = "after it was preempted" if wait.after_preemption else "for admission"
    lines = [f"it waited {_time(wait.phase.duration_ns)} {why}"]
    if wait.held_share is not None and wait.running is not None:
        lines.append(
            f"  meanwhile {wait.running:.1f} requests in a step and {wait.held_share:.1%} of the pool's "
            f"{life.pool_blocks:,} blocks held, on average"
        )
    if wait.ahead:
        lines.append(
            f"  let in before it: {len(wait.ahead)} request{'s' if len(wait.ahead) != 1 else ''}{_some(wait.ahead)}"
        )
    if wait.holders:
        held = ", ".join(f"request {other.row} ({other.blocks:,.0f} blocks)" for other in wait.holders)
        lines.append(f"  who held most, of {wait.num_holders}: {held}")
    return lines


def _some(rows: tuple[int, ...]) -> str:
    shown = ", ".join(str(row) for row in rows[:8])
    return f" ({shown}{', …' if len(rows) > 8 else ''})"


def _decode(life: Life) -> list[str]:
    lines = []
    if life.disturbed_steps:
        of = ", ".join(f"request {other.row} ({other.tokens:,} tokens)" for other in life.disturbers)
        lines += [
            "",
            f"its tokens waited for prompts of others in {life.disturbed_steps:,} steps, {_time(life.disturbed_ns)}",
            f"  whose most, of {life.num_disturbers}: {of}",
        ]
    if life.longest_gap_ns is not None and life.longest_gap_at_ns is not None:
        lines += [
            "",
            f"longest gap between its tokens: {_time(life.longest_gap_ns)}, from {_clock(life.longest_gap_at_ns)} on",
        ]
    return lines


def to_dict(life: Life) -> dict[str, Any]:
    """As ``--json`` prints it: times in ns, requests by their row in the trace as replayed."""

    def other(one: Other) -> dict[str, Any]:
        return {"row": one.row, "blocks": one.blocks, "tokens": one.tokens}

    return {
        "schema": 1,
        "run": life.run,
        "request": life.request,
        "slower_than_share": life.ranks,
        "time_ns": shares(life.phases),
        "phases": [
            {"kind": p.kind, "start_ns": p.start_ns, "end_ns": p.end_ns, "steps": p.steps, "tokens": p.tokens,
             "parts_ns": p.parts_ns}
            for p in life.phases
        ],
        "waits": [
            {"start_ns": w.phase.start_ns, "end_ns": w.phase.end_ns, "after_preemption": w.after_preemption,
             "let_in_before": list(w.ahead), "holders": [other(one) for one in w.holders], "num_holders": w.num_holders,
             "held_share": w.held_share, "running": w.running}
            for w in life.waits
        ],
        "disturbed": {"steps": life.disturbed_steps, "time_ns": life.disturbed_ns, "num_others": life.num_disturbers,
                      "others": [other(one) for one in life.disturbers]},
        "longest_gap_ns": life.longest_gap_ns,
        "longest_gap_at_ns": life.longest_gap_at_ns,
    }  # fmt: skip


def _time(time_ns: int) -> str:
    if time_ns >= 1e9:
        return f"{time_ns / 1e9:,.3f} s"
    return f"{time_ns / 1e6:,.3f} ms"


def _clock(time_ns: int) -> str:
    return f"{time_ns / 1e9:,.3f} s"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:5.1f}%" if whole else ""

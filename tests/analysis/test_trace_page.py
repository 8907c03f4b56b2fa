"""The page of a trace: its panels follow what the trace has, and the same report gives the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

from kvrm_analysis.drawing.trace_page import caption, draw_trace, trace_page
from kvrm_traces import TraceReport, inspect_trace, open_trace


def titles(report: TraceReport) -> list[str]:
    return [axes.get_title(loc="left") for axes in draw_trace(report).axes]


def test_the_page_is_reproducible(tmp_path: Path) -> None:
    report = inspect_trace(open_trace("chat-burst", rows=400), limit_tokens=2048)
    pages = [trace_page(report, tmp_path / name) for name in ("a.png", "b.svg")]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert titles(report) == ["Rate of arrivals", "Gaps between arrivals", "Lengths"]
    assert "requests beyond 2,048 tokens of context" in caption(report)


def test_reuse_and_turns_are_drawn_where_the_trace_has_them(tmp_path: Path) -> None:
    fields = {"output_length": 3, "type": "text", "turn": 1, "input_length": 32}
    lines = [
        json.dumps({"chat_id": at, "parent_chat_id": at - 1 if at % 3 else -1, "timestamp": at * 0.5, **fields}
                   | {"hash_ids": [at // 3, 7]})
        for at in range(1, 30)
    ]  # fmt: skip
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    report = inspect_trace(open_trace(tmp_path / "b.jsonl"))
    assert titles(report)[3:] == ["Prefixes found again", "Turns a session"]


def test_one_request_and_requests_of_one_instant_can_be_drawn(tmp_path: Path) -> None:
    for rows in ("0,10,20\n", "0,10,20\n" * 3):
        (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
        report = inspect_trace(open_trace(tmp_path / "t.csv"))
        assert trace_page(report, tmp_path / "p.png").stat().st_size > 10_000
        assert "none: no stretch keeps its rate" in caption(report)

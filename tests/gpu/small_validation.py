"""The loop of a validation on a small replica, and a trace whose prompts have something in common."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from kvrm_gpu.validate import validate
from kvrm_traces import Trace, open_trace
from tests.gpu.small_scale import FITTED, MODEL, SMALL, calibration

ROWS = 16


def small_loop(**changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "trace": "azure-conv-like",
        "policies": ("dynamic", "kv-rm"),
        "loads": (0.5,),
        "rows": ROWS,
        "repeats": 2,
        "fitted": FITTED,
    }
    settings |= {"hardware": calibration().profile, "scale": SMALL} | changes
    return validate(model=MODEL, device="cpu", **settings)


@cache
def small_report() -> dict[str, Any]:
    return small_loop()


def hashed_trace(folder: Path, block_tokens: int = 512, output_tokens: int = 90) -> Trace:
    """Conversations that take turns: each prompt is the last one of its conversation and some more."""
    lines, ids = [], iter(range(10_000))
    known: list[list[int]] = [[], [], []]
    for at in range(18):
        own = known[at % len(known)]
        own += [next(ids) for _ in range(1 + at % 2)]
        prompt = block_tokens * len(own) - (0 if at % 3 else 100)
        line = {"timestamp": 1000 * at, "input_length": prompt, "output_length": output_tokens, "hash_ids": list(own)}
        lines.append(json.dumps(line))
        if len(own) * block_tokens > 2000:
            own.clear()
    path = folder / "turns.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return open_trace(path, hash_block_tokens=block_tokens)

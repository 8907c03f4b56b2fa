"""Small files in the form of public traces, made up."""

from __future__ import annotations

import json
from pathlib import Path

#: Of :func:`conversations`, without the rows that are rejected.
REQUESTS = 240
BLOCK_TOKENS = 16


def conversations(path: Path) -> Path:
    """Eighty conversations of three turns in the form of Bailian's: a common head, prompts that repeat what was said.

    The first fifty requests come at a tenth of the others' rate. Two rows have no output, and one is there twice.
    """
    lines = []
    for at in range(REQUESTS - 1):
        chat, turn = divmod(at, 3)
        ids = [0, 1, *range(1000 * chat + 2, 1000 * chat + 2 + 4 * (turn + 1))]
        arrival_s = 10.0 * at if at < 50 else 500.0 + (at - 50)
        lines.append(
            {"chat_id": at + 1, "parent_chat_id": at if turn else -1, "timestamp": arrival_s, "turn": turn + 1}
            | {"type": "text", "input_length": BLOCK_TOKENS * len(ids), "output_length": 20 + at, "hash_ids": ids}
        )
    lines.insert(101, lines[100])
    lines.insert(20, lines[20] | {"output_length": 0})
    lines.insert(30, lines[30] | {"output_length": 0})
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path

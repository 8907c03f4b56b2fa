"""Conversations in a file, and who continues whom, in plain Python: the oracle of what is made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as some

#: arrival (us), prompt, output, session, parent
Turn = tuple[int, int, int, str | None, str | None]

_SESSIONS = some.sampled_from(["a", "b", "c", None])
_PARENTS = some.sampled_from([None, None, "a", "b", "-1", "nobody"])

#: Of few names and times, so that conversations are long, branch, and tie.
TURNS: some.SearchStrategy[list[Turn]] = some.lists(
    some.tuples(some.integers(0, 400_000), some.integers(1, 50), some.integers(1, 50), _SESSIONS, _PARENTS),
    min_size=1,
    max_size=25,
)


def written_turns(folder: Path, turns: Sequence[Turn], name: str = "turns.jsonl", **more: Any) -> Path:
    """JSONL with our names; ``more``: columns of one value."""
    names = ("arrival_us", "prompt_tokens", "output_tokens", "session_id", "parent")
    path = folder / name
    lines = [json.dumps({**dict(zip(names, turn, strict=True)), **more}) for turn in turns]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def by_arrival(turns: Sequence[Turn]) -> list[Turn]:
    """As a trace has them: the first at 0, ties in the order of the file."""
    ordered = sorted(turns, key=lambda turn: turn[0])
    return [(turn[0] - ordered[0][0], *turn[1:]) for turn in ordered]


def continued(turns: Sequence[Turn]) -> list[int | None]:
    """Of each turn, in order of arrival: the place of the one that it continues."""
    seen: dict[str, int] = {}
    found: list[int | None] = []
    for place, (_, _, _, session, parent) in enumerate(turns):
        names_another = parent is not None and parent != "-1" and parent != session
        wanted = parent if names_another else session
        found.append(seen.get(wanted) if session is not None and wanted is not None else None)
        if session is not None:
            seen[session] = place
    return found

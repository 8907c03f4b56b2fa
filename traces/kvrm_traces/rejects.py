"""Rows that are left out: counted by reason, the first of them quoted; under `strict` the first ends the reading."""

from __future__ import annotations

from pathlib import Path

from kvrm_traces.errors import TraceError

_EXAMPLES = 10


class Rejects:
    """What was left out of one file so far."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self._path = path
        self._strict = strict
        self.counts: dict[str, int] = {}
        self.examples: list[str] = []

    def add(self, reason: str, number: int, value: str, right: str, count: int = 1) -> None:
        """`count` rows for one reason, the first of them row `number` with this value; `right` says what would be."""
        example = f"row {number}: {reason}: {value!r}; expected {right}"
        if self._strict:
            raise TraceError(f"{self._path}: {example} (strict: no row may be rejected)")
        self.counts[reason] = self.counts.get(reason, 0) + count
        if len(self.examples) < _EXAMPLES:
            self.examples.append(example)

    @property
    def total(self) -> int:
        """How many rows were left out."""
        return sum(self.counts.values())

    def words(self) -> str:
        """'41 rows rejected: 40 output_tokens below 1, 1 prompt_tokens missing'."""
        parts = ", ".join(f"{count} {reason}" for reason, count in sorted(self.counts.items()))
        return f"{self.total} row{'' if self.total == 1 else 's'} rejected: {parts}"

"""What each number of a run means: read from definitions.toml, shown by reports and in docs/metrics.md."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: The section whose fields are statistics, which follow a metric's name, and no metrics.
STATISTICS = "statistics"


@dataclass(frozen=True, slots=True)
class Definition:
    """``means`` in Markdown's inline code and emphasis; ``weight``: what a value counts for, where that is defined."""

    means: str
    weight: str | None = None

    @property
    def plain(self) -> str:
        """The text without marks, weight included."""
        text = self.means.replace("`", "").replace("*", "")
        return text if self.weight is None else f"{text} (weight: {self.weight})"


@cache
def definitions() -> dict[str, dict[str, Definition]]:
    """Every definition by section and field, in the order of the page's tables."""
    text = files("kvrm_analysis").joinpath("definitions.toml").read_text(encoding="utf-8")
    return {
        section: {field: Definition(**entry) for field, entry in entries.items()}
        for section, entries in tomllib.loads(text).items()
    }


def field_of(path: tuple[str, ...]) -> str:
    """The defined field that a path into a summary is or belongs to. Raises KeyError for one that nobody defined."""
    known = {field for section, entries in definitions().items() if section != STATISTICS for field in entries}
    for length in range(len(path), 0, -1):
        name = ".".join(path[:length])
        if name in known:
            return name
    raise KeyError(".".join(path))


def definition(field: str) -> Definition:
    """The definition of a field of a summary."""
    for section, entries in definitions().items():
        if section != STATISTICS and field in entries:
            return entries[field]
    raise KeyError(field)


def statistic(name: str) -> Definition | None:
    """What a statistic is, where the name is one."""
    return definitions()[STATISTICS].get(name)


def markdown(section: str) -> str:
    """A section as the table that docs/metrics.md shows."""
    entries = definitions()[section]
    weighted = any(entry.weight for entry in entries.values())
    lines = ["| field | from, to | weight |", "|---|---|---|"] if weighted else ["| field | meaning |", "|---|---|"]
    for field, entry in entries.items():
        lines.append(f"| `{field}` | {entry.means} |" + (f" {entry.weight} |" if weighted else ""))
    return "\n".join(lines)

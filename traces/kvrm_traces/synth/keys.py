"""Values of a generator's TOML table, each checked and named by its key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvrm_traces.errors import TraceError

#: Characters of a value in an error.
_SHOWN = 60


class Keys:
    """A table of a file; what is read of it is checked, and what nobody read is refused by :meth:`finish`."""

    def __init__(self, where: str, table: object, section: str = "") -> None:
        if not isinstance(table, Mapping):
            raise TraceError(f"{where}: {section or 'the file'}: must be a table")
        self._where = where
        self._table: Mapping[str, Any] = table
        self._section = section
        self._read: set[str] = set()

    def wrong(self, key: str, why: str) -> TraceError:
        """The error of one key."""
        name = f"{self._section}.{key}" if self._section else key
        return TraceError(f"{self._where}: {name}{self._quoted(key)}: {why}")

    def _quoted(self, key: str) -> str:
        """' = value'; nothing where there is none, or tables, of which no beginning says what is wrong."""
        value = self._table.get(key)
        if value is None or isinstance(value, Mapping) or (isinstance(value, list) and value and _tables(value)):
            return ""
        text = repr(value)
        return f" = {text}" if len(text) <= _SHOWN else f" = {text[: _SHOWN - 3]}..."

    def has(self, key: str) -> bool:
        """Whether it is there."""
        return key in self._table

    def get(self, key: str) -> Any:
        """A value that has to be there, of any type."""
        self._read.add(key)
        if key not in self._table:
            near = difflib.get_close_matches(key, [other for other in self._table if other not in self._read], 1, 0.5)
            raise self.wrong(key, f"is missing; there is a key {near[0]}" if near else "is missing")
        return self._table[key]

    def text(self, key: str) -> str:
        """A string."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "must be a text")
        return value

    def word(self, key: str, words: Sequence[str]) -> str:
        """One of some words."""
        value = self.text(key)
        if value not in words:
            near = difflib.get_close_matches(value, words, n=1)
            raise self.wrong(key, f"did you mean {near[0]!r}?" if near else f"must be {', '.join(words)}")
        return value

    def number(self, key: str, *, least: float = 0.0, above: bool = True, most: float | None = None) -> float:
        """A finite number above `least`, or from it on, and up to `most`."""
        value = self.get(key)
        beyond = most is not None and _number(value) and value > most
        if not _number(value) or value < least or (above and value == least) or beyond:
            upto = "" if most is None else f" {'and up ' if above else ''}to {most:g}"
            raise self.wrong(key, f"must be a finite number {'above' if above else 'from'} {least:g}{upto}")
        return float(value)

    def whole(self, key: str, *, least: int = 1) -> int:
        """A whole number from `least` on."""
        value = self.get(key)
        if type(value) is not int or not least <= value < 2**31:
            raise self.wrong(key, f"must be a whole number from {least} to {2**31 - 1}")
        return value

    def numbers(self, key: str, *, count: int | None = None, above: float = 0.0) -> tuple[float, ...]:
        """A list of numbers above a bound, not empty."""
        values = self.get(key)
        fits = isinstance(values, list) and values and all(_number(value) and value > above for value in values)
        if not fits or (count is not None and len(values) != count):
            how_many = "" if count is None else f"{count} "
            raise self.wrong(key, f"must be a list of {how_many}numbers above {above:g}")
        return tuple(float(value) for value in values)

    def table(self, key: str) -> Keys:
        """A table within."""
        return Keys(self._where, self.get(key), f"{self._section}.{key}" if self._section else key)

    def tables(self, key: str) -> list[Keys]:
        """A list of tables within, not empty."""
        values = self.get(key)
        if not isinstance(values, list) or not values:
            raise self.wrong(key, "must be a list of tables")
        name = f"{self._section}.{key}" if self._section else key
        return [Keys(self._where, value, f"{name}[{at}]") for at, value in enumerate(values)]

    def finish(self) -> None:
        """Refuse keys that nothing reads: a slip of the hand would change nothing, silently."""
        for key in self._table:
            if key not in self._read:
                near = difflib.get_close_matches(key, self._read, n=1)
                raise self.wrong(key, f"no such key; did you mean {near[0]}?" if near else "no such key")


def _tables(values: Sequence[object]) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def _number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]  # a number, as just said

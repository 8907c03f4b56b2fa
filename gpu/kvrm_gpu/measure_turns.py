"""Repeats that take turns: what each is called, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Iterator


def minutes(seconds: float) -> str:
    """A rough time in words."""
    return f"{max(1, round(seconds / 60))} min" if seconds >= 90 else f"{max(5, round(seconds / 5) * 5)} s"


class Turns:
    """Counts 0 (a warm-up) to ``repeats``, each with its name and how long the rest takes, as far as that is known.

    ``longer``: how many times longer a repeat takes than the warm-up.
    """

    def __init__(self, repeats: int, longer: float = 1.0) -> None:
        self._repeats = repeats
        self._longer = longer

    def __iter__(self) -> Iterator[tuple[int, str]]:
        begun = time.perf_counter()
        yield 0, "warming up"
        each = self._longer * (time.perf_counter() - begun)
        for repeat in range(1, self._repeats + 1):
            begun = time.perf_counter()
            left = minutes(each * (self._repeats - repeat + 1))
            yield repeat, f"repeat {repeat} of {self._repeats}, about {left} left"
            each = time.perf_counter() - begun

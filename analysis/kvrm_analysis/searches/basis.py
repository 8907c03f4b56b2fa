"""What the numbers of many cells stand on: whether their cost was measured, and how many requests each is of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Basis:
    """``calibrated``: every cell was. ``least`` and ``most``: requests of a cell."""

    calibrated: bool
    least: int
    most: int

    @classmethod
    def of(cls, cells: Iterable[tuple[bool | None, int | None]]) -> Basis | None:
        """From each cell's ``calibrated`` and ``injected_requests``; None where no cell has results."""
        found = [(measured, n) for measured, n in cells if measured is not None and n is not None]
        if not found:
            return None
        counts = [n for _, n in found]
        return cls(all(measured for measured, _ in found), min(counts), max(counts))

    def __str__(self) -> str:
        n = f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"
        status = "calibrated" if self.calibrated else "uncalibrated (times rank cells and predict no machine)"
        return f"{status}, n = {n} requests a cell"


def sentence(basis: Basis | None) -> str:
    """For a caption: with a capital letter and a full stop, and a space before; nothing without results."""
    text = "" if basis is None else str(basis)
    return f" {text[0].upper()}{text[1:]}." if text else ""

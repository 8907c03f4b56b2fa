"""Works for engines: what tests of any engine hand to its processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvrm_sim.errors import ConfigError


@dataclass(frozen=True)
class Squares:
    """Squares a number. Kills its process for the numbers in ``deadly``: the first ``deaths`` times that it is tried,
    which files in ``folder`` count.
    """

    folder: Path
    deadly: tuple[int, ...] = ()
    deaths: int = 1
    refused: int | None = None
    starts: bool = True

    def start(self) -> Callable[[int], int]:
        if not self.starts:
            raise ConfigError("no start", "seed", 1)

        def do(number: int) -> int:
            if number == self.refused:
                raise ConfigError("no such number", "seed", number)
            if number in self.deadly:
                tried = len(list(self.folder.glob(f"{number}-*")))
                (self.folder / f"{number}-{tried}").touch()
                if tried < self.deaths:
                    os.kill(os.getpid(), signal.SIGKILL)
            return number * number

        return do

    def portable(self) -> Squares:
        return self

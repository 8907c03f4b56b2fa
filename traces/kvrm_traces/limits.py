"""How many requests a model's context does not hold, before anything is run (cases A13, A15)."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverLimit:
    """Against a context of ``limit_tokens``, prompt and output together. ``rows``: requests that are longer.
    ``prompt_rows``: those among them whose prompt alone leaves no room for one output token: rejected whatever is done
    with the others. ``output_tokens_beyond``: output that ``--over-limit truncate`` would leave out, of the others.
    """

    limit_tokens: int
    rows: int
    prompt_rows: int
    output_tokens_beyond: int


class LimitCounter:
    """Fed prompt and output tokens (int64), piece by piece."""

    def __init__(self, limit_tokens: int) -> None:
        self._limit = limit_tokens
        self._rows = self._prompts = self._beyond = 0

    def see(self, prompt: npt.NDArray[np.int64], output: npt.NDArray[np.int64]) -> None:
        """Take the next piece into account."""
        beyond = prompt + output - self._limit
        over, hopeless = beyond > 0, prompt >= self._limit
        self._rows += int(np.count_nonzero(over))
        self._prompts += int(np.count_nonzero(hopeless))
        self._beyond += int(beyond[over & ~hopeless].sum())

    def found(self) -> OverLimit:
        """Of all that was seen."""
        return OverLimit(
            limit_tokens=self._limit,
            rows=self._rows,
            prompt_rows=self._prompts,
            output_tokens_beyond=self._beyond,
        )

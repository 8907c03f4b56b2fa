"""Turns that hold only what they add to a conversation, made into prompts that hold all of it.

A server is sent the whole conversation with every turn. A trace may write that (its turns are *cumulative*), or the new
tokens of each turn alone (*delta*). What is handed on is always whole: the prompt of a request that continues another
is that one's prompt and output, and its own tokens behind them. The first prompt of a conversation stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa

from kvrm_traces.arrow import int64_column, int64_values
from kvrm_traces.errors import TraceError
from kvrm_traces.numbers import LARGEST
from kvrm_traces.schema import TraceInfo, schema_of
from kvrm_traces.sessions import Latest, name_columns, names_in

#: What the prompt of a turn is.
Turns = Literal["cumulative", "delta"]
TURNS: tuple[Turns, ...] = ("cumulative", "delta")

#: Where fewer of the follow-ups repeat the conversation, turns are probably deltas: some are long behind short ones.
CUMULATIVE_SHARE = 0.5


class WholePrompts:
    """The column ``prompt_tokens`` of a trace whose turns are deltas. Memory grows with the conversations."""

    def __init__(self, info: TraceInfo) -> None:
        """Raises TraceError as :func:`check_delta`."""
        check_delta(info.source, info.columns, info.turns)
        self.reads = (*name_columns(info.columns), "prompt_tokens", "output_tokens")
        self._source = info.source
        #: Tokens of prompt and output of the latest turn.
        self._context = Latest[int]()
        self._rows = self._continued = self._longest = 0

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of all rows in order of arrival, with the columns ``reads``. Raises TraceError for too long a prompt."""
        for batch in batches:
            prompts = int64_values(batch.column("prompt_tokens")).tolist()
            outputs = int64_values(batch.column("output_tokens")).tolist()
            whole = np.empty(len(prompts), np.int64)
            for at, (own, parent) in enumerate(names_in(batch)):
                before = self._context.before(own, parent)
                prompt = prompts[at] + (before or 0)
                if prompt > LARGEST:
                    raise TraceError(
                        f"{self._source}: row {self._rows + at + 1} in order of arrival, session {own!r}: with the "
                        f"{before} tokens of the turns before, its prompt would be {prompt}, above {LARGEST}; are its "
                        "turns deltas?"
                    )
                whole[at] = prompt
                self._continued += before is not None
                self._context.keep(own, prompt + outputs[at])
            self._rows += len(prompts)
            self._longest = max(self._longest, int(whole.max()))
            yield pa.RecordBatch.from_arrays([int64_column(whole)], schema=schema_of(("prompt_tokens",)))

    def note(self) -> str:
        """What it came to."""
        return (
            f"{self._continued} of {self._rows} prompts were put behind the turns before them; the longest has "
            f"{self._longest} tokens"
        )


def may_be_deltas(info: TraceInfo) -> bool:
    """Whether it can be stated of a trace that its turns are deltas: nothing says what they are."""
    return info.turns is None and "prefix_hashes" not in info.columns


def check_delta(source: str, columns: tuple[str, ...], turns: str | None) -> None:
    """Raise TraceError for a trace with these columns whose prompts cannot be put together, or are whole: ``turns`` is
    what is known of them.
    """
    if turns == "cumulative":
        raise TraceError(f"turns delta: a prompt of {source} holds its whole conversation already; leave out the turns")
    if "session_id" not in columns:
        raise TraceError(
            f"turns delta: {source} has no column session_id, so no request continues another; name it, e.g. "
            "session_id=NAME, or leave out the turns"
        )
    if "prefix_hashes" in columns:
        raise TraceError(
            f"turns delta: {source} has prefix hashes, which are those of each turn alone, not of the whole prompt; "
            "leave that column out of the file, or leave out the turns"
        )

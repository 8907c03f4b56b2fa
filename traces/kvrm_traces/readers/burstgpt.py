"""BurstGPT, both layouts: six columns, and eight with a session id and an elapsed time. Seconds; failures have 0
response tokens.

The clock of the files ticks in whole seconds, so many requests share one stamp: they keep the order of the file.
Whether a prompt holds the turns of its session before it is not said.
"""

from __future__ import annotations

from kvrm_traces.readers.layout import Format, Layout, Record, present


def _layout(first: Record) -> Layout:
    fields = {"arrival": "Timestamp", "prompt_tokens": "Request tokens", "output_tokens": "Response tokens"}
    optional = present(first, session_id="Session ID", model="Model", request_class="Log Type")
    return Layout(fields=fields | optional, unit="s")


FORMAT = Format(
    name="burstgpt",
    container="csv",
    needs=("Timestamp", "Request tokens", "Response tokens"),
    layout=_layout,
)

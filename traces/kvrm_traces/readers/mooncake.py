"""Mooncake's JSONL: whole milliseconds, and one hash a 512-token block, each of the whole prefix up to there.

Others write the same keys with fractional seconds. A first timestamp that is not a whole number is therefore ambiguous.
"""

from __future__ import annotations

from kvrm_traces.readers.layout import Format, Layout, Record, present


def _layout(first: Record) -> Layout:
    fields = {"arrival": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length"}
    return Layout(
        fields=fields | present(first, prefix_hashes="hash_ids"),
        unit="ms" if isinstance(first["timestamp"], int) else None,
        hash_block_tokens=512 if "hash_ids" in first else None,
        turns="cumulative",
    )


FORMAT = Format(
    name="mooncake",
    container="jsonl",
    needs=("timestamp", "input_length", "output_length"),
    layout=_layout,
)

"""Qwen-Bailian's JSONL: fractional seconds, chats with turns, and one hash a 16-token block, of that block alone.

A prompt holds its whole chat so far. Hashes are chained on reading: a block is reusable only behind the same prefix.
"""

from __future__ import annotations

from kvrm_traces.readers.layout import Format, Layout, Record, present


def _layout(first: Record) -> Layout:
    fields = {"arrival": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length"}
    optional = present(
        first,
        session_id="chat_id",
        parent="parent_chat_id",
        turn="turn",
        request_class="type",
        prefix_hashes="hash_ids",
    )
    return Layout(
        fields=fields | optional,
        unit="s",
        hash_block_tokens=16 if "hash_ids" in first else None,
        chained=False,
        turns="cumulative",
    )


FORMAT = Format(
    name="bailian",
    container="jsonl",
    needs=("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
    layout=_layout,
)

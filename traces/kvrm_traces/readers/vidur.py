"""Vidur-style CSV: lengths, and perhaps arrivals in seconds. Without them an arrival process has to be stated."""

from __future__ import annotations

from kvrm_traces.readers.layout import Format, Layout, Record, present


def _layout(first: Record) -> Layout:
    fields = {"prompt_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}
    return Layout(fields=fields | present(first, arrival="arrived_at"), unit="s" if "arrived_at" in first else None)


FORMAT = Format(
    name="vidur",
    container="csv",
    needs=("num_prefill_tokens", "num_decode_tokens"),
    layout=_layout,
)

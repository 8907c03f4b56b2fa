"""Azure's public LLM inference traces: 2023 (conv, code), the 2024 week, and the 2025 multimodal one, which adds
NumImages.

Dates with 0 to 9 decimals, with a blank or a T, with or without a zone; without one they are read as UTC, so that no
daylight saving shift can open or close a gap.
"""

from __future__ import annotations

from kvrm_traces.readers.layout import Format, Layout, Record


def _layout(first: Record) -> Layout:
    images = ("NumImages is left out: only text tokens are counted",) if "NumImages" in first else ()
    return Layout(
        fields={"arrival": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"},
        unit="datetime",
        notes=images,
    )


FORMAT = Format(
    name="azure",
    container="csv",
    needs=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    layout=_layout,
)

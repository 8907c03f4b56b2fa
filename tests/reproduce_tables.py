"""What every table of ``make reproduce`` shares: the traces, the device, and how cells are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

REPO = Path(__file__).resolve().parent.parent
TRACES = REPO.parent / "shared" / "traces"

HARDWARE = "a100-80gb-sxm"
AZURE_CONV = "azure2023/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
GIB = float(1 << 30)

#: Computes a table; the runs behind it are written to the folder.
Block: TypeAlias = Callable[[Path], str]


def latency(run: Mapping[str, Any], metric: str, scale: float, digits: int) -> str:
    """p50 / p99; in parentheses when the run was overloaded, since they grow with the length of the trace."""
    text = " / ".join(f"{run[metric][q] * scale:,.{digits}f}" for q in ("p50", "p99"))
    return f"({text})" if run["overloaded"] else text


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A Markdown table; the first `words` columns are left-aligned, the rest right."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))

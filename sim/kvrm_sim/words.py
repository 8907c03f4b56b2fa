"""The words that a configuration chooses between, and what stands for them where a user's part may as well.

The order of the words in a ``Literal`` is the integer code that the decision core uses. Left out here, and so refused
as unknown words: reverse merges (a group's destination always ascends).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

ReserveMode: TypeAlias = Literal["max_len", "pow2", "declared", "oracle", "bucket", "paged"]
LaunchMode: TypeAlias = Literal["eager", "graph"]
MixedMode: TypeAlias = Literal["eager", "piecewise"]
ReadWhat: TypeAlias = Literal["reserved", "live", "table", "staged"]
ReadExtent: TypeAlias = Literal["live", "bucket"]
Layout: TypeAlias = Literal["layer_major", "block_major"]
Merge: TypeAlias = Literal["none", "adjacent"]
Staging: TypeAlias = Literal["full", "delta"]
Scope: TypeAlias = Literal["layer", "model"]
Submission: TypeAlias = Literal["per_copy", "batch", "kernel"]
Placement: TypeAlias = Literal["lifo", "lowest", "contiguous", "buddy", "fifo", "extent"]
ReleaseOrder: TypeAlias = Literal["reverse", "sorted"]
PartialTail: TypeAlias = Literal["recompute", "copy"]
Order: TypeAlias = Literal["fcfs", "shortest_prompt", "shortest_total", "priority"]
Victim: TypeAlias = Literal["last", "least_computed", "largest", "lowest_priority"]
PrefillMode: TypeAlias = Literal["none", "chunked", "separate"]
Compaction: TypeAlias = Literal["none", "threshold", "demand"]
Preempt: TypeAlias = Literal["recompute", "swap", "auto"]
Mapping: TypeAlias = Literal["table", "virtual"]
PageKib: TypeAlias = Literal[64, 2048]
Admission: TypeAlias = Literal["full_prompt", "first_chunk"]
Refill: TypeAlias = Literal["continuous", "batch"]

Capture: TypeAlias = Literal["warm", "first_use"]

BatchLadderName: TypeAlias = Literal["full", "vllm", "pow2"]
ContextLadderName: TypeAlias = Literal["limit", "pow2"]
TokenLadderName: TypeAlias = Literal["vllm"]

#: The words beside which a user's part may stand (plugins.py), by its kind.
PLUGGABLE: dict[str, Any] = {"placement": Placement, "victim": Victim, "order": Order}


def is_built_in(kind: str, word: str) -> bool:
    """Whether a word is one of the core's own; otherwise it is the name of a user's part."""
    return word in get_args(PLUGGABLE[kind])


#: Every router by name, with one line on what it does.
ROUTERS: dict[str, str] = {
    "round-robin": "each replica in turn, whatever its state (default)",
    "least-loaded": "the fewest requests, waiting and running",
    "least-tokens": "the fewest prompt tokens still to be computed; of equals the fewest requests",
    "least-kv": "the fewest KV blocks, held and wanted by those who wait",
    "prefix-aware": "blocks to be prefilled, less what is cached, weighed against blocks held "
    "(a trace with prefix hashes, a policy that shares)",
    "session-sticky": "where the session's first request went, and that to the least loaded (a trace with sessions)",
}
#: Where none is named.
DEFAULT_ROUTER = "round-robin"

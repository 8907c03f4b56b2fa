"""Traces: the canonical schema, readers, built-in generators and statistics.

trace = open_trace("azure-conv-like").speedup(2)
for batch in trace.batches(columns=("arrival_ns", "prompt_tokens", "output_tokens")):
    ...
"""

from kvrm_traces.errors import FetchError, InputError, KvrmError, TraceError
from kvrm_traces.inspection import TraceReport, inspect_trace
from kvrm_traces.merging import merge_traces
from kvrm_traces.opening import open_trace
from kvrm_traces.schema import SCHEMA, TraceInfo
from kvrm_traces.synth.builtin import BUILTINS
from kvrm_traces.synth.fitting import Fit, fit_trace
from kvrm_traces.trace import Trace

__all__ = [
    "BUILTINS",
    "SCHEMA",
    "FetchError",
    "Fit",
    "InputError",
    "KvrmError",
    "Trace",
    "TraceError",
    "TraceInfo",
    "TraceReport",
    "fit_trace",
    "inspect_trace",
    "merge_traces",
    "open_trace",
]

"""Remake the README's tables: ``make reproduce``. Needs the public traces in ``../shared/traces``.

Each table is printed as Markdown; the whole comparison and its figure go to ``runs/reproduce-N/``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

import kvrm
from kvrm.folders import next_free
from kvrm_analysis.studies import frame_markdown, kv_memory_shares

REPO = Path(__file__).resolve().parent.parent
TRACES = REPO.parent / "shared" / "traces"

#: Column of the comparison, and its short name in the README.
COLUMNS = {
    "requests_per_s": "requests/s",
    "ttft_p50_s": "TTFT p50, s",
    "ttft_p99_s": "TTFT p99, s",
    "itl_p50_ms": "ITL p50, ms",
    "itl_p99_ms": "ITL p99, ms",
    "kv_footprint_gib": "footprint, GiB",
    "reserved_kv_mean_gib": "reserved, GiB",
    "used_kv_mean_gib": "used, GiB",
    "moved_gib": "moved, GiB",
    "overloaded": "overloaded",
}


@dataclass(frozen=True, kw_only=True)
class Study:
    """One comparison: a public trace, how it is brought to a load that one device serves, and the replica."""

    name: str
    file: str
    model: str
    replicas: int = 1
    policies: tuple[str, ...] = ("static", "graph-paged", "kv-rm", "kv-rm-delta")
    options: kvrm.ReplicaOptions = field(default_factory=lambda: kvrm.ReplicaOptions())


def studies() -> Iterator[Study]:
    """The comparisons of the README, in its order."""
    mooncake = "mooncake/conversation_trace.jsonl"
    for kind in ("conv", "code"):
        file = f"azure2023/AzureLLMInferenceTrace_{kind}.csv"
        yield Study(name=f"azure2023-{kind}", file=file, model="llama-3-8b")
    yield Study(name="mooncake-one-device", file=mooncake, model="llama-3.1-8b")
    yield Study(name="mooncake-16-replicas", file=mooncake, model="llama-3.1-8b", replicas=16)
    yield Study(
        name="mooncake-16-replicas-decode-only",
        file=mooncake,
        model="llama-3.1-8b",
        replicas=16,
        options={"prefill": "none"},
    )


def table(study: Study, out: Path) -> pd.DataFrame:
    """Run one comparison, leave all of it in `out`, and return the README's columns."""
    trace = kvrm.open_trace(TRACES / study.file)
    if study.replicas > 1:
        trace = trace.replicas(study.replicas)
    done = kvrm.compare(trace, study.policies, out=out, model=study.model, hardware="a100-80gb-sxm", **study.options)
    return done.to_pandas()[list(COLUMNS)].rename(columns=COLUMNS)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    if not TRACES.is_dir():
        sys.exit(f"the public traces are not at {TRACES}")
    folder = next_free(REPO / "runs", "reproduce")
    for study in studies():
        say(f"\n### {study.name}: {study.model} on a100-80gb-sxm, uncalibrated\n")
        say(frame_markdown(table(study, folder / study.name), digits=2))
    say("### KV memory that holds tokens, beside Fig. 2 of the PagedAttention paper: opt-13b on a100-40gb\n")
    say(frame_markdown(kv_memory_shares()))


if __name__ == "__main__":
    main()

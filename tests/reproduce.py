"""Remake the README's tables and figure: ``make reproduce``. The tables of public traces need ``../shared/traces``.

Each block of the README between ``<!-- reproduce NAME -->`` and ``<!-- end -->`` is replaced by what is computed now,
and the figure by one drawn now; what is behind them goes to ``runs/reproduce-N/``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import kvrm
from kvrm.folders import next_free
from kvrm_analysis.figures import draw_comparison
from kvrm_analysis.series import numbers
from kvrm_analysis.studies import PAPER_SHARES, kv_memory_shares
from kvrm_analysis.style import look
from kvrm_sim.state import PARTS
from kvrm_traces import Trace

REPO = Path(__file__).resolve().parent.parent
TRACES = REPO.parent / "shared" / "traces"
README = REPO / "README.md"
FIGURE = REPO / "docs" / "figures" / "compare.png"
#: Dots an inch: sharp at a page's width, and the file stays below 300 KB.
FIGURE_DPI = 140

HARDWARE = "a100-80gb-sxm"
FOUR = ("static", "graph-paged", "kv-rm", "kv-rm-delta")
AZURE_CONV = "azure2023/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
GIB = float(1 << 30)

Block: TypeAlias = Callable[[Path], str]


def azure2023_conv(out: Path) -> str:
    """Azure's 2023 conversation trace, as it came, under four policies."""
    trace = kvrm.open_trace(TRACES / AZURE_CONV)
    done = kvrm.compare(trace, FOUR, out=out, model="llama-3-8b", hardware=HARDWARE)
    return markdown(
        ["policy", "served, requests/s", "TTFT p50 / p99, s", "ITL p50 / p99, ms", "KV footprint, GiB",
         "reserved, GiB", "used, GiB", "copied, GiB"],
        [_azure_row(run) for run in done.runs],
    )  # fmt: skip


def _azure_row(run: Mapping[str, Any]) -> list[str]:
    return [
        f"{run['policy']}{' (overloaded)' if run['overloaded'] else ''}",
        f"{run['requests_per_s']['whole']:.2f}",
        latency(run, "ttft_s", 1, 2),
        latency(run, "itl_s", 1e3, 1),
        f"{run['kv_footprint_bytes'] / GIB:.1f}",
        f"{run['reserved_kv_bytes']['mean'] / GIB:.1f}",
        f"{run['used_kv_bytes']['mean'] / GIB:.1f}",
        f"{run['transfer']['bytes_moved'] / GIB:,.0f}",
    ]


def mooncake(out: Path) -> str:
    """Mooncake's conversations at their own rate, and brought to what one device may serve."""
    whole = kvrm.open_trace(TRACES / MOONCAKE)
    loads: dict[str, tuple[Trace, bool]] = {
        "own rate": (whole, False),
        "own rate, decode only": (whole, True),
        "`--speedup 0.2`": (whole.speedup(0.2), False),
        "`--speedup 0.1`": (whole.speedup(0.1), False),
        "`--replicas 8`": (whole.replicas(8), False),
        "`--replicas 8`, decode only": (whole.replicas(8), True),
        "`--replicas 16`": (whole.replicas(16), False),
    }
    rows = []
    for at, (name, (trace, decode_only)) in enumerate(loads.items()):
        options = kvrm.ReplicaOptions(model="llama-3.1-8b", hardware=HARDWARE)
        if decode_only:
            options["prefill"] = "none"
        done = kvrm.compare(trace, FOUR, out=out / str(at), **options)
        offered = trace.info.rows / trace.info.span_ns * 1e9
        rows.append([name, f"{offered:.3f}", *(_mooncake_cell(run) for run in done.runs)])
    return markdown(["load", "offered, requests/s", *FOUR], rows)


def _mooncake_cell(run: Mapping[str, Any]) -> str:
    if run["overloaded"]:
        return f"overloaded ({run['requests_per_s']['whole']:.3f}/s)"
    return f"{run['ttft_s']['p50']:.2f} s, {1e3 * run['itl_s']['p50']:.1f} ms"


def parts(out: Path) -> str:
    """Where a decode step's time goes, and what it becomes with a ladder of batch sizes for everyone."""
    trace = kvrm.open_trace(TRACES / AZURE_CONV)
    ladder, full = {"launch.batch_sizes": "vllm"}, {"launch.batch_sizes": "full"}
    variants: dict[str, tuple[str, dict[str, str]]] = {
        "graph-paged": ("graph-paged", {}),
        "graph-paged, one batch size": ("graph-paged", full),
        "kv-rm, batch sizes of graph-paged": ("kv-rm", ladder),
        "kv-rm": ("kv-rm", {}),
        "kv-rm, nothing merged": ("kv-rm", {"transport.merge": "none"}),
        "kv-rm-delta": ("kv-rm-delta", {}),
    }
    names = ("host", "launch", "transport", "attention", "dense")  # the rest are 0.01 ms or less here
    rows = []
    for at, (name, (policy, overrides)) in enumerate(variants.items()):
        done = kvrm.replay(trace, policy, out=out / str(at), window_s=0, hardware=HARDWARE, overrides=overrides)
        steps = done.results[0].steps
        decode = numbers(steps, "prefill_tokens") == 0
        mean_ms = {part: float(numbers(steps, f"{part}_exposed_ns")[decode].mean()) / 1e6 for part in PARTS}
        live_rows = float(numbers(steps, "decode_rows")[decode].mean())
        cells = [name, f"{live_rows:.1f}", *(f"{mean_ms[part]:.2f}" for part in names)]
        rows.append([*cells, f"{sum(mean_ms.values()):.2f}", f"{1e3 * done.summary['itl_s']['p50']:.1f}"])
    return markdown(["mean decode step, ms", "rows", *names, "step", "ITL p50"], rows)


def paged_attention(out: Path) -> str:
    """Shares of the whole KV memory that hold tokens, beside Fig. 2 of the PagedAttention paper; three seeds."""
    frames = [kv_memory_shares(seed=seed) for seed in range(3)]
    out.mkdir(parents=True)
    for seed, frame in enumerate(frames):
        frame.to_csv(out / f"seed-{seed}.csv")

    def spread(policy: str, column: str) -> str:
        values = [float(frame[column].to_dict()[policy]) for frame in frames]
        return f"{min(values):.1f} to {max(values):.1f}"

    rows = [
        [
            policy,
            PAPER_SHARES[policy][0],
            spread(policy, "tokens_percent"),
            f"{PAPER_SHARES[policy][1]:.1f}",
            spread(policy, "tokens_of_reserved_percent"),
        ]
        for policy in PAPER_SHARES
    ]
    header = ["policy", "in the paper", "ours, % of the pool", "paper, % of the pool", "ours, % of what is reserved"]
    return markdown(header, rows, words=2)


#: By the name of their block in the README.
BUILT_IN: dict[str, Block] = {"paged-attention": paged_attention}
PUBLIC: dict[str, Block] = {"azure2023-conv": azure2023_conv, "parts": parts, "mooncake": mooncake}


def latency(run: Mapping[str, Any], metric: str, scale: float, digits: int) -> str:
    """p50 / p99; in parentheses when the run was overloaded, since they grow with the length of the trace."""
    text = " / ".join(f"{run[metric][q] * scale:,.{digits}f}" for q in ("p50", "p99"))
    return f"({text})" if run["overloaded"] else text


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A Markdown table; the first `words` columns are left-aligned, the rest right."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def draw(path: Path) -> None:
    """The README's figure: bursts of chat at half the rate, which every policy survives in the end."""
    trace = kvrm.open_trace("chat-burst").speedup(0.5)
    figure = draw_comparison(kvrm.compare(trace, FOUR, hardware=HARDWARE).results)
    path.parent.mkdir(parents=True, exist_ok=True)
    with look():
        figure.savefig(path, dpi=FIGURE_DPI, metadata={"Software": None})


def shown(name: str, text: str) -> re.Match[str]:
    """The block of this name in a page, its table as the only group. Raises LookupError when the page has none."""
    found = re.search(rf"(?<=<!-- reproduce {name} -->\n)(.*?)\n?(?=<!-- end -->)", text, re.DOTALL)
    if found is None:
        raise LookupError(f"README.md has no block <!-- reproduce {name} --> to <!-- end -->")
    return found


def main() -> None:
    folder = next_free(REPO / "runs", "reproduce")
    blocks = BUILT_IN | (PUBLIC if TRACES.is_dir() else {})
    text = README.read_text(encoding="utf-8")
    for name, block in blocks.items():
        table = block(folder / name)
        sys.stdout.write(f"\n{name}, uncalibrated\n{table}\n")
        sys.stdout.flush()
        block_shown = shown(name, text)
        text = text[: block_shown.start()] + table + "\n" + text[block_shown.end() :]
    README.write_text(text, encoding="utf-8")
    draw(FIGURE)
    sys.stdout.write(f"\n{README} and {FIGURE.relative_to(REPO)} are remade; the runs are in {folder}\n")
    if len(blocks) < len(BUILT_IN | PUBLIC):
        sys.exit(f"the public traces are not at {TRACES}: the tables of {', '.join(PUBLIC)} are as they were")


if __name__ == "__main__":
    main()

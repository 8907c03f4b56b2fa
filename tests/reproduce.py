"""Remake the README's tables and figures: ``make reproduce``. The tables of public traces need ``../shared/traces``.

Each block of a page between ``<!-- reproduce NAME -->`` and ``<!-- end -->`` is replaced by what is computed now, and
the figures by ones drawn now; what is behind them goes to ``runs/reproduce-N/``. ``make reproduce FIGURE=NAME`` remakes
only the figure and the table of this name, as far as there are both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

import kvrm
from kvrm.folders import next_free
from kvrm_analysis.drawing.figures import draw_comparison
from kvrm_analysis.drawing.series import numbers
from kvrm_analysis.drawing.style import look
from kvrm_analysis.published import PAPER_SHARES, kv_memory_shares
from kvrm_sim.state import PARTS
from kvrm_traces import Trace
from tests import reproduce_looking as looking
from tests import reproduce_pager as pager
from tests import reproduce_studies as studies
from tests.reproduce_tables import AZURE_CONV, GIB, HARDWARE, MOONCAKE, REPO, TRACES, Block, latency, markdown

README = REPO / "README.md"
POLICIES = REPO / "docs" / "policies.md"
LOOKING = REPO / "docs" / "figures.md"
FIGURES_FOLDER = REPO / "docs" / "figures"

FOUR = ("static", "graph-paged", "kv-rm", "kv-rm-delta")


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


def draw_compare(out: Path) -> Figure:
    """The README's first figure: bursts of chat at half the rate, which every policy survives in the end."""
    del out  # the runs are seconds; nothing is kept
    trace = kvrm.open_trace("chat-burst").speedup(0.5)
    return draw_comparison(kvrm.compare(trace, FOUR, hardware=HARDWARE).results)


class Drawing(NamedTuple):
    """A figure: what draws it (given the folder of the table of its name), its dots an inch, whether it needs traces.

    Sharp at a page's width, and the file stays below 300 KB.
    """

    draw: Callable[[Path], Figure]
    dpi: int
    public: bool


#: Tables by the name of their block; those of ``ELSEWHERE`` are in another page than the README.
BUILT_IN: dict[str, Block] = {
    "paged-attention": paged_attention,
    "watermark": pager.watermark,
    "filling": pager.filling,
    "diff": looking.diff,
    "explain": looking.explain,
}
#: Of built-in traces too, and thousands of runs each: too many to be computed again by a test.
SEARCHES: dict[str, Block] = {"capacity": studies.capacity, "tuning": studies.tuning}
PUBLIC: dict[str, Block] = {
    "azure2023-conv": azure2023_conv,
    "parts": parts,
    "mooncake": mooncake,
    "mooncake-sharing": pager.mooncake_sharing,
    "mooncake-cache": pager.mooncake_cache,
    "placement": pager.placement,
}
ELSEWHERE = {
    "watermark": POLICIES,
    "filling": POLICIES,
    "capacity": studies.CAPACITY,
    "tuning": studies.TUNING,
    "diff": LOOKING,
    "explain": LOOKING,
}
#: Figures by the name of their file in docs/figures.
FIGURES: dict[str, Drawing] = {
    "compare": Drawing(draw_compare, 140, False),
    "placement": Drawing(pager.draw_placement, 120, True),
    "watermark": Drawing(pager.draw_watermark_sweep, 140, False),
    "tuning": Drawing(studies.draw_tuning, 140, False),
    "sensitivity": Drawing(studies.draw_sensitivity, 110, False),
    **{name: Drawing(looking.drawing(name), 110, False) for name in (*looking.OF_RUNS, "owners", *looking.OF_A_STUDY)},
}


def page_of(name: str) -> Path:
    """The page that shows a table."""
    return ELSEWHERE.get(name, README)


def shown(name: str, text: str) -> re.Match[str]:
    """The block of this name in a page, its table as the only group. Raises LookupError when the page has none."""
    found = re.search(rf"(?<=<!-- reproduce {name} -->\n)(.*?)\n?(?=<!-- end -->)", text, re.DOTALL)
    if found is None:
        raise LookupError(f"the page has no block <!-- reproduce {name} --> to <!-- end -->")
    return found


def remake_table(name: str, out: Path) -> None:
    """Compute a table and put it into its page."""
    table = (BUILT_IN | SEARCHES | PUBLIC)[name](out)
    sys.stdout.write(f"\n{name}, uncalibrated\n{table}\n")
    sys.stdout.flush()
    text = page_of(name).read_text(encoding="utf-8")
    block = shown(name, text)
    page_of(name).write_text(text[: block.start()] + table + "\n" + text[block.end() :], encoding="utf-8")


def remake_figure(name: str, out: Path) -> None:
    """Draw a figure into its file."""
    drawing = FIGURES[name]
    figure = drawing.draw(out)
    FIGURES_FOLDER.mkdir(parents=True, exist_ok=True)
    with look():
        figure.savefig(FIGURES_FOLDER / f"{name}.png", dpi=drawing.dpi, metadata={"Software": None})


def main(names: list[str]) -> None:
    """Remake everything, or only the figures and the tables of these names."""
    every = BUILT_IN | SEARCHES | PUBLIC
    unknown = [name for name in names if name not in FIGURES and name not in every]
    if unknown:
        known = ", ".join(dict.fromkeys([*FIGURES, *every]))
        sys.exit(f"FIGURE={unknown[0]}: there is no such figure or table; there are {known}")
    folder = next_free(REPO / "runs", "reproduce")
    here = TRACES.is_dir()
    tables = [name for name in every if not names or name in names]
    left_out = [name for name in tables if name in PUBLIC and not here]
    for name in tables:
        if name not in left_out:
            remake_table(name, folder / name)
    for name in FIGURES if not names else [name for name in names if name in FIGURES]:
        if here or not FIGURES[name].public:
            remake_figure(name, folder / name)
        elif name not in left_out:
            left_out.append(name)
    sys.stdout.write(f"\nremade in place; the runs are in {folder}\n")
    if left_out:
        sys.exit(f"the public traces are not at {TRACES}: {', '.join(left_out)} are as they were")


if __name__ == "__main__":
    main(sys.argv[1:])

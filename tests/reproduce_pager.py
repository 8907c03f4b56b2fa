"""Tables and figures of what the pager decides: prefix sharing, placement, watermarks, filling against reserving."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import kvrm
from kvrm_analysis.churn import PLACEMENTS, draw_churn, run_blocks_mean
from kvrm_analysis.preemption import draw_watermark, over_subscription, watermark_sweep
from kvrm_analysis.sharing import hit_share
from kvrm_sim.registry import load_hardware
from kvrm_sim.result import RunResult
from kvrm_traces import Trace
from tests.reproduce_tables import AZURE_CONV, HARDWARE, MOONCAKE, TRACES, markdown

LONG_CONTEXT_MODEL = "llama-3.1-8b"
SHARING = {"pager.prefix_sharing": True}
#: Device memory of the cache study, in multiples of the device's own: nothing else of the profile changes.
MEMORY_FACTORS = (1, 4, 16, 64)
#: The traces of the placement study, with the model that serves each.
PLACEMENT_TRACES = {
    "Azure 2023, conversations": (AZURE_CONV, 1.0, "llama-3-8b"),
    "Mooncake, conversations": (MOONCAKE, 0.1, LONG_CONTEXT_MODEL),
}


def loads() -> dict[str, Trace]:
    """Mooncake's conversations at the two loads that graph-paged and kv-rm both serve."""
    whole = kvrm.open_trace(TRACES / MOONCAKE)
    return {"`--speedup 0.1`": whole.speedup(0.1), "`--replicas 16`": whole.replicas(16)}


def mooncake_sharing(out: Path) -> str:
    """What sharing prefixes finds on one device, and what it changes."""
    rows = []
    for load, trace in loads().items():
        for policy in ("graph-paged", "kv-rm"):
            options = kvrm.ReplicaOptions(model=LONG_CONTEXT_MODEL, hardware=HARDWARE)
            plain = kvrm.replay(trace, policy, out=out / load.strip("`") / policy / "plain", **options)
            shared = kvrm.replay(
                trace, policy, out=out / load.strip("`") / policy / "shared", **options, overrides=SHARING
            )
            pair = (plain.summary, shared.summary)
            share = hit_share(shared.results[0].requests) or 0.0
            pool_tokens = shared.summary["pool_blocks"] * shared.summary["block_size_tokens"]
            rows.append(
                [load, policy, f"{pool_tokens:,}", f"{100 * share:.1f}", _two(pair, "ttft_s", 1, 2),
                 _two(pair, "itl_s", 1e3, 1), _groups(pair)]
            )  # fmt: skip
    header = [
        "load",
        "policy",
        "pool, tokens",
        "hit, % of prompt tokens",
        "TTFT p50, s",
        "ITL p50, ms",
        "blocks a group",
    ]
    return markdown(header, rows, words=2)


def _two(pair: tuple[dict[str, Any], dict[str, Any]], metric: str, scale: float, digits: int) -> str:
    return " → ".join(f"{run[metric]['p50'] * scale:.{digits}f}" for run in pair)


def _groups(pair: tuple[dict[str, Any], dict[str, Any]]) -> str:
    found = [run["transfer"]["blocks_per_group_mean"] for run in pair]
    return "none" if None in found else " → ".join(f"{blocks:.1f}" for blocks in found)


def mooncake_cache(out: Path) -> str:
    """Hits of graph-paged by the size of the pool, as if the device had so much more memory of the same speed."""
    rows = []
    for factor in MEMORY_FACTORS:
        hardware = _with_memory(out, factor)
        cells = [f"{factor} times"]
        for at, (load, trace) in enumerate(loads().items()):
            done = kvrm.replay(
                trace, "graph-paged", out=out / str(factor) / load.strip("`"), model=LONG_CONTEXT_MODEL,
                hardware=hardware, overrides=SHARING,
            )  # fmt: skip
            summary = done.summary
            if at == 0:
                cells.append(f"{summary['pool_blocks'] * summary['block_size_tokens'] / 1e6:.1f}")
            share = hit_share(done.results[0].requests) or 0.0
            cells += [f"{100 * share:.1f}", f"{summary['ttft_s']['p50']:.2f}"]
        rows.append(cells)
    columns = [f"{load}: {what}" for load in loads() for what in ("hit, %", "TTFT p50, s")]
    return markdown(["device memory", "pool, million tokens", *columns], rows)


def _with_memory(out: Path, factor: int) -> Path:
    """A profile that differs from the preset in its memory alone."""
    own = load_hardware(HARDWARE).memory_bytes.value
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"memory-{factor}.toml"
    path.write_text(
        f'base = "{HARDWARE}"\nname = "{HARDWARE}, {factor} x memory"\n[memory_bytes]\nvalue = {factor * own}\n'
        'provenance = "assumed"\nsource = "a study of the size of a cache"\n',
        encoding="utf-8",
    )
    return path


@cache
def placement_runs(out: Path) -> dict[str, dict[str, RunResult]]:
    """kv-rm under every placement, by trace and placement; written to the folder."""
    found: dict[str, dict[str, RunResult]] = {}
    for title, (path, speedup, model) in PLACEMENT_TRACES.items():
        trace = kvrm.open_trace(TRACES / path).speedup(speedup)
        found[title] = {
            name: kvrm.replay(
                trace, "kv-rm", out=out / title / name, model=model, hardware=HARDWARE, overrides=overrides
            ).results[0]
            for name, overrides in PLACEMENTS.items()
        }
    return found


def placement(out: Path) -> str:
    """Run lengths, groups and gaps by placement: means over the whole runs."""
    found = placement_runs(out)
    rows = [[name, *(cell for runs in found.values() for cell in _placement_cells(runs[name]))] for name in PLACEMENTS]
    names = [title.split(",")[0] for title in found]
    columns = [f"{name}: {what}" for name in names for what in ("blocks a run", "groups a step", "ITL p50, ms")]
    return markdown(["placement", *columns], rows)


def _placement_cells(run: RunResult) -> list[str]:
    summary = run.summary
    groups = summary["transfer"]["groups_per_step_mean"]
    return [f"{run_blocks_mean(run):.2f}", f"{groups:,.0f}", f"{1e3 * summary['itl_s']['p50']:.1f}"]


def draw_placement(out: Path) -> Figure:
    """The same runs over time."""
    return draw_churn(placement_runs(out))


def watermark(out: Path) -> str:
    """Preemptions and throughput by watermark, beside a published sweep."""
    sweep = watermark_sweep()
    out.mkdir(parents=True)
    sweep.to_csv(out / "watermark.csv")
    rows = [
        [f"{float(mark):g}", f"{ours:,.0f}", f"{rate:,.0f}", f"{theirs:,.0f}", f"{their_rate:,.0f}"]
        for mark, ours, rate, theirs, their_rate in sweep.itertuples()
    ]
    header = ["watermark", "preemptions", "output tokens/s", "published: preemptions", "published: output tokens/s"]
    return markdown(header, rows)


def draw_watermark_sweep(out: Path) -> Figure:
    """The same as a figure."""
    del out  # the runs are seconds; nothing is kept
    return draw_watermark(watermark_sweep())


def filling(out: Path) -> str:
    """Filling the pool against reserving what will be written, at a load that fills it and one that does not."""
    found = over_subscription()
    out.mkdir(parents=True)
    found.to_csv(out / "filling.csv")
    rows = [
        [*index, f"{preemptions:,}", f"{rate:.0f}", f"{ttft:.2f}", f"{1e3 * tpot:.1f}"]
        for index, preemptions, rate, ttft, tpot in found.itertuples()
    ]
    header = ["load", "scheme", "preemptions", "output tokens/s", "TTFT p50, s", "TPOT p99, ms"]
    return markdown(header, rows, words=2)

"""What a run does over its time, bursts shaded: load, queue, batch, latencies; parts of a step; movement; padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvrm_analysis.drawing.panels import GIB, lines, logarithmic, shade
from kvrm_analysis.drawing.plot_options import PlotOptions, audits_of, not_ranked, status_of, title_of
from kvrm_analysis.drawing.scene import Scene, scene_of
from kvrm_analysis.drawing.series import (
    Floats,
    mean_per_bin,
    numbers,
    sum_per_bin,
    typical_itl_s,
    typical_ttft_s,
    worst_itl_s,
    worst_ttft_s,
)
from kvrm_analysis.drawing.sheet import Key, Panel, empty, line_key, patch_key, sheet
from kvrm_analysis.drawing.style import FAINT, colour, dash
from kvrm_analysis.runs import NamedRun
from kvrm_sim.state import PARTS

#: A colour a part of a step, the parts that most policies have in the ones that differ most.
PART_COLOURS = dict(zip(PARTS, ("#0072B2", "#999999", "#E69F00", "#D55E00", "#56B4E9", "#009E73", "#CC79A7"),
                        strict=True))  # fmt: skip
#: A title above panels of one run each.
OF_RUN = {"fontsize": 8.5}


def draw_time(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """Load, waiting and running requests, gaps between tokens, waits for the first token."""
    scene = _scene(runs)
    steps = [run.steps for run in runs]

    def load(axes: Axes) -> None:
        axes.stairs(scene.arrivals / scene.grid.width_s, scene.time(scene.grid.edges_s), fill=True, color=FAINT)
        _finish(axes, scene, "Load" + (" (bursts shaded)" if scene.bursts else ""), "requests/s")

    panels = [
        Panel(load),
        _over_time(scene, "Requests that wait for admission", "requests", [_mean(scene, s, "waiting") for s in steps]),
        _over_time(scene, "Requests that run (batch)", "requests", [_mean(scene, s, "running") for s in steps]),
        _over_time(scene, "Output", "tokens/s", [_rate(scene, s, "delivered_tokens") for s in steps]),
        _over_time(scene, "Gap between tokens: median", "ms, log scale",
                   [1e3 * typical_itl_s(s, scene.grid) for s in steps], log=True),
        _over_time(scene, "Gap between tokens: p99, worst", "ms, log scale",
                   [1e3 * worst_itl_s(s, scene.grid) for s in steps], log=True),
    ]  # fmt: skip
    tables = [run.requests for run in runs if run.requests is not None]
    if len(tables) == len(runs):
        panels += [
            _over_time(scene, "Wait for the first token: median", "s, log scale",
                       [typical_ttft_s(table, scene.grid) for table in tables], log=True),
            _over_time(scene, "Wait for the first token: longest", "s, log scale",
                       [worst_ttft_s(table, scene.grid) for table in tables], log=True),
        ]  # fmt: skip
    return _sheet(runs, scene, panels, line_key(scene.names), options, not_ranked(runs))


def draw_parts(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """The mean step of each bin, by the time that each part adds to it: one panel a run, all on the same scale."""
    scene = _scene(runs)
    means = [_parts_ms(run, scene) for run in runs]
    highest = max(float(np.nansum(parts, axis=0).max(initial=0.0)) for parts in means) or 1.0
    panels = [
        Panel(_stack(scene, run.name, parts, highest), height=1.5) for run, parts in zip(runs, means, strict=True)
    ]
    there = [name for at, name in enumerate(PARTS) if any(np.nansum(parts[at]) > 0 for parts in means)]
    steps = ", ".join(f"{run.name} {int(numbers(run.steps, 'steps').sum()):,}" for run in runs)
    words = (
        f"Steps: {steps}. Each area is what the part adds to the critical path (its exposed time), so that they add up "
        "to the step; a bin without a step is empty."
    )
    key = patch_key([(name, PART_COLOURS[name]) for name in there])
    return _sheet(runs, scene, panels, key, options, words)


def draw_bytes(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """Bytes copied into staging, and of them the bytes of tokens: over time, and in all."""
    scene = _scene(runs)
    moved, needed, read = [], [], []
    for run in runs:
        block, token = run.summary["block_bytes"], run.summary["kv_bytes_per_token"]
        moved.append(_rate(scene, run.steps, "moved_blocks") * block / GIB)
        needed.append(_rate(scene, run.steps, "needed_tokens") * token / GIB)
        read.append(_rate(scene, run.steps, "read_tokens") * token / GIB)
    per_read = [_over(a, b) for a, b in zip(moved, read, strict=True)]
    unneeded = [100 * (1 - _over(b, a)) for a, b in zip(moved, needed, strict=True)]
    panels = [
        _over_time(scene, "Copied into staging", "GiB/s", moved),
        _over_time(scene, "Copied for each byte that is read", "bytes a byte", per_read),
        _over_time(scene, "Copied although not needed", "% of the bytes", unneeded),
        Panel(_totals(runs), height=1.3),
    ]
    words = (
        "Whole blocks are copied; needed are the entries in them that hold tokens, read is what attention of decoding "
        "rows reads. Policies that read pages or reservations in place copy nothing. Per second of simulated time."
    )
    return _sheet(runs, scene, panels, line_key(scene.names), options, words)


def draw_padding(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """Rows that graphs compute for nobody, steps by how they were launched, graphs captured."""
    scene = _scene(runs)
    steps = [run.steps for run in runs]
    waste = [_share(scene, s, "padded_rows", "padded_live_rows") for s in steps]
    panels = [
        _over_time(scene, "Padding: rows that nobody is in", "% of the rows", waste, top=100),
        _over_time(scene, "Steps launched kernel by kernel", "% of the steps",
                   [_ratio(scene, s, "eager_steps", "steps") for s in steps], top=100),
        _over_time(scene, "Steps that no graph could serve", "% of the steps",
                   [_ratio(scene, s, "off_ladder_steps", "steps") for s in steps], top=100),
    ]  # fmt: skip
    so_far = [np.cumsum(sum_per_bin(s, scene.grid, "captures")) for s in steps]
    if any(count[-1] for count in so_far):
        panels.append(_over_time(scene, "Graphs captured while serving", "graphs", so_far))
    captured = ", ".join(f"{run.name} {run.summary['captures']}" for run in runs)
    when = "" if len(panels) > 3 else ", none of them while serving"
    words = f"Graphs captured: {captured}{when}. Padding is of steps in graphs only."
    return _sheet(runs, scene, panels, line_key(scene.names), options, words)


def draw_transfers(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """How long runs of blocks are, over all requests and over time, and the transfer groups that come of it."""
    scene = _scene(runs)
    groups = [_ratio(scene, run.steps, "groups", "decode_steps") / 100 for run in runs]
    per_group = [_ratio(scene, run.steps, "moved_blocks", "groups") / 100 for run in runs]
    panels = [
        Panel(_run_lengths(runs)),
        Panel(_runs_over_time(runs, scene)),
        _over_time(scene, "Transfer groups", "a decode step", groups),
        _over_time(scene, "Blocks a transfer group", "blocks", per_group),
    ]
    words = (
        "A run is physically and logically consecutive; all live requests at about 200 samples of the pool. A "
        "reservation is one run. Policies that stage nothing have no groups."
    )
    return _sheet(runs, scene, panels, line_key(scene.names), options, words)


def _scene(runs: Sequence[NamedRun]) -> Scene:
    return scene_of(runs, [run.name for run in runs])


def _sheet(
    runs: Sequence[NamedRun], scene: Scene, panels: Sequence[Panel], key: Key, options: PlotOptions, words: str
) -> Figure:
    bins = f"Time is in bins of {scene.grid.width_s:g} s."
    bursts = "Shaded: bins with at least twice the mean number of arrivals." if scene.bursts else ""
    late = [name for name, end in zip(scene.names, scene.ends_s, strict=True) if end > scene.grid.end_s]
    beyond = f"Beyond the axis ends: {', '.join(late)}." if late else ""
    said = " ".join(filter(None, [audits_of(runs), words, bins, bursts, beyond, status_of(runs)]))
    return sheet(title=title_of(runs), caption=said, panels=panels, key=key, width=options.width)


def _finish(axes: Axes, scene: Scene, title: str, ylabel: str) -> None:
    shade(axes, scene)
    axes.set(title=title, ylabel=ylabel, xlabel=f"time since the first arrival, {scene.unit}")
    axes.set_xlim(0, float(scene.time(scene.grid.edges_s)[-1]))
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(4))


def _over_time(
    scene: Scene, title: str, ylabel: str, series: Sequence[Floats], *, log: bool = False, top: float | None = None
) -> Panel:
    """A line a run."""

    def draw(axes: Axes) -> None:
        lines(axes, scene, series)
        if log:
            logarithmic(axes)
        _finish(axes, scene, title, ylabel)
        highest = max((float(np.nanmax(values)) for values in series if not np.isnan(values).all()), default=0.0)
        if not log:
            axes.set_ylim(top=top if top is not None else 1.08 * highest or 1.0)

    return Panel(draw)


def _mean(scene: Scene, steps: object, column: str) -> Floats:
    return mean_per_bin(steps, scene.grid, column)


def _over(part: Floats, whole: Floats) -> Floats:
    """The quotient; NaN where there is nothing to divide by."""
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def _rate(scene: Scene, steps: object, column: str) -> Floats:
    return sum_per_bin(steps, scene.grid, column) / scene.grid.width_s


def _ratio(scene: Scene, steps: object, part: str, whole: str) -> Floats:
    """Per cent of one sum in another; NaN where there is none of it."""
    a, b = (sum_per_bin(steps, scene.grid, name) for name in (part, whole))
    return 100 * _over(a, b)


def _share(scene: Scene, steps: object, whole: str, live: str) -> Floats:
    return 100 - _ratio(scene, steps, live, whole)


def _parts_ms(run: NamedRun, scene: Scene) -> Floats:
    """Mean exposed milliseconds of a step, float64 [parts, bins]."""
    steps = sum_per_bin(run.steps, scene.grid, "steps")
    found = [_over(sum_per_bin(run.steps, scene.grid, f"{part}_exposed_ns"), steps) / 1e6 for part in PARTS]
    return np.nan_to_num(np.array(found))


def _stack(scene: Scene, title: str, parts: Floats, highest: float) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        below = np.zeros(scene.grid.count)
        for name, part in zip(PARTS, parts, strict=True):
            axes.stairs(below + part, scene.time(scene.grid.edges_s), baseline=below, fill=True,
                        color=PART_COLOURS[name], linewidth=0)  # fmt: skip
            below = below + part
        _finish(axes, scene, title, "mean step, ms")
        axes.set_ylim(0, 1.05 * highest)

    return draw


def _totals(runs: Sequence[NamedRun]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        transfers = [run.summary["transfer"] for run in runs]
        moved = [float(transfer["bytes_moved"]) / GIB for transfer in transfers]
        needed = [float(transfer["bytes_needed"]) / GIB for transfer in transfers]
        unit, by = ("TiB", 1024.0) if max(moved) > 10_000 else ("GiB", 1.0)
        at = np.arange(len(runs), dtype=np.float64)
        axes.barh(at, [value / by for value in moved], 0.62, color=[colour(index) for index in range(len(runs))])
        axes.barh(at, [value / by for value in needed], 0.22, color="white", alpha=0.75)
        axes.set_xlim(0, 1.35 * max(moved) / by or 1.0)
        for y, value in zip(at, moved, strict=True):
            text = f"{value / by:,.3g} {unit}" if value else "none"
            axes.annotate(text, (value / by, float(y)), xytext=(3, 0), textcoords="offset points", va="center",
                          fontsize=7.5)  # fmt: skip
        axes.set_yticks(at, [""] * len(runs))
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set(title="Copied in all (pale: needed)", xlabel=unit)

    return draw


def _classes(run: NamedRun) -> tuple[list[str], Floats]:
    """Names of the run-length classes, and the mean number of runs of each at a sample that has some."""
    pool = run.pool
    if pool is None:
        return [], np.zeros(0)
    columns = [name for name in pool.column_names if name.startswith("runs_")]
    counts = np.array([numbers(pool, name) for name in columns])
    held = counts.sum(axis=0) > 0
    names = [name.removeprefix("runs_").removesuffix("_blocks").replace("_up", "+") for name in columns]
    names = [name.replace("_", "-") for name in names]
    return names, counts[:, held].mean(axis=1) if held.any() else np.zeros(len(columns))


def _run_lengths(runs: Sequence[NamedRun]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        found = [_classes(run) for run in runs]
        if not all(len(counts) and counts.sum() for _, counts in found):
            empty(axes, "Lengths of runs", "no sample of the pool holds a run")
            return
        last = max(int(np.flatnonzero(counts).max()) for _, counts in found) + 1
        names = found[0][0][:last]
        wide = 0.84 / len(runs)
        for at, (_, counts) in enumerate(found):
            x = np.arange(last) + (at - (len(runs) - 1) / 2) * wide
            axes.bar(x, 100 * counts[:last] / counts.sum(), wide, color=colour(at))
        axes.set_xticks(np.arange(last), names, fontsize=6.5, rotation=35 if last > 6 else 0)
        axes.set(title="Lengths of runs, blocks", ylabel="runs, %")
        axes.tick_params(axis="x", pad=1)

    return draw


def _runs_over_time(runs: Sequence[NamedRun], scene: Scene) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for at, run in enumerate(runs):
            if run.pool is None:
                continue
            count, held = numbers(run.pool, "runs"), numbers(run.pool, "allocated_blocks")
            axes.plot(
                scene.time(numbers(run.pool, "time_ns") / 1e9), _over(held, count), color=colour(at), linestyle=dash(at)
            )
        logarithmic(axes)
        _finish(axes, scene, "Mean length of a run", "blocks, log scale")

    return draw

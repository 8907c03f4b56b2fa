"""KV memory: what was set aside, promised, held and filled over time; and the pool as a picture, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from kvrm_analysis.drawing.panels import GIB, shade
from kvrm_analysis.drawing.plot_options import PlotOptions, audits_of, status_of, title_of
from kvrm_analysis.drawing.scene import Scene, scene_of
from kvrm_analysis.drawing.series import Floats, mean_per_bin
from kvrm_analysis.drawing.sheet import Panel, patch_key, sheet
from kvrm_analysis.drawing.style import FAINT, INK
from kvrm_analysis.inspection import CACHED, FREE, LEAVING, SHARED, PoolMap, Stretch, inspect
from kvrm_analysis.recorded import recorded
from kvrm_analysis.runs import NamedRun

#: Promised to requests; of it held as blocks; of it filled with tokens. Held and kept for a hit is apart.
LEVELS = {"reserved": "#C9DCEB", "allocated": "#6BAED6", "used": "#08519C", "cached": "#E69F00"}
#: States of a block, and their colours. `unwritten` and `filled` are held by one request.
STATES = {
    "free": "#FFFFFF",
    "held, nothing in it yet": "#E8A87C",
    "holds tokens": "#08519C",
    "held by several": "#009E73",
    "cached": "#E6C84C",
    "given back, still read": "#999999",
}
#: Colours of owners: neighbours in time differ; white stays free.
OWNERS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#4B4B4B", "#8C6D31", "#B2DF8A", "#6A3D9A")
#: Beside them, blocks that are no single request's.
NO_OWNER = {"free": "#FFFFFF", "held by several": "#000000", "cached": "#E6C84C", "given back, still read": "#BBBBBB"}
#: Samples of the pool across a picture, and bands of blocks down it: about as many as dots at 200 an inch.
POOL_SAMPLES = 500
POOL_BANDS = 420


def draw_memory(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """Reserved, allocated and used over time: one panel a run, all on the same scale."""
    scene = scene_of(runs, [run.name for run in runs])
    highest = max(float(run.summary["kv_footprint_bytes"]) for run in runs) / GIB
    panels = [Panel(_levels(run, scene, highest), height=1.5) for run in runs]
    names = [
        ("promised to requests (reserved)", LEVELS["reserved"]),
        ("held as blocks (allocated)", LEVELS["allocated"]),
        ("filled with tokens (used)", LEVELS["used"]),
    ]
    if any(_caches(run) for run in runs):
        names.append(("kept for a hit (cached)", LEVELS["cached"]))
    means = ", ".join(f"{run.name} {_filled(run)}" for run in runs)
    words = [
        audits_of(runs),
        f"One device. Of what is promised, filled on average: {means}. Paged: promised is what is held.",
        "Lines: set aside at the start (pool, staging, graphs), and of it the pool where they differ.",
        f"Means of bins of {scene.grid.width_s:g} s.",
        "Shaded: bursts." if scene.bursts else "",
        status_of(runs),
    ]
    return sheet(
        title=title_of(runs), caption=_sentences(words), panels=panels, key=patch_key(names), width=options.width
    )


def _levels(run: NamedRun, scene: Scene, highest: float) -> Callable[[Axes], None]:
    summary = run.summary

    def draw(axes: Axes) -> None:
        time, block = scene.time(scene.grid.edges_s), summary["block_bytes"] / GIB
        allocated = mean_per_bin(run.steps, scene.grid, "allocated_blocks") * block
        cached = mean_per_bin(run.steps, scene.grid, "cached_blocks") * block
        if _caches(run):
            axes.stairs(allocated + cached, time, baseline=allocated, fill=True, color=LEVELS["cached"], linewidth=0)
        for values, name in (
            (mean_per_bin(run.steps, scene.grid, "reserved_blocks") * block, "reserved"),
            (allocated, "allocated"),
            (mean_per_bin(run.steps, scene.grid, "used_tokens") * summary["kv_bytes_per_token"] / GIB, "used"),
        ):
            axes.stairs(values, time, fill=True, color=LEVELS[name], linewidth=0)
        footprint, pool = summary["kv_footprint_bytes"] / GIB, summary["pool_bytes"] / GIB
        axes.axhline(footprint, color=INK, linewidth=0.9)
        _level(axes, "set aside", footprint, 2.0)
        if footprint - pool > 0.04 * highest:
            axes.axhspan(pool, footprint, facecolor="none", edgecolor=FAINT, hatch="////", linewidth=0, zorder=0)
            axes.axhline(pool, color=INK, linewidth=0.9, linestyle=(0, (2, 1.5)))
            _level(axes, "pool", pool, -8.0)
        shade(axes, scene)
        axes.set(title=run.name, ylabel="GiB", xlabel=f"time since the first arrival, {scene.unit}")
        axes.set_xlim(0, float(time[-1]))
        axes.set_ylim(0, 1.14 * highest)

    return draw


def _filled(run: NamedRun) -> str:
    """Mean of what is filled, of the mean of what is promised."""
    used, reserved = (run.summary[f"{name}_kv_bytes"]["mean"] for name in ("used", "reserved"))
    return f"{used / reserved:.0%}" if used is not None and reserved else "nothing"


def _caches(run: NamedRun) -> bool:
    cached = run.summary["cached_kv_bytes"]
    return cached is not None and cached["peak"] > 0


def _level(axes: Axes, text: str, at: float, offset_points: float) -> None:
    where = axes.get_yaxis_transform()
    axes.annotate(text, (0.99, at), xycoords=where, xytext=(0, offset_points), textcoords="offset points", fontsize=7,
                  ha="right", color=INK)  # fmt: skip


def draw_pool(runs: Sequence[NamedRun], options: PlotOptions) -> Figure:
    """The pool as a picture, blocks upwards and time to the right: one panel a run, simulated again for it."""
    start_s, end_s = options.window_s or (0.0, None)
    colours = STATES if options.colour_by == "state" else NO_OWNER
    panels, words = [], []
    there: set[int] = set()
    for run in runs:
        source = recorded(run, trace=options.traces.get(run.name), replica=options.replica)
        seen = inspect(source, start_s, end_s, pool_samples=POOL_SAMPLES, progress=options.told(run))
        assert seen.pool is not None
        codes = _states(seen.pool) if options.colour_by == "state" else _owners(seen.pool)
        there |= set(np.unique(codes).tolist())
        fills = (*colours.values(), *(OWNERS if colours is NO_OWNER else ()))
        panels.append(Panel(_picture(run.name, seen, blended(codes, fills, POOL_BANDS)), height=2.3))
        words.append(f"{run.name}: {_account(seen)}")
    key = patch_key([(name, fill) for at, (name, fill) in enumerate(colours.items()) if at in there and name != "free"])
    how = "White: free; a band of blocks has the mean of their colours, so that what is scattered is pale."
    if options.colour_by == "owner":
        how += f" Each colour is a request, used again after {len(OWNERS)}."
    caption = _sentences([audits_of(runs), *words, how, status_of(runs)])
    return sheet(title=title_of(runs), caption=caption, panels=panels, key=key, width=options.width)


def _account(seen: Stretch) -> str:
    """How much of the pool was held in the stretch, and how scattered what was free lay."""
    assert seen.pool is not None
    free = seen.pool.owners == FREE
    share = 1 - free.mean() if free.size else 0.0
    holes = np.diff(free.astype(np.int8), axis=1, prepend=0).clip(min=0).sum(axis=1)
    return (
        f"{seen.pool_blocks:,} blocks of {seen.block_size_tokens} tokens, {share:.0%} of them not free; those that are "
        f"lie in {np.median(holes) if len(holes) else 0:,.0f} stretches (median of {len(holes)} samples)."
    )


def _picture(name: str, seen: Stretch, picture: Floats) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        assert seen.pool is not None
        edges_s = np.append(seen.pool.times_ns, seen.end_ns) / 1e9
        minutes, thousands = edges_s[-1] > 600, seen.pool_blocks >= 10_000
        up = np.linspace(0, seen.pool_blocks / (1e3 if thousands else 1), picture.shape[1] + 1)
        image = picture.transpose(1, 0, 2)
        axes.pcolormesh(edges_s / (60 if minutes else 1), up, image, rasterized=True, linewidth=0)
        axes.grid(visible=False)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set(title=name, xlabel=f"time since the first arrival, {'min' if minutes else 's'}")
        axes.set_ylabel("block, thousands" if thousands else "block")

    return draw


def _states(pool: PoolMap) -> NDArray[np.int16]:
    """Per sample and block the place of its state in ``STATES``."""
    codes = np.zeros(pool.owners.shape, np.int16)
    held = pool.owners >= 0
    codes[held] = 1
    codes[held & pool.written] = 2
    for owner, at in ((SHARED, 3), (CACHED, 4), (LEAVING, 5)):
        codes[pool.owners == owner] = at
    return codes


def _owners(pool: PoolMap) -> NDArray[np.int16]:
    """Per sample and block its place in ``NO_OWNER``, or behind them its owner's in ``OWNERS``, used in turn."""
    codes = (pool.owners % len(OWNERS) + 4).astype(np.int16)
    for owner, at in ((FREE, 0), (SHARED, 1), (CACHED, 2), (LEAVING, 3)):
        codes[pool.owners == owner] = at
    return codes


def blended(codes: NDArray[np.int16], fills: Sequence[str], bands: int) -> Floats:
    """Blocks put together into at most so many bands of equal size, each with the mean of the colours of its blocks:
    float64 [samples, bands, 3].
    """
    samples, blocks = codes.shape
    edges = np.linspace(0, blocks, min(bands, blocks) + 1).astype(np.int64)
    sizes = np.diff(edges)
    mean = np.zeros((samples, len(sizes), 3))
    for code, fill in enumerate(fills):
        share = np.add.reduceat(codes == code, edges[:-1], axis=1, dtype=np.int64) / sizes
        mean += share[:, :, None] * np.array(to_rgb(fill))
    return np.asarray(mean.clip(0, 1), np.float64)


def _sentences(words: Sequence[str]) -> str:
    return " ".join(filter(None, words))

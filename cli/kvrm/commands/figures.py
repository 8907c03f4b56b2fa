"""``kvrm plot``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvrm import folders, parse, plotting
from kvrm.console import listing, note, progress_bars, say
from kvrm.flags import PluginOption, option

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        help="Folders of runs or of comparisons; or one folder of `kvrm validate`; or one study (a Parquet table).",
        show_default=False,
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """What is drawn, and where it is written."""

    kind: Annotated[
        list[str] | None,
        option("--kind", text="What to draw, repeatable. Default: all that fit and simulate nothing again."),
    ] = None
    list_kinds: Annotated[bool, option("--list-kinds", text="Say which kinds there are, and stop.")] = False
    out: Annotated[str | None, option("-o", "--out", text="Folder for the figures. Default: runs/plots-N.")] = None
    force: Annotated[bool, option("--force", text="Replace figures that are there.")] = False
    format: Annotated[
        list[str] | None, option("--format", text="Format, repeatable: png, svg, pdf. Default: png and svg.")
    ] = None
    width: Annotated[
        Literal["page", "column"],
        option("--width", text="Width at which it is shown: page (default, 7.2 inches) or column (3.5)."),
    ] = "page"
    name: Annotated[
        list[str] | None, option("--name", text="What to call a run in the figures, once for each of them.")
    ] = None
    slo: Annotated[
        list[str] | None,
        option(
            "--slo",
            metavar="BOUNDS",
            text="Bounds to draw in the distributions, e.g. 'ttft_p99 <= 2s and itl_p99 <= 50ms'. Repeatable.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Again:
    """Runs that are simulated again (pool, gaps)."""

    window: Annotated[
        str | None, option("--window", metavar="START:END", text="Seconds of the run in the picture of the pool.")
    ] = None
    colour_by: Annotated[
        Literal["state", "owner"],
        option("--colour-by", text="Of the pool's blocks: state (default), or owner, the request that holds them."),
    ] = "state"
    replica: Annotated[int | None, option("--replica", text="Which replica of a cluster's run.")] = None
    trace: Annotated[str | None, option("--trace", text="The trace, where it is not where it was.")] = None
    plugin: PluginOption = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Studies (heatmap, pareto, tornado)."""

    x: Annotated[
        str | None, option("--x", text="Column to the right: an axis of the heat map, a metric of the front.")
    ] = None
    y: Annotated[str | None, option("--y", text="Column upwards, likewise.")] = None
    metric: Annotated[str | None, option("--metric", text="What the heat map and the tornado show.")] = None
    by: Annotated[
        str | None,
        option("--by", text="Axis that tells panels or colours apart. Default: policy, where it varies."),
    ] = None


def plot(runs: Runs = None, *, drawing: Drawing, again: Again, study: Study) -> None:
    """Draw figures of runs, several runs overlaid under their names; of a validation; of a study's table."""
    if drawing.list_kinds:
        say(listing(plotting.plot_kinds()))
        return
    if not runs:
        raise typer.BadParameter("name at least one folder", param_hint="RUN")
    window_s = parse.window(again.window) if again.window is not None else None
    target = Path(drawing.out) if drawing.out is not None else folders.next_free(Path("runs"), "plots")
    with progress_bars() as progress:
        done = plotting.plot(
            runs,
            drawing.kind or (),
            out=target,
            force=drawing.force,
            formats=drawing.format or ("png", "svg"),
            names=drawing.name,
            width=drawing.width,
            slo=drawing.slo,
            window_s=window_s,
            colour_by=again.colour_by,
            replica=again.replica,
            trace=again.trace,
            x=study.x,
            y=study.y,
            metric=study.metric,
            by=study.by,
            progress=progress,
            plugins=again.plugin or (),
        )
    for left_out, why in done.left_out.items():
        note(f"{left_out}: not drawn: {why}")
    for path in done.files:
        say(str(path))

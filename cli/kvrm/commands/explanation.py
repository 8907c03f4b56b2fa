"""``kvrm explain``."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Literal

import typer

from kvrm import looking
from kvrm.console import progress_bars, say, say_text
from kvrm.flags import PluginOption


def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run.")],
    *,
    request: Annotated[
        int | None,
        typer.Option("--request", metavar="ID", help="The request: its row of the trace as replayed, from 0.",
                     show_default=False),
    ] = None,
    slowest: Annotated[
        Literal["e2e", "ttft", "queue", "tpot"] | None,
        typer.Option("--slowest", help="Instead: the slowest by this. Default: e2e.", show_default=False),
    ] = None,
    replica: Annotated[
        int | None,
        typer.Option("--replica", help="The slowest of this replica of a cluster's run.", show_default=False),
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", help="The trace, where it is not where it was.", show_default=False)
    ] = None,
    plugin: PluginOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object alone.")] = False,
) -> None:  # fmt: skip
    """Tell one request's life, part by part, and who it waited for. The run is simulated again for it."""
    from kvrm_analysis.life_text import render, to_dict

    if request is not None and (slowest is not None or replica is not None):
        raise typer.BadParameter("a request is named: leave out --slowest and --replica", param_hint="--request")
    with progress_bars() as progress:
        life = looking.explain(
            run,
            request,
            slowest=slowest or "e2e",
            replica=replica,
            trace=trace,
            progress=None if progress is None else lambda share: progress(run, share),
            plugins=plugin or (),
        )
    if json:
        say(json_text.dumps(to_dict(life), indent=2))
    else:
        say_text(render(life))

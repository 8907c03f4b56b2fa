"""``kvrm.plot``: figures of what was written by runs, validations and studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kvrm.folders import check_together, staged_together
from kvrm.presets import plugged

if TYPE_CHECKING:
    from kvrm.plugins import PartSource
    from kvrm_analysis.runs import RunLike
    from kvrm_traces import Trace

Width: TypeAlias = Literal["page", "column"]


@dataclass(frozen=True)
class Plots:
    """Matplotlib figures by kind; the files that were written; why kinds that nobody named are not among them."""

    figures: Mapping[str, Any]
    files: tuple[Path, ...]
    left_out: Mapping[str, str]


def plot(
    sources: Sequence[str | Path | RunLike],
    kinds: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    force: bool = False,
    formats: Sequence[str] = ("png", "svg"),
    names: Sequence[str] | None = None,
    width: Width = "page",
    slo: str | Sequence[str] | None = None,
    window_s: tuple[float, float | None] | None = None,
    colour_by: Literal["state", "owner"] = "state",
    replica: int | None = None,
    trace: str | Path | Trace | None = None,
    x: str | None = None,
    y: str | None = None,
    metric: str | None = None,
    by: str | None = None,
    progress: Callable[[str, float], None] | None = None,
    plugins: Sequence[PartSource] = (),
) -> Plots:
    """Draw runs (folders, comparisons, or results in memory), one validation's folder, or one study's table.

    ``kinds``: keys of :func:`plot_kinds`; none: all that fit and simulate nothing again. With ``out`` each figure is
    written into that folder, as KIND.png and so on (``formats``: png, svg, pdf); files that exist are refused unless
    ``force``. ``slo``: bounds such as ``ttft_p99 <= 2s``, drawn in the distributions. ``window_s``, ``colour_by``: of
    the picture of the pool. ``replica``: of a cluster's run. ``trace``: the file where it is now, or an opened trace
    as it was replayed.
    ``x``, ``y``, ``metric``, ``by``: columns of a study. Raises InputError, and RunError when a run that is simulated
    again is another one.
    """
    from kvrm_analysis.drawing.plot_options import PlotOptions
    from kvrm_analysis.drawing.plot_study import StudyOptions
    from kvrm_analysis.drawing.plots import draw_kinds
    from kvrm_analysis.drawing.sheet import COLUMN, PAGE
    from kvrm_analysis.searches.slo import parse_slo

    _check_formats(formats)
    inches = PAGE if width == "page" else COLUMN
    traces: dict[str, Trace] = {}
    with plugged(plugins):
        if trace is not None:
            traces = _traces(sources, names, trace)
        options = PlotOptions(
            width=inches,
            slo=parse_slo(slo, "--slo") if slo else None,
            window_s=window_s,
            colour_by=colour_by,
            traces=traces,
            replica=replica,
            progress=progress,
        )
        study = StudyOptions(x=x, y=y, metric=metric, by=by, width=inches)
        if out is not None and kinds:
            check_together(_files(Path(out), kinds, formats), kind="figure", force=force)
        drawn = draw_kinds(sources, kinds, names=names, options=options, study=study)
    files = () if out is None else _write(drawn.figures, Path(out), formats, force, progress)
    return Plots(drawn.figures, files, drawn.left_out)


def plot_kinds() -> dict[str, str]:
    """The kinds of figures, each with what it shows."""
    from kvrm_analysis.drawing.plots import KINDS

    again = " (simulates again)"
    return {name: f"{kind.source}: {kind.shows}{again if kind.again else ''}" for name, kind in KINDS.items()}


def _traces(
    sources: Sequence[str | Path | RunLike], names: Sequence[str] | None, trace: str | Path | Trace
) -> dict[str, Trace]:
    """The one trace that was named, for every run: an opened one as it is, a file cut and scaled as the run's was."""
    from kvrm.api import open_trace
    from kvrm_analysis.recorded import as_replayed
    from kvrm_analysis.runs import open_runs

    runs = open_runs(sources, names)
    if not isinstance(trace, (str, Path)):
        return {run.name: trace for run in runs}
    opened = open_trace(trace)
    return {run.name: as_replayed(run, opened) for run in runs}


def _check_formats(formats: Sequence[str]) -> None:
    from kvrm_analysis.drawing.style import FORMATS
    from kvrm_traces.errors import InputError

    for name in formats:
        if name not in FORMATS:
            raise InputError(f"format {name!r}: should be one of {', '.join(FORMATS)}")


def _files(folder: Path, kinds: Sequence[str], formats: Sequence[str]) -> list[Path]:
    return [folder / f"{kind}.{name}" for kind in kinds for name in formats]


def _write(
    figures: Mapping[str, Any],
    folder: Path,
    formats: Sequence[str],
    force: bool,
    progress: Callable[[str, float], None] | None,
) -> tuple[Path, ...]:
    from kvrm_analysis.drawing.plots import told
    from kvrm_analysis.drawing.style import save_as

    targets = _files(folder, list(figures), formats)
    if not targets:
        return ()
    with staged_together(targets, kind="figure", force=force) as unfinished:
        for path in told("writing", unfinished, progress):
            save_as(figures[path.stem], path)
    return tuple(targets)

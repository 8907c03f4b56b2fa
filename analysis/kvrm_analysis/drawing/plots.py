"""The kinds of figures that ``kvrm plot`` draws, by what they are drawn from: runs, a validation, a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from matplotlib.figure import Figure

from kvrm_analysis.drawing import plot_latency, plot_memory, plot_study, plot_time
from kvrm_analysis.drawing.plot_options import PlotOptions
from kvrm_analysis.drawing.plot_study import StudyOptions
from kvrm_analysis.drawing.plot_validation import draw_validation_figure, load_validation
from kvrm_analysis.runs import NamedRun, RunLike, open_runs
from kvrm_analysis.studies.study_table import NAMES, StudyTable, load_study
from kvrm_sim.errors import InputError
from kvrm_sim.tables import guess

T = TypeVar("T")

Source: TypeAlias = Literal["runs", "validation", "study"]


class Kind(NamedTuple):
    """A kind of figure: what it is drawn from, what it shows, and whether runs are simulated again for it."""

    source: Source
    shows: str
    again: bool = False


KINDS: dict[str, Kind] = {
    "latency": Kind("runs", "distributions of queue time, TTFT, TPOT and E2E, with SLO lines"),
    "gaps": Kind("runs", "distribution and tail of the gaps between tokens", again=True),
    "time": Kind("runs", "load, queue, batch, output and latencies over time, bursts shaded"),
    "memory": Kind("runs", "memory set aside, reserved, allocated and used over time"),
    "pool": Kind("runs", "the pool as a picture: blocks over time, by state or owner", again=True),
    "transfers": Kind("runs", "lengths of runs of blocks, transfer groups over time"),
    "bytes": Kind("runs", "bytes copied into staging, needed and read"),
    "parts": Kind("runs", "the parts of a step as stacked areas over time"),
    "padding": Kind("runs", "padding, launches and captures over time"),
    "validation": Kind("validation", "predicted against measured steps"),
    "heatmap": Kind("study", "a metric over two axes of a sweep"),
    "pareto": Kind("study", "two metrics of every cell of a sweep, and their front"),
    "tornado": Kind("study", "how far each axis of a sweep moves a metric"),
}

_OF_RUNS: dict[str, Callable[[Sequence[NamedRun], PlotOptions], Figure]] = {
    "latency": plot_latency.draw_latency,
    "gaps": plot_latency.draw_gaps,
    "time": plot_time.draw_time,
    "memory": plot_memory.draw_memory,
    "pool": plot_memory.draw_pool,
    "transfers": plot_time.draw_transfers,
    "bytes": plot_time.draw_bytes,
    "parts": plot_time.draw_parts,
    "padding": plot_time.draw_padding,
}
_OF_STUDIES: dict[str, Callable[[StudyTable, StudyOptions], Figure]] = {
    "heatmap": plot_study.draw_heatmap,
    "pareto": plot_study.draw_pareto,
    "tornado": plot_study.draw_tornado,
}


@dataclass(frozen=True)
class Drawn:
    """Figures by kind, and why a kind that nobody named was left out."""

    figures: dict[str, Figure]
    left_out: dict[str, str]


def source_of(path: Path) -> Source:
    """What lies there. Anything that is neither a validation nor a study is read as a run, which says what is wrong."""
    if (path / "report.json").is_file():
        return "validation"
    if path.suffix == ".parquet" or (path.is_dir() and not (path / "summary.json").is_file() and _table_in(path)):
        return "study"
    return "runs"


def _table_in(folder: Path) -> bool:
    return any((folder / name).is_file() for name in NAMES) or any(folder.glob("*.parquet"))


def draw_kinds(
    sources: Sequence[str | Path | RunLike],
    kinds: Sequence[str] = (),
    *,
    names: Sequence[str] | None = None,
    options: PlotOptions | None = None,
    study: StudyOptions | None = None,
) -> Drawn:
    """Draw figures of runs, or of one validation, or of one study. ``kinds``: keys of ``KINDS``; none: every one that
    fits the source, has something to show and needs no run again. Raises InputError for what does not go together.
    """
    found = {source_of(Path(source)) if isinstance(source, (str, Path)) else "runs" for source in sources}
    if len(found) != 1:
        raise InputError(f"{len(sources)} sources of {len(found)} kinds: give runs, or one validation, or one study")
    (source,) = found
    _check(kinds, source)
    chosen, of_study = options or PlotOptions(), study or StudyOptions()
    _refuse_unused(kinds or _usual(source), chosen, of_study)
    if source != "runs":
        (only,) = _only(sources, source)
        return _draw_other(source, only, kinds, names, chosen, of_study)
    runs = open_runs(sources, names)
    left_out: dict[str, str] = {}
    if not kinds:
        fitting = _usual("runs")
        left_out = {name: why for name in fitting if (why := _nothing(name, runs)) is not None}
        kinds = [name for name in fitting if name not in left_out]
    figures = {name: _OF_RUNS[name](runs, chosen) for name in told("drawing", kinds, chosen.progress)}
    return Drawn(figures, left_out)


def told(what: str, names: Sequence[T], progress: Callable[[str, float], None] | None) -> Iterator[T]:
    """The names in turn, each time telling how much of it is done."""
    for at, name in enumerate(names):
        if progress is not None:
            progress(what, at / len(names))
        yield name
    if progress is not None:
        progress(what, 1.0)


def _usual(source: Source) -> list[str]:
    """The kinds that are drawn where none is named."""
    return [name for name, kind in KINDS.items() if kind.source == source and not kind.again]


def _check(kinds: Sequence[str], source: Source) -> None:
    fitting = [name for name, kind in KINDS.items() if kind.source == source]
    for name in kinds:
        if name not in fitting:
            other = f"is drawn of {_WORDS[KINDS[name].source]}" if name in KINDS else f"is unknown{guess(name, KINDS)}"
            raise InputError(f"kind {name!r} {other}; of {_WORDS[source]} there are {', '.join(fitting)}")


def _refuse_unused(kinds: Sequence[str], options: PlotOptions, study: StudyOptions) -> None:
    """An option that no figure looks at is refused."""
    given = {
        "slo": (options.slo is not None, ("latency", "gaps")),
        "window": (options.window_s is not None, ("pool",)),
        "colour-by": (options.colour_by != "state", ("pool",)),
        "replica": (options.replica is not None, ("pool", "gaps")),
        "trace": (bool(options.traces), ("pool", "gaps")),
        "x": (study.x is not None, ("heatmap", "pareto")),
        "y": (study.y is not None, ("heatmap", "pareto")),
        "metric": (study.metric is not None, ("heatmap", "tornado")),
        "by": (study.by is not None, ("heatmap", "pareto")),
    }
    for name, (there, of) in given.items():
        if there and not set(of) & set(kinds):
            raise InputError(f"{name}: only kind {' and '.join(of)} takes it; drawn here: {', '.join(kinds)}")


_WORDS: dict[Source, str] = {"runs": "runs", "validation": "a validation", "study": "a study"}


def _only(sources: Sequence[str | Path | RunLike], source: Source) -> list[Path]:
    paths = [Path(path) for path in sources if isinstance(path, (str, Path))]
    if len(paths) != 1:
        raise InputError(f"{len(paths)} sources: a figure is of one {source}")
    return paths


def _draw_other(
    source: Source,
    path: Path,
    kinds: Sequence[str],
    names: Sequence[str] | None,
    options: PlotOptions,
    study: StudyOptions,
) -> Drawn:
    if names:
        raise InputError(f"names {', '.join(names)}: only runs are named")
    if source == "validation":
        return Drawn({"validation": draw_validation_figure(*load_validation(path), width=options.width)}, {})
    table = load_study(path)
    left_out: dict[str, str] = {}
    if not kinds:
        left_out = {kind: why for kind in _usual("study") if (why := _not_of(kind, table, study)) is not None}
        kinds = [name for name in _usual("study") if name not in left_out]
    figures = {name: _OF_STUDIES[name](table, study) for name in told("drawing", kinds, options.progress)}
    return Drawn(figures, left_out)


def _not_of(kind: str, table: StudyTable, options: StudyOptions) -> str | None:
    """Why a figure that nobody named is not drawn of a study, or None."""
    if kind == "heatmap" and len(table.axes) < 2:
        return f"{len(table.axes)} axes vary, it needs two"
    for name, given in (("x", options.x), ("y", options.y)):
        if given is not None and kind in ("heatmap", "pareto") and table.is_axis(given) != (kind == "heatmap"):
            return f"{name} = {given} is {'an axis' if kind == 'pareto' else 'a metric'}"
    return None


def _nothing(kind: str, runs: Sequence[NamedRun]) -> str | None:
    """Why a figure would show nothing, or None."""
    if kind == "latency" and all(run.requests is None for run in runs):
        return "requests were not recorded"
    if all(run.steps.num_rows == 0 for run in runs):
        return "no step ran"
    if kind == "bytes" and not any(run.summary["transfer"]["bytes_moved"] for run in runs):
        return "nothing was copied into staging"
    if kind == "padding" and not any(run.summary["padding_waste"] is not None for run in runs):
        return "no step ran in a graph"
    return None

"""The public functions about traces: open, merge, inspect, fetch, convert.

Imports of the parts are inside the functions, so that ``import kvrm`` stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvrm.folders import refuse_source, staged, staged_together

if TYPE_CHECKING:
    from kvrm_sim.model import ModelSpec
    from kvrm_traces import Fit, Trace, TraceReport
    from kvrm_traces.fetching import Fetched


def opened(trace: str | Path | Trace) -> Trace:
    """The trace itself, or the one of this path or name."""
    return open_trace(trace) if isinstance(trace, (str, Path)) else trace


def open_trace(
    source: str | Path,
    *,
    format: str | None = None,
    unit: str | None = None,
    columns: Mapping[str, str] | None = None,
    strict: bool = False,
    missing_timestamp: Literal["refuse", "zero"] = "refuse",
    seed: int = 0,
    rows: int | None = None,
    arrivals: str | None = None,
    hash_block_tokens: int | None = None,
    hash_tolerance_blocks: int = 0,
    turns: Literal["cumulative", "delta"] | None = None,
) -> Trace:
    """Open a trace file, or a built-in trace by name. See :func:`kvrm_traces.open_trace`.

    A trace is cut and scaled with its methods ``spread_ties``, ``jitter``, ``window``, ``idle_cap``, ``sample``,
    ``limit``, ``replicas``, ``speedup``, ``time_stretch`` and ``at_rate``; :func:`merge_traces` puts several together.
    ``with_think`` gives its turns times to think, which ``driver="closed-loop"`` needs.
    """
    import kvrm_traces

    return kvrm_traces.open_trace(
        source,
        format=format,
        unit=unit,
        columns=columns,
        strict=strict,
        missing_timestamp=missing_timestamp,
        seed=seed,
        rows=rows,
        arrivals=arrivals,
        hash_block_tokens=hash_block_tokens,
        hash_tolerance_blocks=hash_tolerance_blocks,
        turns=turns,
    )


def check_think(spec: str) -> None:
    """Raise TraceError for times to think that ``Trace.with_think`` would refuse on any trace."""
    from kvrm_traces.thinking import parse_think

    parse_think(spec)


def merge_traces(traces: Sequence[str | Path | Trace]) -> Trace:
    """Several traces as one, in order of arrival, each beginning at 0. See :func:`kvrm_traces.merge_traces`."""
    import kvrm_traces

    return kvrm_traces.merge_traces([opened(trace) for trace in traces])


def inspect_trace(
    trace: str | Path | Trace,
    *,
    model: str | Path | ModelSpec | None = None,
    max_context_tokens: int | None = None,
    out: str | Path | None = None,
    force: bool = False,
) -> TraceReport:
    """Statistics of a trace: rate, burstiness, lengths, order, duplicates, sessions, prefix reuse, windows proposed.

    ``model``: a name of ``catalogue("models")``, a TOML file or the object; requests beyond its context, or beyond
    ``max_context_tokens``, are counted. ``out``: a page of figures, PNG and SVG beside each other, by the name of
    either; existing files are refused unless ``force``. Raises InputError.
    """
    import kvrm_traces

    limit_tokens = context_limit(model, max_context_tokens)
    if out is None:
        return kvrm_traces.inspect_trace(opened(trace), limit_tokens=limit_tokens)
    with staged_together(page_files(out), kind="figure", force=force) as unfinished:
        from kvrm_analysis.drawing.trace_page import trace_page

        report = kvrm_traces.inspect_trace(opened(trace), limit_tokens=limit_tokens)
        trace_page(report, unfinished[0])
    return report


def page_files(out: str | Path) -> tuple[Path, Path]:
    """The PNG and the SVG of a page of figures. Raises InputError for the name of another kind of file."""
    from kvrm_traces.errors import InputError

    if Path(out).suffix not in (".png", ".svg", ""):
        raise InputError(f"{out}: a page is written as PNG and SVG; give it a name that ends in .png")
    return Path(out).with_suffix(".png"), Path(out).with_suffix(".svg")


def context_limit(model: str | Path | ModelSpec | None, max_context_tokens: int | None) -> int | None:
    """The tokens that a request may have, prompt and output together; None: no limit was asked about.

    Raises InputError for a model that there is not, and a limit that is none or that the model does not have.
    """
    from kvrm_traces.errors import InputError

    if max_context_tokens is not None and max_context_tokens < 1:
        raise InputError(f"max_context_tokens = {max_context_tokens}: must be a context of 1 token or more")
    if model is None:
        return max_context_tokens
    from kvrm_sim.config import load_model

    spec = load_model(model) if isinstance(model, (str, Path)) else model
    if max_context_tokens is None:
        return spec.max_context_tokens
    if max_context_tokens > spec.max_context_tokens:
        raise InputError(
            f"max_context_tokens = {max_context_tokens}: {spec.name} has a context of {spec.max_context_tokens}"
        )
    return max_context_tokens


def fetch_trace(
    name: str,
    *,
    source: str | Path | None = None,
    folder: str | Path | None = None,
    force: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> Fetched:
    """Bring a public data set (a name of ``catalogue("datasets")``) into the user's cache; its name then opens it.

    See :func:`kvrm_traces.fetching.fetch`. ``source``: a copy at hand. ``folder``: another cache.
    """
    from kvrm_traces.datasets import dataset_named
    from kvrm_traces.fetching import fetch

    return fetch(
        dataset_named(name),
        source=None if source is None else Path(source),
        folder=None if folder is None else Path(folder),
        force=force,
        progress=progress,
    )


def fit_trace(trace: str | Path | Trace, *, out: str | Path | None = None, force: bool = False, seed: int = 0) -> Fit:
    """A generator that resembles a trace, and how well: see :func:`kvrm_traces.fit_trace`.

    ``out``: a TOML file to write, which is then a trace like any other; an existing one is refused unless ``force``.
    """
    import kvrm_traces

    if out is None:
        return kvrm_traces.fit_trace(opened(trace), seed=seed)
    target = Path(out)
    if target.suffix != ".toml":
        raise kvrm_traces.InputError(f"{target}: a generator is a TOML file; give it a name that ends in .toml")
    if isinstance(trace, (str, Path)):
        refuse_source(target, trace)
    with staged(target, kind="file", force=force) as unfinished:
        fit = kvrm_traces.fit_trace(opened(trace), seed=seed)
        unfinished.write_text(fit.toml, encoding="utf-8")
    return fit


def convert_trace(trace: str | Path | Trace, out: str | Path, *, force: bool = False) -> Path:
    """Write a trace as canonical Parquet; replaying the file gives the identical result. Returns the file's path.

    An existing file is refused unless ``force``, and the file that is read always. Raises InputError.
    """
    target = Path(out)
    if isinstance(trace, (str, Path)):
        refuse_source(target, trace)
    source = opened(trace)
    with staged(target, kind="file", force=force) as unfinished:
        source.to_parquet(unfinished)
    return target

"""What every table and figure reads: a run's summary and its records, from memory or from a folder."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from kvrm_sim.errors import InputError
from kvrm_sim.records import load_run


class RunLike(Protocol):
    """``kvrm_sim.records.Run`` (read from a folder) and ``kvrm_sim.engine.RunResult`` (just simulated) both are one."""

    @property
    def summary(self) -> dict[str, Any]:
        """The RUN object (DESIGN section 7)."""

    @property
    def steps(self) -> pa.Table:
        """The columns of steps.parquet."""

    @property
    def requests(self) -> pa.Table | None:
        """The columns of requests.parquet; None when they were not kept."""


@dataclass(frozen=True)
class NamedRun:
    """A run under the name that figures and tables give it; itself a RunLike. ``folder``: None where it has none."""

    name: str
    run: RunLike
    folder: Path | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The RUN object (DESIGN section 7)."""
        return self.run.summary

    @property
    def steps(self) -> pa.Table:
        """The columns of steps.parquet."""
        return self.run.steps

    @property
    def requests(self) -> pa.Table | None:
        """The columns of requests.parquet; None when they were not kept."""
        return self.run.requests

    @property
    def pool(self) -> pa.Table | None:
        """The columns of pool.parquet; None when they were not kept."""
        return getattr(self.run, "pool", None)

    def document(self) -> dict[str, Any]:
        """run.toml: the configuration, [trace] and [run]. Raises InputError where there is none."""
        if self.folder is None:
            raise InputError(f"run {self.name!r} was not written to a folder, so it has no run.toml")
        return run_document(self.folder)


def run_document(folder: Path) -> dict[str, Any]:
    """run.toml of a run's folder, as TOML gives it. Raises InputError when it is not there or is no TOML."""
    path = folder / "run.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not TOML: {error}") from error


def open_runs(sources: Iterable[str | Path | RunLike], names: Sequence[str] | None = None) -> list[NamedRun]:
    """Runs from folders (of one run, or that hold the folders of several) and from memory, each with a distinct name.

    ``names``: as many as there are runs; without, a run is called by its policy, with what tells it from the others.
    Raises InputError for a folder that is no run's, for no run at all, for one that is given twice, and for names that
    are not distinct.
    """
    found: list[tuple[RunLike, Path | None]] = []
    for source in sources:
        if isinstance(source, (str, Path)):
            found += [(load_run(folder), folder) for folder in _run_folders(Path(source))]
        else:
            found.append((source, getattr(source, "folder", None)))
    _refuse_twice(found)
    chosen = _names(found, names)
    return [NamedRun(name, run, folder) for name, (run, folder) in zip(chosen, found, strict=True)]


def _refuse_twice(found: Sequence[tuple[RunLike, Path | None]]) -> None:
    """A run beside itself would be drawn and counted twice, under two names."""
    seen: dict[Path | int, Path | None] = {}
    for run, folder in found:
        itself = id(run) if folder is None else folder.resolve()
        if itself in seen:
            name = run.summary["policy"] if folder is None else folder
            before = seen[itself]
            also = f", as {before} too" if before != folder else ""
            raise InputError(f"{name} is given twice{also}: name each run once")
        seen[itself] = folder


def _run_folders(folder: Path) -> list[Path]:
    """The folder itself, or those of the runs in it: of a comparison in the order of its summary, else by name."""
    inside = sorted(path.parent for path in folder.glob("*/summary.json"))
    try:
        document = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        count = len(document["runs"])
    except FileNotFoundError:
        return inside or [folder]  # load_run says what is wrong with it
    except (OSError, ValueError, KeyError, TypeError):
        return [folder]
    if count < 2 and not inside:
        return [folder]
    policies = [str(run["policy"]) for run in document["runs"]]
    return sorted(inside, key=lambda path: next((at for at, name in enumerate(policies) if name == path.name), count))


def _names(found: Sequence[tuple[RunLike, Path | None]], names: Sequence[str] | None) -> list[str]:
    summary = summaries(run for run, _ in found)
    if names:
        if len(names) != len(found) or len(set(names)) < len(names):
            given, runs = ", ".join(names), ", ".join(labels(summary))
            raise InputError(f"names {given}: should be as many distinct names as runs ({runs})")
        return list(names)
    by_policy = [str(run["policy"]) for run in summary]
    folders = [folder.name if folder is not None else "" for _, folder in found]
    if len(set(by_policy)) < len(by_policy) and len(set(folders)) == len(folders):
        return folders
    return labels(summary)


def summaries(runs: Iterable[RunLike]) -> list[dict[str, Any]]:
    """The summaries of at least one run. Raises InputError when there is none."""
    found = [run.summary for run in runs]
    if not found:
        raise InputError("no run was given: a comparison needs at least one")
    return found


def labels(runs: Sequence[dict[str, Any]]) -> list[str]:
    """A distinct name for each run: its policy, with what differs (trace, model, hardware) or a number where needed."""
    names = [str(run["policy"]) for run in runs]
    for key in ("model", "hardware", "trace"):
        values = [run[key]["name"] if key == "trace" else str(run[key]) for run in runs]
        if len(set(names)) < len(names) and len(set(values)) > 1:
            names = [f"{name} · {value}" for name, value in zip(names, values, strict=True)]
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in distinct:
            candidate, number = f"{name} ({number})", number + 1
        distinct.append(candidate)
    return distinct

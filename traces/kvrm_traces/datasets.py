"""The public data sets that can be fetched by name: what each is, its licence, where it is, and what its bytes are."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

import platformdirs

from kvrm_traces.errors import TraceError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """One file that others publish. ``sha256`` None: there was no copy to compute it of; ``unchecked`` says why.

    ``addresses`` are tried in order. ``bytes``: its length, where it is known.
    """

    name: str
    about: str
    licence: str
    page: str
    file: str
    addresses: tuple[str, ...]
    bytes: int | None = None
    sha256: str | None = None
    unchecked: str | None = None


@cache
def datasets() -> dict[str, Dataset]:
    """All of them, by name."""
    table = tomllib.loads((files("kvrm_traces") / "datasets.toml").read_text(encoding="utf-8"))
    return {
        name: Dataset(name=name, **{**fields, "addresses": tuple(fields["addresses"])})
        for name, fields in table.items()
    }


def dataset_named(name: str) -> Dataset:
    """The data set of this name. Raises TraceError with the nearest known one."""
    if name in datasets():
        return datasets()[name]
    near = difflib.get_close_matches(name, datasets(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(datasets())}"
    raise TraceError(f"{name!r} is no public data set; {hint}")


def cache_folder() -> Path:
    """Where fetched files are kept: ``traces`` in the user's cache of kvrm."""
    return Path(platformdirs.user_cache_dir("kvrm")) / "traces"


def cached_path(dataset: Dataset, folder: Path | None = None) -> Path:
    """Where its file is once it was fetched."""
    return (cache_folder() if folder is None else folder) / dataset.name / dataset.file


def fetched_path(name: str, called: str) -> Path:
    """Where the data set of this name is; `called`: what was asked for. Raises TraceError where it was not fetched."""
    path = cached_path(datasets()[name])
    if not path.is_file():
        what = "" if called == name else f"{name} "
        raise TraceError(f"{called}: {what}is a public data set that is not here yet; kvrm trace fetch {name}")
    return path

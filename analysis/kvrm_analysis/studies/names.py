"""The names in a study: the presets, files and traces that its values stand for, looked up before there is a cell.

A name that stands for nothing is wrong in every cell that has it, so it is an error of the study. What a cell makes of
names that are known (a model that does not fit its device) only the cell can say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvrm_analysis.studies.axes import Axis, Dimension
from kvrm_sim.config import hardware_names, load_hardware, load_model, load_policy, model_names, policy_names
from kvrm_sim.errors import ConfigError
from kvrm_sim.routers import router_parts
from kvrm_sim.tables import nearest
from kvrm_traces import BUILTINS
from kvrm_traces.datasets import cached_path, datasets

_LOADED: dict[str, tuple[Callable[[str], Any], Callable[[], tuple[str, ...]]]] = {
    "policy": (load_policy, policy_names),
    "model": (load_model, model_names),
    "hardware": (load_hardware, hardware_names),
}
_TRACE = "trace.source"


def is_file_name(name: str) -> bool:
    """The name of a policy, a model or a device is a file's, not a preset's."""
    return name.endswith(".toml") or "/" in name or "\\" in name


def located(name: str, folder: Path | None) -> str:
    """A file that a study names, relative to the study's folder; a preset's name as it is."""
    return str(folder / name) if folder is not None and is_file_name(name) else name


def located_trace(source: str, folder: Path | None) -> str:
    """The same of a trace: a built-in one and a data set stay names, where no file of the study's is called so."""
    path = Path(source) if folder is None else folder / source
    named = source in BUILTINS or (Path(source).parts[:1] and Path(source).parts[0] in datasets() and not path.exists())
    return source if named else str(path)


def check_name(where: str, key: str, value: Any, folder: Path | None) -> None:
    """Raise ConfigError where a value of a (checked) key stands for nothing, with the nearest name that is known.

    ``where``: what goes before the key in a message, as ``axes.``. Values of other keys are passed over.
    """
    if not isinstance(value, str):
        return
    label = f"{where}{'trace' if key == _TRACE else key} = {value!r}"
    if key == _TRACE:
        _check_trace(label, value, folder)
    elif key in _LOADED:
        load, names = _LOADED[key]
        if not is_file_name(value) and value not in names():
            hint = f"unknown{nearest(value, names())}; or give the path of a .toml file"
            raise ConfigError(f"{label}: {hint}", key, value)
        try:
            load(located(value, folder))
        except ConfigError as error:
            raise ConfigError(f"{label}: {error.message}", error.key or key, value) from None
    elif key == "router":
        try:
            router_parts(value)
        except ConfigError as error:
            raise ConfigError(f"{label}: {error.message}", key, value) from None


def check_names(where: str, of: Axis | Dimension, folder: Path | None) -> None:
    """The same of every value of an axis."""
    for value in of.values if isinstance(of, Axis) else ():
        check_name(where, of.key, value, folder)


def _check_trace(label: str, value: str, folder: Path | None) -> None:
    source = located_trace(value, folder)
    # What lies inside an archive stands behind its path, or behind the name of a data set.
    path = Path(source)
    if source in BUILTINS or path.exists() or any(parent.is_file() for parent in path.parents):
        return
    if (name := path.parts[0]) in datasets():
        if cached_path(datasets()[name]).is_file():
            return
        raise ConfigError(f"{label}: a public data set that is not here yet; kvrm trace fetch {name}", _TRACE, value)
    if "/" in value or "\\" in value or Path(value).suffix:
        raise ConfigError(f"{label}: no such file: {source}", _TRACE, value)
    raise ConfigError(f"{label}: unknown{nearest(value, BUILTINS)}; or give the path of a file", _TRACE, value)

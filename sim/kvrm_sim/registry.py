"""Named presets and the user's own files: policies, models, hardware.

A name is a TOML file of the package's ``presets/`` folder; anything that ends in ``.toml`` or holds a path separator
is a file of the user's. A user's file may start from a preset with ``base = "kv-rm"`` and change single keys.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from kvrm_sim.errors import ConfigError
from kvrm_sim.hardware import HardwareProfile
from kvrm_sim.model import ModelSpec
from kvrm_sim.policy import Policy
from kvrm_sim.tables import Table, merged, nearest, parse_toml, prefixed, read_toml

T = TypeVar("T", bound=Table)

_PRESETS = resources.files("kvrm_sim") / "presets"


def policy_names() -> tuple[str, ...]:
    """The policy presets, sorted."""
    return _names("policies")


def model_names() -> tuple[str, ...]:
    """The model presets, sorted."""
    return _names("models")


def hardware_names() -> tuple[str, ...]:
    """The hardware presets, sorted."""
    return _names("hardware")


def load_policy(name_or_path: str | Path) -> Policy:
    """A policy preset by name, or a TOML file. Raises ``ConfigError`` with the nearest name, or the file and key."""
    return _load(Policy, "policies", "policy", name_or_path)


def load_model(name_or_path: str | Path) -> ModelSpec:
    """A model preset by name, or a model's TOML file."""
    return _load(ModelSpec, "models", "model", name_or_path)


def load_hardware(name_or_path: str | Path) -> HardwareProfile:
    """A hardware preset by name, or a profile's TOML file (``kvrm calibrate`` writes one)."""
    return _load(HardwareProfile, "hardware", "hardware", name_or_path)


def _names(folder: str) -> tuple[str, ...]:
    entries = (_PRESETS / folder).iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")))


def _preset(folder: str, kind: str, name: str) -> dict[str, Any]:
    names = _names(folder)
    if name not in names:
        raise ConfigError(
            f"{kind} {name!r} is unknown{nearest(name, names)}; or give the path of a .toml file", kind, name
        )
    return parse_toml((_PRESETS / folder / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")


def _load(table: type[T], folder: str, kind: str, name_or_path: str | Path) -> T:
    text = str(name_or_path)
    if not (isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text):
        return table.from_dict(_preset(folder, kind, text))
    path = Path(name_or_path)
    try:
        values = parse_toml(read_toml(path), str(path))
        if "base" in values:
            base = _preset(folder, kind, str(values.pop("base")))
            values = merged(base, {"name": path.stem, **values})
        return table.from_dict(values)
    except ConfigError as error:
        raise prefixed(error, str(path)) from None

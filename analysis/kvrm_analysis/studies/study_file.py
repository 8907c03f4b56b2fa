"""A study's TOML file: what every command that explores parameters reads of it (docs/sweeps.md).

``[base]`` is the configuration that all cells share, ``constraints`` hold for each of them, ``plugins`` are files of
users' parts. What only one command reads stays in ``sections``, as TOML gave it. Relative paths in a study are relative
to its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvrm_analysis.engines.replicas import DEFAULT_HARDWARE, DEFAULT_MODEL
from kvrm_analysis.studies.cells import DEFAULT_POLICY
from kvrm_analysis.studies.constraints import Constraint
from kvrm_analysis.studies.names import check_name, located
from kvrm_analysis.studies.settings import RunSettings, TraceOptions, checked, checked_key, flattened
from kvrm_sim.config import ReplicaConfig, load_hardware, load_model, load_policy
from kvrm_sim.errors import ConfigError
from kvrm_sim.plugin_registry import using
from kvrm_sim.tables import nearest, parse_toml, prefixed, read_toml

T = TypeVar("T")

#: What every cell has, whether the study says it or not.
DEFAULTS: Mapping[str, Any] = {
    "policy": DEFAULT_POLICY,
    "model": DEFAULT_MODEL,
    "hardware": DEFAULT_HARDWARE,
    "seed": 0,
}

COMMON = ("name", "description", "base", "constraints", "plugins")
#: What `kvrm sweep` reads beside them, and the tables of other commands: each command passes over the others'.
OF_A_SWEEP = ("axes", "variants", "sample", "repeats", "confidence", "max_cells")
OF_OTHERS = ("tune", "sensitivity", "capacity")


@dataclass(frozen=True)
class StudyFile:
    """A study as written. ``base`` is flat and checked, with DEFAULTS in it; ``text`` is the file's, "" without one."""

    name: str
    base: Mapping[str, Any]
    constraints: tuple[Constraint, ...] = ()
    plugins: tuple[str, ...] = ()
    folder: Path | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    def path(self, name: str) -> str:
        """A file that the study names."""
        return name if self.folder is None else str(self.folder / name)

    def allows(self, settings: Mapping[str, Any]) -> bool:
        """Whether settings satisfy every constraint. Raises ConfigError where one cannot be told."""
        return self.missed(settings) is None

    def missed(self, settings: Mapping[str, Any]) -> Constraint | None:
        """The first constraint that settings do not satisfy. Raises ConfigError where one cannot be told."""
        for constraint in self.constraints:
            if not constraint.holds(lambda key: self.value_of(settings, key)):
                return constraint
        return None

    def value_of(self, settings: Mapping[str, Any], key: str) -> Any:
        """What a key is in a cell: what is set, or what its preset says, or its default."""
        if settings.get(key) is not None:
            return settings[key]
        section, _, rest = key.partition(".")
        loaders = {"policy": load_policy, "model": load_model, "hardware": load_hardware}
        if section in loaders and rest:
            name = str(settings[section])
            found: Any = loaders[section](located(name, self.folder))
            for part in rest.split("."):
                found = getattr(found, part, None)
            return getattr(found, "value", found)  # a coefficient is its number
        if section == "trace" and rest:
            return TraceOptions.model_fields[rest].default
        table = RunSettings if key in RunSettings.model_fields else ReplicaConfig
        return table.model_fields[key].default


def read_study(path: str | Path) -> StudyFile:
    """Read a study. Raises ConfigError that names the file, the key, the value and what would be right."""
    file = Path(path)
    text = read_toml(file)
    try:
        return study_of(parse_toml(text, str(file)), name=file.stem, folder=file.parent, text=text)
    except ConfigError as error:
        hint = ""
        if any(words in error.message for words in ("Cannot mutate immutable namespace", "Cannot overwrite a value")):
            hint = '; a key below one that has a value is written in quotes: "policy.pager.block_size_tokens" = 32'
        raise prefixed(ConfigError(f"{error.message}{hint}", error.key, error.value), str(file)) from None


def parsed_study(study: str | Path | Mapping[str, Any], parse: Callable[[StudyFile], T]) -> T:
    """What a command reads of a study, from its file or the same as nested values. Raises ConfigError, which names the
    file where there is one.
    """
    if isinstance(study, Mapping):
        return parse(study_of(study))
    file = read_study(study)
    try:
        return parse(file)
    except ConfigError as error:
        raise prefixed(error, str(study)) from None


def own_table(file: StudyFile, name: str, keys: Sequence[str], hint: str) -> Mapping[str, Any]:
    """A command's own table of a study. Raises ConfigError where it is missing, with the hint, or has an odd key."""
    given = file.sections.get(name)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}: missing: {hint}", name)
    for key in given:
        if key not in keys:
            raise ConfigError(f"{name}.{key}: unknown key{nearest(key, keys)}", f"{name}.{key}", given[key])
    return given


def study_of(
    values: Mapping[str, Any], *, name: str = "study", folder: Path | None = None, text: str = ""
) -> StudyFile:
    """A study from nested plain values, as TOML has them. ``name``: where it has none. Raises ConfigError."""
    known = (*COMMON, *OF_A_SWEEP, *OF_OTHERS)
    for key in values:
        if key not in known:
            raise ConfigError(f"{key}: unknown key{nearest(key, known)}", key, values[key])
    given_name = values.get("name", name)
    if not isinstance(given_name, str) or not given_name or "/" in given_name:
        raise ConfigError(f"name = {given_name!r}: should be a word", "name", given_name)
    plugins = _texts(values, "plugins")
    base = values.get("base", {})
    if not isinstance(base, Mapping):
        raise ConfigError(f"base = {base!r}: should be a table of keys, [base]", "base", base)
    with using([name if folder is None else str(folder / name) for name in plugins]):
        flat = {**DEFAULTS, **_named(base)}
        for key, value in flat.items():
            check_name("base.", key, value, folder)
        constraints = tuple(Constraint.parse(text) for text in _texts(values, "constraints"))
        return StudyFile(
            name=given_name,
            base=flat,
            constraints=constraints,
            plugins=plugins,
            folder=folder,
            sections={key: value for key, value in values.items() if key not in COMMON},
            text=text,
        )


def _named(base: Mapping[str, Any]) -> dict[str, Any]:
    """[base], flat and checked; an error says that it is of that table."""
    try:
        return checked(flattened(base))
    except ConfigError as error:
        raise ConfigError(f"base.{error.message}", error.key, error.value) from None


def _texts(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = values.get(name, ())
    if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(text, str) for text in found):
        raise ConfigError(f"{name} = {found!r}: should be a list of texts", name, found)
    return tuple(found)


def needs_trace(keys: Mapping[str, Any], hint: str) -> None:
    """Raise ConfigError where nothing names a trace."""
    if checked_key("trace").name not in keys:
        raise ConfigError(f"base.trace: missing: name a built-in trace or a file{hint}", "trace.source")

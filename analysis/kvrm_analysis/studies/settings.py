"""The keys that a cell of a study can set, and the check of each value against the object that owns the key.

*Settings* are a flat mapping of dotted keys to plain values, as TOML has them::

    {"trace.source": "azure-conv-like", "trace.speedup": 2.0, "policy": "kv-rm", "pool_blocks": 4000,
     "policy.pager.block_size_tokens": 32, "hardware.h2d_bytes_per_s": 2.5e10, "seed": 3}

``trace``, ``policy``, ``model`` and ``hardware`` alone name it (a preset or a file); below them are the fields of
:class:`TraceOptions`, ``Policy``, ``ModelSpec`` and ``HardwareProfile`` (a coefficient by its number); without a
section the fields of ``ReplicaConfig`` and of :class:`RunSettings`. :func:`checked` refuses an unknown key, with the
nearest known one, and a value that its key cannot take. Whether the settings of a cell agree with each other only the
cell can say (cells.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, StrictStr, TypeAdapter, ValidationError

from kvrm_sim.config import HardwareProfile, ModelSpec, Policy, ReplicaConfig
from kvrm_sim.errors import ConfigError
from kvrm_sim.hardware import Coefficient
from kvrm_sim.tables import PositiveFloat, PositiveInt, Table, guess, problem
from kvrm_sim.words import PrefillMode

#: Dotted keys to plain values (numbers, words, lists, tables); None: the key is unset, so that its default holds.
Settings: TypeAlias = Mapping[str, Any]

_Count = Annotated[StrictInt, Field(ge=0)]
_Name = Annotated[StrictStr, Field(min_length=1)]


class TraceOptions(Table):
    """How a cell's trace is opened, cut and brought to a load; each as of ``kvrm.open_trace`` or of the trace."""

    section: ClassVar[str] = "trace"

    #: A built-in trace, or a file.
    source: _Name
    format: _Name | None = None
    unit: _Name | None = None
    columns: dict[str, str] | None = None
    strict: StrictBool = False
    missing_timestamp: Literal["refuse", "zero"] = "refuse"
    rows: PositiveInt | None = None
    arrivals: _Name | None = None
    hash_block_tokens: PositiveInt | None = None
    hash_tolerance_blocks: _Count = 0
    turns: Literal["cumulative", "delta"] | None = None
    #: Of what is drawn for the trace; without it the cell's `seed`.
    seed: _Count | None = None
    #: Seconds, or "tick": requests that share a stamp are moved apart.
    spread_ties: PositiveFloat | Literal["tick"] | None = None
    #: Times to think in a trace that has none, as of ``Trace.with_think``; for driver "closed-loop".
    think: _Name | None = None
    #: [START, END] in seconds of the trace's own clock, or [START].
    window_s: Annotated[tuple[Annotated[StrictFloat, Field(ge=0)], ...], Field(min_length=1, max_length=2)] | None = (
        None
    )
    limit: PositiveInt | None = None
    #: The share of replica `replica_index` of so many that serve the trace in turn.
    replicas: PositiveInt | None = None
    replica_index: _Count = 0
    speedup: PositiveFloat | None = None
    time_stretch: PositiveFloat | None = None
    #: The mean arrival rate to which what is left of the trace is brought, instead of `speedup` and `time_stretch`.
    requests_per_s: PositiveFloat | None = None


class RunSettings(Table):
    """What of a cell is no field of its replica: a cluster, a stop, how prompts are computed, how turns arrive."""

    #: "closed-loop": turns of a conversation wait for the answer to the one before.
    driver: Literal["span", "closed-loop"] = "span"
    cluster: PositiveInt | None = None
    prefill_replicas: PositiveInt | None = None
    decode_replicas: PositiveInt | None = None
    router: _Name | None = None
    prefix_weight: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)] | None = None
    #: Simulated seconds after which what is in flight is unfinished.
    stop_at_s: PositiveFloat | None = None
    #: Replaces `policy.schedule.prefill`, and unsets what only other ways need.
    prefill: PrefillMode | None = None


#: Other names of keys: a section alone names the thing, and so does ``preset`` in its table.
ALIASES = {
    "trace": "trace.source",
    **{f"{section}.preset": section for section in ("policy", "model", "hardware")},
}
_SECTIONS: dict[str, type[Table]] = {
    "trace": TraceOptions,
    "policy": Policy,
    "model": ModelSpec,
    "hardware": HardwareProfile,
}
#: Fields that are the replica's own parts: sections.
_NOT_KEYS = ("model", "hardware", "policy")


@dataclass(frozen=True)
class Key:
    """One key: how its values are checked, and whether numbers between two of them are values too."""

    name: str
    #: Its type, with the bounds of its values.
    type: Any
    adapter: TypeAdapter[Any]
    #: "int", "float", or None where the key takes no number.
    number: Literal["int", "float"] | None

    def checked(self, value: Any) -> Any:
        """The value as plain data. Raises ConfigError with the key, the value and what would be right."""
        try:
            found = self.adapter.validate_python(value)
        except ValidationError as error:
            said = problem(error.errors()[0], self.type, value)
            raise ConfigError(f"{self.name} = {value!r}: {said}", self.name, value) from None
        return self.adapter.dump_python(found, mode="json", exclude_none=True)


@cache
def known_keys() -> Mapping[str, Key]:
    """Every key by its dotted name."""
    found: dict[str, Key] = {}
    for section, table in _SECTIONS.items():
        if section != "trace":
            found[section] = Key(section, _Name, TypeAdapter(_Name), None)
        for name, annotation in _fields(table, section):
            found[name] = _key(name, annotation)
    for table in (ReplicaConfig, RunSettings):
        for name, annotation in _fields(table, ""):
            if name.partition(".")[0] not in _NOT_KEYS:
                found[name] = _key(name, annotation)
    return found


def _fields(table: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    """The dotted names of a table's fields with their types, those of tables in it too."""
    for name, field in table.model_fields.items():
        dotted = f"{prefix}.{name}" if prefix else name
        inner = _inner(field.annotation)
        if isinstance(inner, type) and issubclass(inner, Table):
            yield from _fields(inner, dotted)
        else:
            annotation: Any = field.annotation
            yield dotted, Annotated[annotation, *field.metadata] if field.metadata else annotation


def _inner(annotation: Any) -> Any:
    """The type beside None in an optional one."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else annotation
    return annotation


def _key(name: str, annotation: Any) -> Key:
    if _inner(annotation) is Coefficient:
        # By its number; in a table with its source. A number that somebody states is assumed.
        annotation = PositiveFloat | Coefficient
        return Key(name, annotation, TypeAdapter(annotation), "float")
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return Key(name, annotation, adapter, _number(adapter))


def _number(adapter: TypeAdapter[Any]) -> Literal["int", "float"] | None:
    text = str(adapter.json_schema())
    return "float" if "'number'" in text else "int" if "'integer'" in text and "'array'" not in text else None


def checked_key(name: str) -> Key:
    """The key of that name (``trace`` stands for ``trace.source``). Raises ConfigError with the nearest known one."""
    keys = known_keys()
    name = ALIASES.get(name, name)
    if name in keys:
        return keys[name]
    section, dot, _ = name.partition(".")
    if dot and section in _SECTIONS:
        inside = [key for key in keys if key.startswith(f"{section}.")]
        hint = guess(name, inside) or _same_ending(name, inside)
    else:
        hint = guess(name, keys) or _same_ending(name, keys)
    if not hint:
        sections = ", ".join(f"{section}.KEY" for section in _SECTIONS)
        hint = f"; there are {sections}, {', '.join(key for key in keys if '.' not in key)}"
    raise ConfigError(f"{name}: unknown key{hint}", name)


def _same_ending(name: str, known: Any) -> str:
    """A key that lacks its section: ``block_size_tokens`` for ``policy.pager.block_size_tokens``."""
    ends = [key for key in known if key.endswith(f".{name.rpartition('.')[2]}")]
    return f"; did you mean {ends[0]!r}?" if ends else ""


def checked(settings: Settings) -> dict[str, Any]:
    """The settings with every key known and every value one that its key takes, as plain data; None stays None.

    Raises ConfigError that names the key, the value and what would be right.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = checked_key(name)
        if key.name in found:
            raise ConfigError(f"{key.name}: given twice", key.name, value)
        found[key.name] = None if value is None else key.checked(value)
    return found


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables, as TOML gives them, into dotted keys. A table that is itself a value of a key stays one."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and (dotted in _SECTIONS or dotted not in known_keys()):
            found |= flattened(value, f"{dotted}.")
        else:
            found[dotted] = value
    return found

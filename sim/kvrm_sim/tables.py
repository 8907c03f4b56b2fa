"""The base of every configuration object: a frozen, keyword-only table that reads and writes TOML.

Wrong values, unknown keys (with the nearest known one) and refused combinations all end as a ``ConfigError``.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt, ValidationError
from pydantic_core import ErrorDetails

from kvrm_sim.errors import ConfigError
from kvrm_sim.wording import wanted

#: Integers and floats are strict: ``"16"``, ``16.0`` and ``true`` are not 16.
#: What a block id, a count of tokens or of rows fits.
MOST_COUNT = 2**31 - 1
PositiveInt = Annotated[StrictInt, Field(ge=1, le=MOST_COUNT)]
PositiveFloat = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]


def _ascending(value: object) -> object:
    """A ladder: whole numbers from 1 up, strictly ascending, at least one."""
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("should be a list of at least one whole number")
    if any(isinstance(entry, bool) or not isinstance(entry, int) or entry < 1 for entry in value):
        raise ValueError("each entry should be a whole number, 1 or more")
    if any(high <= low for low, high in itertools.pairwise(value)):
        raise ValueError("entries should ascend strictly")
    return tuple(value)


#: Ascending sizes, as a TOML list or a tuple.
Ladder = Annotated[tuple[int, ...], BeforeValidator(_ascending)]


def named_or_ladder(*names: str) -> BeforeValidator:
    """Check a ladder that is either a list of sizes or one of ``names``."""

    def check(value: object) -> object:
        if not isinstance(value, str):
            return _ascending(value)
        if value not in names:
            known = ", ".join(f'"{name}"' for name in names)
            raise ValueError(f"should be a list of whole numbers, or one of {known}{guess(value, names)}")
        return value

    return BeforeValidator(check)


def guess(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` where something near is known, else nothing. A word that begins with it is nearest."""
    known = list(known)
    close = [name for name in known if word and name.startswith(word)] or difflib.get_close_matches(
        word, known, n=1, cutoff=0.5
    )
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The guess, then the known words."""
    words = list(known)
    return f"{guess(word, words)} (known: {', '.join(words)})"


def problem(error: ErrorDetails, annotation: Any, value: object) -> str:
    """What would be right instead of ``value``: ``should be a whole number, 1 or more``; with the nearest word.

    ``annotation``: the type of the key, with its bounds. A check of our own says what it says.
    """
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    words = re.findall(r"'([^']*)'", error["ctx"]["expected"]) if error["type"] == "literal_error" else []
    hint = guess(value, words) if isinstance(value, str) else ""
    return f"should be {wanted(annotation, value)}{hint}"


class Table(BaseModel):
    """A frozen table of a configuration. Building one from wrong values raises ``ConfigError`` with the dotted key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Where the table sits in a file, for messages: ``pager`` makes ``pager.block_size_tokens``.
    section: ClassVar[str] = ""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self._named(error.errors()[0], values) from None

    @classmethod
    def key(cls, name: str) -> str:
        """The dotted key of a field."""
        return f"{cls.section}.{name}" if cls.section else name

    @classmethod
    def _named(cls, error: ErrorDetails, values: Mapping[str, Any]) -> ConfigError:
        if not error["loc"]:  # raised by a check of the whole table, which names its keys itself
            return ConfigError(error["msg"].removeprefix("Value error, "))
        path = [str(part) for part in error["loc"]]
        key, value = cls.key(".".join(path)), error["input"]
        if error["type"] == "extra_forbidden":
            known = cls._known(path[:-1])
            table = next((name for name in known if path[-1] in cls._inside(name)), None) if len(path) == 1 else None
            lacking = None if table is None else cls.key(f"{table}.{path[-1]}")
            hint = nearest(path[-1], known) if lacking is None else f"; did you mean {lacking!r}?"
            return ConfigError(f"{key}: unknown key{hint}", key, value)
        if error["type"] == "missing":
            return ConfigError(f"{key}: missing, and it has no default", key)
        at, annotation = cls._field(path)
        key = cls.key(".".join(path[:at]))
        given: Any = values
        for part in path[:at]:
            given = given[part] if isinstance(given, Mapping) else getattr(given, part)
        return ConfigError(f"{key} = {given!r}: {problem(error, annotation, given)}", key, given)

    @classmethod
    def _field(cls, path: Sequence[str]) -> tuple[int, Any]:
        """How many of a path's parts lead to a field that is no table, and its type with its bounds. What follows in
        the path is within its value: the place in a list, or which kind of value pydantic had tried.
        """
        model: type[BaseModel] = cls
        for at, part in enumerate(path, 1):
            field = model.model_fields[part]
            kinds = (field.annotation, *get_args(field.annotation))
            inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
            if not inner or at == len(path):
                annotation: Any = field.annotation
                return at, Annotated[annotation, *field.metadata] if field.metadata else annotation
            model = inner[0]
        raise AssertionError(f"{path} is no path")

    @classmethod
    def _inside(cls, name: str) -> list[str]:
        """The keys of a field that is a table; none of one that is a value."""
        annotation: Any = cls.model_fields[name].annotation
        kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        return [key for kind in kinds if issubclass(kind, Table) for key in kind.model_fields]

    @classmethod
    def _known(cls, path: Sequence[str]) -> list[str]:
        """The keys of the model that a path of fields leads to."""
        model: type[BaseModel] = cls
        for part in path:
            annotation = model.model_fields[part].annotation
            inner = next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)  # optional
            assert isinstance(inner, type), f"{part} holds no keys"
            assert issubclass(inner, BaseModel), f"{part} holds no keys"
            model = inner
        return list(model.model_fields)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from nested plain values, as TOML gives them."""
        return cls(**values)

    @classmethod
    def from_toml(cls, text: str, *, source: str = "TOML") -> Self:
        """Build from TOML text; ``source`` (a file name) is put in front of the message of an error."""
        try:
            return cls.from_dict(parse_toml(text, source))
        except ConfigError as error:
            raise prefixed(error, source) from None

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values: lists for tuples, absent for None, so that TOML holds all of it."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """The table as TOML; ``from_toml`` gives an equal table back."""
        return tomli_w.dumps(self.to_dict())

    def _given(self) -> dict[str, Any]:
        """The values that the table was made from: what follows from others is to be derived anew."""
        return self.to_dict()

    def override(self, changes: Mapping[str, Any]) -> Self:
        """A new table with dotted keys replaced (``{"pager.block_size_tokens": 32}``), checked as a whole."""
        values = self._given()
        for dotted, value in changes.items():
            set_dotted(values, dotted, value)
        return type(self).from_dict(values)


def set_dotted(values: dict[str, Any], dotted: str, value: object) -> None:
    """Set a dotted key in nested plain values, in place. None removes it, so that the default applies."""
    *sections, last = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{dotted}: {section!r} is a value, not a table", dotted, value)
    if value is None:
        values.pop(last, None)
    else:
        values[last] = value


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, table by table."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """TOML text as nested plain values; a syntax error names the source, line and column."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None


def read_toml(path: Path) -> str:
    """The text of a TOML file; a missing, unreadable or binary file is a ``ConfigError``."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file (UTF-8), so not TOML") from None


def prefixed(error: ConfigError, source: str) -> ConfigError:
    """The same error with the file in front, once."""
    if error.message.startswith(f"{source}:"):
        return error
    return type(error)(f"{source}: {error.message}", error.key, error.value)

"""Which parts of users there are, and by which word each is found.

Four ways in, looked at in this order: those given to a call or a command (:func:`using`), those :func:`register`-ed in
this process, and those of installed packages, by entry points of the group ``kvrm.parts``. Packages are searched only
when a word is not known otherwise, or a list is asked for.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, get_args

from kvrm_sim.errors import ConfigError
from kvrm_sim.plugin_source import source_hash, where
from kvrm_sim.plugins import Order, Part, Placement, Victim, part_name
from kvrm_sim.router_part import Router
from kvrm_sim.tables import nearest
from kvrm_sim.words import PLUGGABLE, ROUTERS

__all__ = [
    "GROUP",
    "KINDS",
    "FoundPart",
    "PartSource",
    "broken_packages",
    "builtin_words",
    "find",
    "found_parts",
    "loaded",
    "needed",
    "provenance",
    "register",
    "using",
]

#: The entry points of an installed package.
GROUP = "kvrm.parts"

#: What a call takes for a part: the class, or a file of Python with one or several of them.
PartSource: TypeAlias = "type[Part] | str | Path"

#: What can be subclassed.
KINDS: tuple[type[Part], ...] = (Placement, Victim, Order, Router)

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A part and where it comes from, in words."""

    part: type[Part]
    source: str


_given: ContextVar[tuple[FoundPart, ...]] = ContextVar("given parts", default=())
_registered: dict[tuple[str, str], FoundPart] = {}


@contextmanager
def using(parts: Sequence[PartSource]) -> Iterator[None]:
    """Within the block these parts are found by their names. In this thread only: others may use others.

    Raises ConfigError for a file that cannot be read, has no part in it, or a part that is not one.
    """
    found = tuple(entry for part in parts for entry in loaded(part))
    keys = [(entry.part.kind, entry.part.name) for entry in found]
    for at, key in enumerate(keys):
        if key in keys[:at] and found[keys.index(key)].part is not found[at].part:
            raise ConfigError(f"{key[0]} {key[1]!r} is given twice, by two classes: call one of them otherwise")
    token = _given.set((*found, *_given.get()))
    try:
        yield
    finally:
        _given.reset(token)


def register(part: type[Part]) -> type[Part]:
    """Make a part known to this process from now on (usable as a decorator); a later one of the same name replaces it.
    Raises ConfigError for what is not a part.
    """
    (entry,) = loaded(part)
    _registered[part.kind, part.name] = entry
    return part


def find(kind: str, word: str) -> type[Part] | None:
    """The part of that kind and name, or None."""
    for entry in _given.get():
        if (entry.part.kind, entry.part.name) == (kind, word):
            return entry.part
    known = _registered.get((kind, word)) or _installed()[0].get((kind, word))
    return None if known is None else known.part


def needed(kind: str, word: str, known: Sequence[str]) -> type[Part]:
    """The part of that name; ConfigError, with the nearest word, when it is not known (any more)."""
    part = find(kind, word)
    if part is None:
        names = [*known, *(entry.part.name for entry in found_parts(kind))]
        hint = "a plug-in is given by --plugin FILE, plugins=[...] or an installed package"
        raise ConfigError(f"{kind} {word!r} is unknown{nearest(word, names)}; {hint}{broken_packages()}", None, word)
    return part


def found_parts(kind: str | None = None) -> list[FoundPart]:
    """Every part (of a kind) that can be found now, by kind and name."""
    found = {**_installed()[0], **_registered}
    found |= {(entry.part.kind, entry.part.name): entry for entry in reversed(_given.get())}
    order = [of.kind for of in KINDS]
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    return [found[key] for key in keys if kind in (None, key[0])]


def broken_packages() -> str:
    """What to add to a message: entry points that could not be loaded, each with its reason; else nothing."""
    return "".join(f"; not loaded: {line}" for line in _installed()[1])


def provenance(parts: Sequence[type[Part]]) -> list[dict[str, Any]]:
    """What run.toml says of the parts that a run used."""
    return [
        {
            "kind": part.kind,
            "name": part.name,
            "class": part.__qualname__,
            "source": where(part),
            "compiled": part.compiled,
            "sha256": source_hash(part),
        }
        for part in parts
    ]


def loaded(source: PartSource) -> list[FoundPart]:
    """A class, or every part of a file, checked. Raises ConfigError that names the file or the class."""
    if isinstance(source, (str, Path)):
        return _of_file(Path(source))
    _check(source)
    return [FoundPart(source, where(source))]


def _of_file(path: Path) -> list[FoundPart]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    name = f"kvrm_plugin_{path.stem}_{hashlib.sha256(str(path.resolve()).encode() + text).hexdigest()[:12]}"
    module = sys.modules.get(name) or _executed(path, name, text)
    parts = [value for value in vars(module).values() if _is_part(value) and value.__module__ == name]
    if not parts:
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise ConfigError(f"{path}: no part is in it: a subclass of {kinds} of kvrm.plugins, with a name")
    for part in parts:
        _check(part)
    return [FoundPart(part, str(path)) for part in parts]


def _executed(path: Path, name: str, text: bytes) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module
    try:
        exec(compile(text, module.__file__, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        line = error.lineno if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)[-1].lineno
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(f"{path}, line {line}: {type(error).__name__}: {reason}") from error
    return module


def _is_part(value: object) -> bool:
    """A user's part: a subclass of a kind that has a name of its own (a base that others share has none)."""
    return (
        isinstance(value, type) and issubclass(value, Part) and value not in (Part, *KINDS) and hasattr(value, "name")
    )


@cache
def _installed() -> tuple[dict[tuple[str, str], FoundPart], tuple[str, ...]]:
    """The parts of installed packages, and a line for each entry point that gives none."""
    found: dict[tuple[str, str], FoundPart] = {}
    broken: list[str] = []
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        package = "a package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        try:
            part = point.load()
            _check(part)
        except Exception as error:  # noqa: BLE001  # whatever a package raises is told, and the others are still found
            broken.append(f"{point.name} = {point.value!r} of {package}: {type(error).__name__}: {error}")
            continue
        if (part.kind, part.name) in found:
            broken.append(f"{point.name} = {point.value!r} of {package}: another package has {part_name(part)} too")
            continue
        found[part.kind, part.name] = FoundPart(part, f"{package}, {point.value}")
    return found, tuple(broken)


def _check(part: Any) -> None:
    """Raise ConfigError unless it is a part that can be found and called."""
    if not _is_part(part):
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise ConfigError(f"{part!r} is no part: subclass {kinds} of kvrm.plugins, and give it a name")
    who = f"{part.__qualname__} ({where(part)})"
    if not isinstance(part.name, str) or not _NAME.fullmatch(part.name):
        raise ConfigError(f"{who}: name = {part.name!r}: should be a word of lower-case letters, digits, '-' and '_'")
    if part.name in builtin_words(part.kind):
        raise ConfigError(f"{who}: {part_name(part)} is built in: take another name")
    base = next(kind for kind in KINDS if issubclass(part, kind))
    for name, count in part.functions.items():
        function = getattr(part, name)
        if not callable(function) or _parameters(function) != count:
            static = "" if base is Router else "a static method of "
            raise ConfigError(f"{who}: {name} should be {static}{inspect.signature(getattr(base, name))}")
    decides = next(iter(part.functions))
    if getattr(part, decides) is getattr(base, decides):
        raise ConfigError(f"{who}: it lacks {decides}, which is what makes it a {part.kind}")


def _parameters(function: Any) -> int:
    """How many values a function is called with; those with a default are not."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(function).parameters.values()
    return sum(parameter.kind in kinds and parameter.default is inspect.Parameter.empty for parameter in given)


def builtin_words(kind: str) -> tuple[str, ...]:
    """The words of a kind that need no plug-in."""
    if kind == Router.kind:
        return tuple(ROUTERS)
    return get_args(PLUGGABLE[kind])

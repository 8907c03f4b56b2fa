"""What a user's part is made of: the hash of its source for run.toml, and of its code for the cache of compiled code.

Both follow the part's functions into whatever of the user's they reach: helpers, other files, constants. Python, numpy,
numba and kvrm itself end the walk: their versions are recorded apart.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from kvrm_sim.plugins import Part

#: Packages whose insides are not the user's.
_NOT_THE_USERS = {"kvrm", "kvrm_sim", "numba", "numpy", "builtins"} | set(sys.stdlib_module_names)


def source_hash(part: type[Part]) -> str:
    """Hex sha256 of the file that a part is written in (as ``sha256sum`` gives it); of all of them, by name, where it
    calls functions of others; of the class alone where there is no file, as in a notebook.
    """
    files = sorted({file for code in _codes(part) if (file := Path(code.co_filename)).is_file()})
    if files:
        if len(files) == 1:
            return hashlib.sha256(files[0].read_bytes()).hexdigest()
        parts = (f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files)
        return hashlib.sha256("".join(parts).encode()).hexdigest()
    try:
        return hashlib.sha256(inspect.getsource(part).encode()).hexdigest()
    except (OSError, TypeError):
        return code_hash(part)


def code_hash(part: type[Part]) -> str:
    """Hex sha256 of everything that decides what a part computes: bytecode, constants, names, and what they lead to."""
    digest = hashlib.sha256(f"{part.kind} {part.name}".encode())
    for item in _reached(part):
        if isinstance(item, CodeType):
            plain = [const for const in item.co_consts if not isinstance(const, CodeType)]
            digest.update(item.co_code)
            digest.update(repr((item.co_name, item.co_names, item.co_varnames, plain)).encode())
        elif isinstance(item, np.ndarray):
            digest.update(f"{item.dtype} {item.shape}".encode() + item.tobytes())
        else:
            digest.update(repr(item).encode())
    return digest.hexdigest()


def _codes(part: type[Part]) -> Iterator[CodeType]:
    return (item for item in _reached(part) if isinstance(item, CodeType))


def _functions(owner: type[Any]) -> Iterator[FunctionType]:
    """The functions of a class and of those it derives from, as far as they are the user's; by name."""
    for cls in owner.__mro__:
        if _is_the_users(cls):
            for _, value in sorted(vars(cls).items()):
                function = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else value
                if isinstance(function, FunctionType):
                    yield function


def _is_the_users(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "builtins"
    return name.partition(".")[0] not in _NOT_THE_USERS


def _reached(part: type[Part]) -> Iterator[Any]:
    """Code objects and values of globals that a part's functions lead to, each function once, in a fixed order."""
    waiting: list[FunctionType] = list(_functions(part))
    seen: set[int] = set()
    while waiting:
        function = waiting.pop(0)
        if id(function) in seen:
            continue
        seen.add(id(function))
        closed = inspect.getclosurevars(function).nonlocals
        yield from (function.__defaults__ or ())
        for code in _nested(function.__code__):
            yield code
            for name in code.co_names:
                if name in function.__globals__:
                    yield from _value(name, function.__globals__[name], code, waiting)
            for name in code.co_freevars:
                if name in closed:
                    yield from _value(name, closed[name], code, waiting)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _value(name: str, value: Any, code: CodeType, waiting: list[FunctionType]) -> Iterator[Any]:
    """What a name stands for: its value, or, of the user's functions and classes and modules, those to walk next."""
    value = getattr(value, "py_func", value)  # numba's dispatcher
    yield name
    if isinstance(value, (bool, int, float, str, bytes, tuple, np.ndarray, np.generic, type(None))):
        yield value
    elif not _is_the_users(value):
        yield repr(type(value))
    elif isinstance(value, FunctionType):
        waiting.append(value)
    elif isinstance(value, type):
        waiting.extend(_functions(value))
    elif isinstance(value, ModuleType):
        for inner in code.co_names:
            if hasattr(value, inner):
                yield from _value(inner, getattr(value, inner), code, waiting)
    else:
        yield repr(type(value))


def where(part: type[Part], said: Callable[[Path], str] = str) -> str:
    """The file that a part is written in, or its module's name where it has none."""
    module = sys.modules.get(part.__module__)
    file = getattr(module, "__file__", None)
    return part.__module__ if file is None else said(Path(file))

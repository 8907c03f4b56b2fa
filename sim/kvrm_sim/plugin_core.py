"""A core of its own for each set of users' parts: the same sources, with the parts in the place of some functions.

The modules of the core are loaded once more under names of their own, and in these copies alone the functions that
plugin_seams.py names are replaced. Nothing of the plain core is touched, and cores with different parts live side by
side. A core is compiled when every part of it says that it can be, else it is plain Python. numba keeps compiled code
by the folder of the source file: a compiled copy is written to a folder named by the hash of its parts' code, in the
cache folder that is named by the plain core's sources (compiled.py). So no part is ever served another's code.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from kvrm_sim import compiled
from kvrm_sim import core as plain
from kvrm_sim.errors import PluginError
from kvrm_sim.plugin_source import code_hash
from kvrm_sim.plugins import Part, Pool, RunningRow, WaitingRequest, part_name
from kvrm_sim.state import BLOCKS

#: How much slower a run is that does not compile, in words: measured, docs/plugins.md.
SLOWER = "about a thousand times"

_SOURCES = Path(__file__).parent
_IMPORT = re.compile(r"^from kvrm_sim\.(\w+) import", re.MULTILINE)
_MARK = "from kvrm_sim.compiled import"
_ROOTS = ("core", "plugin_seams")
#: The functions whose answer the core uses.
_ANSWERS = {"take": "the id of a free block", "weight": "an integer", "score": "an integer"}
#: The types that numba may find for them.
_INTEGERS = ("int8", "int16", "int32", "int64")


class Core(NamedTuple):
    """The entry points of ``kvrm_sim.core``, and the modules of a private copy by name (empty for the plain core)."""

    span: Callable[..., int]
    replica_edge: Callable[..., None]
    #: Whether they are compiled: what they are handed as the arrays follows from it (bundle.py).
    compiled: bool
    modules: dict[str, ModuleType] = {}  # noqa: RUF012  # nobody writes to it


PLAIN = Core(plain.span, plain.replica_edge, compiled.MODE != "interpreted")

_cores: dict[str, Core] = {}
_lock = threading.RLock()


def runs_compiled(parts: Sequence[type[Part]]) -> bool:
    """Whether a core with these parts is compiled."""
    return compiled.MODE != "interpreted" and all(part.compiled for part in parts)


def notice(parts: Sequence[type[Part]]) -> str | None:
    """What a person should know before a run with these parts starts, or None."""
    if compiled.MODE == "interpreted":
        return None
    slow = [part_name(part) for part in parts if not part.compiled]
    if slow:
        return f"{' and '.join(slow)} runs interpreted, and the core with it: {SLOWER} slower (docs/plugins.md)"
    if compiled.is_warm(_key(parts) if parts else None):
        return None
    what = f" with {' and '.join(map(part_name, parts))}" if parts else ""
    return f"compiling the simulator's core{what}, once for this version (about a minute)"


def say_if_slow(parts: Sequence[type[Part]]) -> None:
    """Say on stderr that the first run compiles, where it does, or that a plug-in makes every run slow."""
    said = notice(parts)
    if said is not None:
        sys.stderr.write(f"kvrm: {said}\n")


def core_of(parts: Sequence[type[Part]]) -> Core:
    """The core that runs with these parts, none for the plain one; made when first asked for.

    Raises PluginError for a part that says that it can be compiled and cannot.
    """
    if not parts:
        return PLAIN
    key = _key(parts)
    with _lock:
        if key not in _cores:
            _cores[key] = _compiled_core(parts, key) if runs_compiled(parts) else _interpreted_core(parts, key)
        return _cores[key]


def _key(parts: Sequence[type[Part]]) -> str:
    mode = "compiled" if runs_compiled(parts) else f"interpreted {[id(part) for part in parts]}"
    return hashlib.sha256("\n".join([mode, *map(code_hash, parts)]).encode()).hexdigest()[:24]


def _interpreted_core(parts: Sequence[type[Part]], key: str) -> Core:
    modules = _copies(f"kvrm_core_{key}", None)
    for part in parts:
        _put_in_place(modules, part, {name: _watched(part, name) for name in part.functions})
    return Core(modules["core"].span, modules["core"].replica_edge, False, modules)


def _compiled_core(parts: Sequence[type[Part]], key: str) -> Core:
    from numba.extending import register_jitable

    if not compiled.is_warm(key):
        for part in parts:
            _check_compiles(part)
    assert compiled.CACHE_FOLDER is not None, "a compiled core has a folder"
    modules = _copies(f"kvrm_core_{key}", compiled.CACHE_FOLDER / "plugins" / key)
    for part in parts:
        bound = {name: register_jitable(**_options())(_copy(getattr(part, name))) for name in part.functions}
        _put_in_place(modules, part, bound)
    return Core(
        _watched_entry(modules["core"].span, parts), _watched_entry(modules["core"].replica_edge, parts), True, modules
    )


def _options() -> dict[str, Any]:
    """A user's functions are compiled with bounds checked: what lies behind their arrays is the state of the run."""
    return {"boundscheck": True, "nogil": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _copy(function: Any) -> FunctionType:
    """The function once more: numba remembers by object what it was told of one."""
    same = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    same.__module__ = function.__module__
    return same


def _copies(package: str, folder: Path | None) -> dict[str, ModuleType]:
    """The core's modules, loaded under ``package``. With ``folder`` their text is written there, line by line as it is
    but for the names of the imports; without they are plain Python, and tracebacks show the core's own files.
    """
    parent = ModuleType(package)
    parent.__path__ = []
    sys.modules[package] = parent
    modules: dict[str, ModuleType] = {}
    for root in _ROOTS:
        _load(root, package, folder, modules)
    return modules


def _load(name: str, package: str, folder: Path | None, modules: dict[str, ModuleType]) -> None:
    if name in modules:
        return
    source = _SOURCES / f"{name}.py"
    text = source.read_text(encoding="utf-8")
    for imported in _IMPORT.findall(text):
        if _has_kernels(imported):
            _load(imported, package, folder, modules)
    text = _IMPORT.sub(lambda match: f"from {_home(match[1], package, folder)} import", text)
    if folder is not None:
        source = folder / source.name
        _write(source, text)
    module = modules[name] = ModuleType(f"{package}.{name}")
    module.__file__ = str(source)
    sys.modules[module.__name__] = module
    exec(compile(text, str(source), "exec"), module.__dict__)


def _home(name: str, package: str, folder: Path | None) -> str:
    """The module that a copy imports instead of one of the core's."""
    if _has_kernels(name):
        return f"{package}.{name}"
    return "kvrm_sim.interpreted" if name in ("compiled", "bundle") and folder is None else f"kvrm_sim.{name}"


def _has_kernels(name: str) -> bool:
    return name != "compiled" and _MARK in (_SOURCES / f"{name}.py").read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and not again when it is there: numba looks at the time of the file."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(unfinished).replace(path)


def _put_in_place(modules: dict[str, ModuleType], part: type[Part], bound: dict[str, Any]) -> None:
    """Bind a part's functions to its seams, and those to every name by which the core calls what they replace."""
    seams = modules["plugin_seams"]
    for name, function in bound.items():
        setattr(seams, f"user_{name}", function)
    for home, functions in seams.SEAMS[part.kind].items():
        for seam in functions:
            replaced = getattr(modules[home], seam.__name__)
            for module in modules.values():
                for name, value in list(vars(module).items()):
                    if value is replaced:
                        setattr(module, name, seam)


def _watched(part: type[Part], name: str) -> Callable[..., Any]:
    """A function of a part, called as plain Python: its exceptions and its answers are looked at."""
    function = getattr(part, name)

    def call(*arguments: Any) -> int | None:
        given = [_read_only(argument) if isinstance(argument, Pool) else argument for argument in arguments]
        try:
            answer = function(*given)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise PluginError(f"{_raised(part_name(part), name, error)} ({at.filename}, line {at.lineno})") from error
        if name not in _ANSWERS:
            return None
        whole = _integer(part, name, answer)
        if name == "take" and not (1 <= whole <= given[0].blocks and given[0].free[whole]):
            raise wrong_block(part, whole)
        return whole

    return call


def _read_only(pool: Pool) -> Pool:
    free = pool.free.view()
    free.flags.writeable = False
    return pool._replace(free=free)


def _integer(part: type[Part], name: str, answer: Any) -> int:
    whole = isinstance(answer, (int, np.integer)) and not isinstance(answer, bool)
    if not whole or not -(1 << 63) <= answer < 1 << 63:
        kind = "of more than 64 bits" if whole else f"of type {type(answer).__name__}"
        raise PluginError(f"{part_name(part)}: {name} returned {answer!r}, {kind}: it should return {_ANSWERS[name]}")
    return int(answer)


def _watched_entry(function: Callable[..., Any], parts: Sequence[type[Part]]) -> Callable[..., Any]:
    """An entry of a compiled core. The core itself raises nothing, so whatever is raised comes out of a part."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            who = " or ".join(part_name(part) for part in parts)
            names = " or ".join(name for part in parts for name in part.functions)
            hint = "compiled = False gives the line"
            raise PluginError(f"{_raised(who, names, error)} (compiled: {hint})") from error

    return call


def _raised(who: str, name: str, error: Exception) -> str:
    return f"{who}: {name} raised {type(error).__name__}: {error}"


def _check_compiles(part: type[Part]) -> None:
    """Compile a part's functions alone: an error then is about them, and what they return has a type."""
    import numba

    pool = Pool(np.zeros(3, BLOCKS)["free"], 1, 1, np.zeros(1, np.int64))
    one = {"weight": (RunningRow(*[1] * len(RunningRow._fields)),), "open": (pool,)}
    one["score"] = (WaitingRequest(*[1] * len(WaitingRequest._fields)),)
    for name in part.functions:
        typeof: Any = numba.typeof  # it has no types
        types = tuple(typeof(value) for value in one.get(name, (pool, 1)))
        function = numba.njit(**_options())(_copy(getattr(part, name)))
        try:
            function.compile(types)
        except numba.core.errors.NumbaError as error:
            raise PluginError(
                f"{part_name(part)}: compiled = True, but numba does not compile {name}: {_first_lines(error)}; "
                "write it in numba's subset of Python without allocating, or leave compiled out"
            ) from error
        returned: Any = function.overloads[types].signature.return_type
        if name in _ANSWERS and re.sub(r"Literal\[int\].*", "int64", str(returned)) not in _INTEGERS:
            raise PluginError(
                f"{part_name(part)}: {name} returns {returned} where numba compiles it: it should return "
                f"{_ANSWERS[name]}, int64"
            )


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Failed in")]
    return re.sub(r"\x1b\[[0-9;]*m", "", " ".join(lines[:3]))


def wrong_block(part: type[Part], block: int) -> PluginError:
    """The error of a placement that gave what is no free block."""
    return PluginError(
        f"{part_name(part)}: take returned {block}, which is no free block: it should return an id from 1 to "
        "pool.blocks where pool.free is 1"
    )

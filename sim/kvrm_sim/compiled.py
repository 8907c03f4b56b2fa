"""How the decision core is compiled: one decorator, and a disk cache that notices an edited callee.

numba's own disk cache looks at the file of the function that is called, not at the functions it calls, so an edit in
one of them would silently run old code. The cache folder is therefore named by a hash of every core source, the
versions that generate code, and the processor (DESIGN section 4). It has to be set before numba is imported, which
is why every core module imports :data:`kernel` from here.

The environment variable ``KVRM_CORE`` chooses how the core runs: ``compiled`` (default), ``boundscheck`` (compiled,
and an index out of range is an error) or ``interpreted`` (the same functions as plain Python).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import platformdirs

Mode = Literal["compiled", "boundscheck", "interpreted"]
MODES: tuple[Mode, ...] = ("compiled", "boundscheck", "interpreted")

F = TypeVar("F", bound=Callable[..., Any])


def core_mode() -> Mode:
    """The mode that ``KVRM_CORE`` asks for. Raises ValueError on an unknown one."""
    mode = os.environ.get("KVRM_CORE", "compiled")
    if mode not in MODES:
        raise ValueError(f"KVRM_CORE: {mode!r} is not one of {', '.join(MODES)}")
    return mode


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "flags")):
                return line
    return platform.processor() or platform.machine()


def source_hash(folder: Path | None = None) -> str:
    """Hex sha256 over every Python source of the simulator, code-generating versions, processor and mode."""
    digest = hashlib.sha256()
    for path in sorted((folder or Path(__file__).parent).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for package in ("numba", "llvmlite", "numpy"):
        digest.update(f"{package}={importlib.metadata.version(package)}\0".encode())
    digest.update(f"{sys.version}\0{_processor()}\0{core_mode()}".encode())
    return digest.hexdigest()


def _cache_folder() -> Path:
    """The cache folder, created; a temporary one with a notice when the user's cannot be written."""
    wanted = Path(platformdirs.user_cache_dir("kvrm")) / source_hash()[:24]
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            pass
    except OSError as error:
        fallback = Path(tempfile.mkdtemp(prefix="kvrm-cache-"))
        sys.stderr.write(f"kvrm: compiled code is kept in {fallback} for now: {wanted}: {error.strerror}\n")

        return fallback
    return wanted


MODE: Mode = core_mode()

if MODE != "interpreted":
    CACHE_FOLDER: Path | None = _cache_folder()
    os.environ["NUMBA_CACHE_DIR"] = str(CACHE_FOLDER)
    if "numba" in sys.modules:
        # Someone imported numba first: its configuration is already read, so it is set there as well.
        import numba.core.config

        numba.core.config.CACHE_DIR = str(CACHE_FOLDER)  # type: ignore[attr-defined]  # numba has no stubs for it
else:
    CACHE_FOLDER = None


def _options(*, inline: bool) -> dict[str, Any]:
    # No reference counts: the arrays belong to the caller, who outlives the call, and counting them on each call
    # inside the loop made the core four times slower. Inlining: an array is seven words, so a call that hands on a
    # dozen costs more than what most do.
    return {
        "boundscheck": MODE == "boundscheck",
        "nogil": True,
        "_nrt": False,
        "no_cfunc_wrapper": True,
        "forceinline": inline,
    }


def _jitable(function: F, *, inline: bool) -> F:
    """Compiled as a part of whichever kernel calls it; plain Python when Python calls it."""
    if MODE == "interpreted":
        return function
    from numba.extending import register_jitable

    return register_jitable(**_options(inline=inline), no_cpython_wrapper=True)(function)


def kernel(function: F) -> F:
    """Mark a core function: integers, floats and arrays in, no objects, nothing allocated. Compiled (and inlined) into
    the kernels that call it; from Python it runs as it is written. Only an :func:`entry` is compiled for Python: a way
    in that unpacks arrays takes as long to compile as a short kernel.
    """
    return _jitable(function, inline=True)


def outlined(function: F) -> F:
    """A kernel that is called rarely, or from several places: not inlined, which keeps the binary small and quick
    to compile.
    """
    return _jitable(function, inline=False)


def part(function: F) -> F:
    """A kernel with one caller, put into it before types are found: it is neither compiled nor optimised on its own."""
    if MODE == "interpreted":
        return function
    import numba

    return cast(F, numba.njit(inline="always")(function))


def identity_when_compiled(function: F) -> F:
    """A function of one ``value`` that does by hand what compiled code does anyway: there it is its argument."""
    if MODE == "interpreted":
        return function
    from numba.extending import overload

    def as_it_is(value):  # type: ignore[no-untyped-def]  # numba compares the parameters, without annotations
        return value

    def choose(value):  # type: ignore[no-untyped-def]  # noqa: ARG001  # numba's way to name a replacement
        return as_it_is

    overload(function, inline="always")(choose)
    return function


def entry(function: F) -> F:
    """A kernel that Python calls, compiled and kept on disk. The decision core has three (DESIGN section 4)."""
    if MODE == "interpreted":
        return function
    import numba

    dispatcher = numba.njit(cache=True, **_options(inline=False))(function)
    dispatcher.compile = _lightly_optimised(dispatcher.compile)
    return cast(F, dispatcher)


def _lightly_optimised(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """LLVM's first level, for this call alone: the core is as fast as at the third, and compiled sooner by a tenth."""
    from numba.core import config
    from numba.core.compiler_lock import global_compiler_lock

    @wraps(compile_)
    def compile_lightly(signature: Any) -> Any:
        with global_compiler_lock:
            level = config.OPT  # type: ignore[attr-defined]  # numba has no stubs for it
            config.OPT = type(level)(1)  # type: ignore[attr-defined]
            try:
                return compile_(signature)
            finally:
                config.OPT = level  # type: ignore[attr-defined]

    return compile_lightly


def is_warm(folder: str | None = None) -> bool:
    """Whether compiled code of exactly these sources is on disk already (else the first run compiles).

    ``folder``: the name of the folder that the sources lie in, as numba calls their code; None: the simulator's own.
    """
    return CACHE_FOLDER is None or any(CACHE_FOLDER.glob(f"{folder or Path(__file__).parent.name}_*/*.nbi"))

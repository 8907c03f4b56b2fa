"""The disk cache of compiled code: it is found again, and it notices an edited callee."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvrm_sim import compiled

_CALLEE = """
from kvrm_sim.compiled import {decorator}

@{decorator}
def amount(x: int) -> int:
    return x + {added}
"""

_CALLER = """
from kvrm_sim.compiled import entry
from kvrm_sim.callee import amount

@entry
def twice(x: int) -> int:
    return 2 * amount(x)
"""

_RUN = "from kvrm_sim.caller import amount, twice; print(twice(10), amount(10))"


def small_package(folder: Path, added: int, decorator: str = "kernel") -> None:
    """A package with the product's own compiled.py, a kernel, and an entry that calls it from another file."""
    package = folder / "kvrm_sim"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "compiled.py").write_text(Path(compiled.__file__).read_text())
    (package / "callee.py").write_text(_CALLEE.format(added=added, decorator=decorator))
    (package / "caller.py").write_text(_CALLER)


def run_in(folder: Path, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-P", "-c", _RUN], env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip() + done.stderr.strip()


@pytest.mark.parametrize("decorator", ["kernel", "outlined", "part", "entry"])
def test_an_edited_callee_is_seen_through_the_cache(tmp_path: Path, decorator: str) -> None:
    """numba looks at the caller's file only, and would go on running the old callee. Python may call each kind too."""
    small_package(tmp_path, 1, decorator)
    assert run_in(tmp_path, KVRM_CORE="compiled") == "22 11"
    assert list((tmp_path / "cache").rglob("*.nbi")), "nothing was cached, so this test could not fail"
    small_package(tmp_path, 5, decorator)
    assert run_in(tmp_path, KVRM_CORE="compiled") == "30 15"


def test_the_hash_covers_every_source_and_the_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_package(tmp_path, added=1)
    first = compiled.source_hash(tmp_path / "kvrm_sim")
    assert compiled.source_hash(tmp_path / "kvrm_sim") == first
    monkeypatch.setenv("KVRM_CORE", "boundscheck" if compiled.MODE != "boundscheck" else "compiled")
    assert compiled.source_hash(tmp_path / "kvrm_sim") != first
    monkeypatch.undo()
    small_package(tmp_path, added=2)
    assert compiled.source_hash(tmp_path / "kvrm_sim") != first


def test_an_unwritable_cache_falls_back_to_a_temporary_folder_and_says_so(tmp_path: Path) -> None:
    small_package(tmp_path, added=1)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the cache folder should be")
    said = run_in(tmp_path, KVRM_CORE="compiled", XDG_CACHE_HOME=str(blocked))
    assert said.startswith("22 11kvrm: compiled code is kept in ")
    assert str(blocked) in said


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVRM_CORE", "fast")
    with pytest.raises(ValueError, match="KVRM_CORE: 'fast' is not one of compiled, boundscheck, interpreted"):
        compiled.core_mode()

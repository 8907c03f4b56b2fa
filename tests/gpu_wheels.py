"""Packages that an interpreter lacks, out of a folder of wheels: nothing is installed, nothing of its own is hidden.

``make gpu-wheels`` fills the folder where there is a registry; ``make gpu`` takes from it where there is none. Standard
library only: this runs before any package can be counted on.
"""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Packages of which one release needs exactly one release of the other: both are added, or none.
TOGETHER = (("pydantic", "pydantic_core"),)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """``version``: (3, 12). ``machine``: as wheels name it, e.g. x86_64."""

    version: tuple[int, int]
    machine: str

    def takes(self, wheel: Path) -> bool:
        """Whether a wheel's tags, the last three parts of its name, are for this interpreter on Linux."""
        *_, pythons, abi, platforms = wheel.stem.split("-")
        return any(self._python(tag, abi) for tag in pythons.split(".")) and (
            platforms == "any" or any("linux" in tag and tag.endswith(self.machine) for tag in platforms.split("."))
        )

    def _python(self, tag: str, abi: str) -> bool:
        major, minor = self.version
        if tag == f"py{major}" or tag == f"cp{major}{minor}":
            return True
        digits = tag.removeprefix(f"cp{major}")
        return abi == "abi3" and digits.isdigit() and int(digits) <= minor


def top_levels(wheel: Path) -> set[str]:
    """The names that a wheel makes importable."""
    with zipfile.ZipFile(wheel) as archive:
        firsts = {(name.split("/", 1)[0], "/" in name) for name in archive.namelist()}
    return {
        first if folder else first.split(".", 1)[0]
        for first, folder in firsts
        if not first.endswith((".dist-info", ".data")) and (folder or first.endswith((".py", ".so")))
    }


def importable(python: str, names: Iterable[str]) -> set[str]:
    """Those of the names that an interpreter finds by itself. Not from the current folder, nor from PYTHONPATH."""
    wanted = sorted(names)
    script = (
        "import importlib.util as util, json, sys\n"
        "print(json.dumps([name for name in json.loads(sys.argv[1]) if util.find_spec(name) is not None]))"
    )
    command = [python, "-E", "-P", "-c", script, json.dumps(wanted)]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def add_missing(python: str, interpreter: Interpreter, wheels: Path, target: Path) -> list[str]:
    """Unpack into ``target`` each wheel none of whose modules ``python`` finds; returns their names, sorted."""
    fitting = {wheel: top_levels(wheel) for wheel in sorted(wheels.glob("*.whl")) if interpreter.takes(wheel)}
    present = importable(python, {name for names in fitting.values() for name in names})
    added = []
    for wheel, names in fitting.items():
        if not is_missing(names, present):
            continue
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        added.append("-".join(wheel.stem.split("-")[:2]))
    return sorted(added)


def is_missing(names: set[str], present: set[str]) -> bool:
    """Whether a wheel is to be added: nothing of it is there, or what it must match is not."""
    for group in TOGETHER:
        if names & set(group):
            return not set(group) <= present
    return not names & present

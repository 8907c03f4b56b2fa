"""The interpreter that ``make gpu`` runs with: which one, what it lacks, and what it sees. Standard library only."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu_wheels import Interpreter, add_missing

REPO = Path(__file__).resolve().parent.parent
SOURCES = ("cli", "sim", "gpu", "traces", "analysis", ".")
#: What is reported of the packages that decide what is measured.
PACKAGES = ("torch", "triton", "numpy", "numba", "scipy", "pandas", "pyarrow", "matplotlib", "rich", "pydantic",
            "simpy", "pytest")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """``packages``: version by name. ``driver``: what the vendor's tool reports. ``added``: packages out of wheels."""

    interpreter: str
    python: str
    device: str
    cuda: bool
    packages: Mapping[str, str]
    driver: Mapping[str, str]
    added: Sequence[str]
    notes: Sequence[str]


def choose(candidates: Sequence[str]) -> tuple[str, str]:
    """The interpreter to use, and why: the first whose torch sees CUDA, else the first that has torch.

    Raises LookupError, with what each lacks, when none has.
    """
    found: dict[str, str] = {}
    for python in dict.fromkeys(candidates):
        found[python] = _torch_of(python)
        if found[python] == "cuda":
            return python, "its torch sees a CUDA device"
    for python, what in found.items():
        if what == "cpu":
            return python, "it has torch; no interpreter sees a CUDA device"
    raise LookupError("; ".join(f"{python}: {what}" for python, what in found.items()))


def _torch_of(python: str) -> str:
    """``cuda``, ``cpu``, or why its torch cannot be used."""
    if shutil.which(python) is None:
        return "not there"
    script = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    return done.stdout.split()[-1] if done.returncode == 0 else (done.stderr.strip().splitlines() or ["fails"])[-1]


def prepared(python: str, wheels: Path, packages: Path, version: str) -> tuple[About, dict[str, str]]:
    """Unpack what ``python`` lacks into ``packages``. Returns what it is, and the variables that parts run with: the
    source tree, whose version is ``version``, then those packages.
    """
    major, minor = _about(python, os.environ)["python"].split(".")[:2]
    added = add_missing(python, Interpreter((int(major), int(minor)), platform.machine()), wheels, packages)
    # The source tree is not installed, and a run's record asks for the version of what made it.
    metadata = packages / f"kvrm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: kvrm\nVersion: {version}\n", encoding="utf-8")
    path = os.pathsep.join([*(str(REPO / source) for source in SOURCES), str(packages)])
    variables = {**os.environ, "PYTHONPATH": path}
    found = _about(python, variables)
    notes = notes_on(found["packages"], cuda=found["cuda"])
    return About(interpreter=python, driver=_driver(), added=added, notes=notes, **found), variables


def notes_on(packages: Mapping[str, str], *, cuda: bool) -> list[str]:
    """What has to be known of a run without a device."""
    if cuda:
        return []
    notes = ["No CUDA device was seen: this is the CPU's loop at the smoke scale."]
    if _release(packages["triton"]) <= (3, 6):
        notes.append(
            "The interpreter of Triton up to 3.6 converts arrays to numbers in a way that NumPy refuses since 2.4 and "
            "warns of before (its issue 9171): tests of interpreted kernels fail for it. A device compiles them."
        )
    return notes


def _release(version: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) of what is absent."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


_ABOUT = """
import importlib.metadata as metadata, json, platform, sys, torch
cuda = torch.cuda.is_available()
packages = {}
for name in json.loads(sys.argv[1]):
    try:
        packages[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        packages[name] = "absent"
device = torch.cuda.get_device_name() if cuda else f"CPU, {platform.machine()}"
print(json.dumps({"python": platform.python_version(), "cuda": cuda, "device": device, "packages": packages}))
"""


def _driver() -> dict[str, str]:
    """Driver and clocks as the vendor's tool reports them; it is only read."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    fields = ("driver_version", "clocks.sm", "clocks.mem", "power.limit")
    done = subprocess.run(
        [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {"driver": "not reported"}
    return dict(zip(fields, (value.strip() for value in lines[0].split(",")), strict=False))


def _about(python: str, variables: Mapping[str, str]) -> dict[str, Any]:
    command = [python, "-c", _ABOUT, json.dumps(PACKAGES)]
    done = subprocess.run(command, cwd=REPO, env=variables, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
